"""Addresses: where a node listens, as text and as host and port."""

import socket
from typing import Final

from rt.errors import Misuse, spoken
from rt.names import shown

Address = tuple[str, int]
PORT: Final = 7420


def parse_address(text: str, setting: str = "") -> Address:
    """Parse `host:port`; anything else is a `Misuse` that names the setting.

    >>> parse_address("[::1]:7420")
    ('::1', 7420)
    """
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal()
    if not (is_port and _is_host(host.strip("[]"))) or int(port) > 65535:
        problem = f"not an address: {shown(text)}; use host:port, such as localhost:{PORT}"
        raise Misuse(f"{setting} is {problem}" if setting else problem)
    return host.strip("[]"), int(port)


def _is_host(host: str) -> bool:
    """Whether a host name can be looked up, because all its labels have a valid length."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def address_text(address: Address) -> str:
    """Return `host:port`."""
    return f"{address[0]}:{address[1]}"


def listen_at(address: Address, backlog: int) -> socket.socket:
    """Listen at a host and port; port 0 picks a free one.

    Raises:
        OSError: the address is not available.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=backlog)
    except OSError as error:
        words = spoken(error).partition(" (while ")[0]  # Python repeats the address
        where = address_text(address)
        raise OSError(error.errno, f"cannot listen at {where}: {words}") from error
