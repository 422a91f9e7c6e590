"""Addresses: where a node listens, as text and as host and port."""

from typing import Final

from rt.errors import Misuse
from rt.names import shown

PORT: Final = 7420


def parse_address(text: str, setting: str = "") -> tuple[str, int]:
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
    """Whether it can be looked up: all its labels have a valid length."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False
