"""Listener: the socket that a server accepts connections from."""

import socket
from typing import Final

from rt.errors import spoken

_BACKLOG: Final = 128


def listen_at(address: tuple[str, int], accept_s: float) -> socket.socket:
    """Listen at a host and port; port 0 picks a free one.

    Args:
        address: host and port.
        accept_s: seconds after which an `accept` gives up with a `TimeoutError`.

    Raises:
        OSError: the address is not available.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        listener = socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        words = spoken(error).partition(" (while ")[0]  # Python repeats the address
        where = f"{address[0]}:{address[1]}"
        raise OSError(error.errno, f"cannot listen at {where}: {words}") from error
    listener.settimeout(accept_s)
    return listener
