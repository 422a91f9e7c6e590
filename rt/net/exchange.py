"""Exchange: one request and one answer over TLS, each with a single overall deadline.

A timeout for each receive would not suffice: a peer that sends a byte just before each timeout
would hold its connection for ever.
"""

import json
import socket
import ssl
import time
from typing import Any, Final

from rt.errors import Misuse, PeerError
from rt.position import START, Position

_PART_BYTES: Final = 64 * 1024  # four TLS records; the deadline is checked between two parts
_DEPTH_MAX: Final = 16  # nesting depth of objects and lists; a request has four levels
_UNREADABLE: Final = (ValueError, RecursionError)  # what `json.loads` raises for hostile text

Fields = dict[str, Any]


def set_deadline(sock: socket.socket, deadline_s: float) -> None:
    """Make the next call on a socket time out at `deadline_s` of the monotonic clock.

    Raises:
        TimeoutError: the deadline has passed.
    """
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the deadline has passed")
    sock.settimeout(left_s)


def address_of(sock: socket.socket) -> str:
    """Return the peer's `host:port`; "" if the connection is gone."""
    try:
        host, port, *_ = sock.getpeername()
    except OSError:
        return ""
    return f"{host}:{port}"


def send_all(sock: ssl.SSLSocket, data: bytes, deadline_s: float) -> None:
    """Send all of `data`; `TimeoutError` if the peer has not accepted it by the deadline.

    `SSLSocket.sendall` would restart its timeout with every record.
    """
    rest = memoryview(data)
    while rest:
        set_deadline(sock, deadline_s)
        rest = rest[sock.send(rest[:_PART_BYTES]) :]


def receive_line(sock: ssl.SSLSocket, bytes_max: int, deadline_s: float) -> bytes:
    """Receive until the data ends with a newline.

    Raises:
        PeerError: the line is longer than `bytes_max`, or the peer hung up before its end.
        TimeoutError: its end did not arrive by the deadline.
    """
    words = f"a request is one line of at most {bytes_max} bytes"
    data = _receive(sock, bytes_max, deadline_s, words, end=b"\n")
    if not data.endswith(b"\n"):
        raise PeerError(words)
    return data


def receive_line_or_end(sock: ssl.SSLSocket, bytes_max: int, deadline_s: float) -> bytes:
    """Receive until a newline, or until the peer hangs up; errors as for `receive_line`."""
    words = f"a line is longer than {bytes_max} bytes"
    return _receive(sock, bytes_max, deadline_s, words, end=b"\n")


def receive_all(sock: ssl.SSLSocket, bytes_max: int, deadline_s: float) -> bytes:
    """Receive until the peer hangs up; errors as for `receive_line`."""
    return _receive(sock, bytes_max, deadline_s, f"the answer is longer than {bytes_max} bytes")


def _receive(
    sock: ssl.SSLSocket, bytes_max: int, deadline_s: float, words: str, end: bytes = b""
) -> bytes:
    """Receive until the data ends with `end`, if given, or until the peer hangs up."""
    data = bytearray()
    while not (end and data.endswith(end)):
        set_deadline(sock, deadline_s)
        part = sock.recv(_PART_BYTES)
        if not part:
            break
        data += part
        if len(data) > bytes_max:
            raise PeerError(words)
    return bytes(data)


def position_in(request: Fields, name: str) -> Position:
    """Return the position in a request's field; the start of the log if the field is missing.

    Raises:
        Misuse: the field is malformed.

    >>> position_in({"since": "0.0.64"}, "since")
    Position('0.0.64')
    """
    try:
        return Position.parse(str(request.get(name, START)))
    except ValueError as error:
        raise Misuse(f"{name}: {error}") from None


def about(stream: str, request: Fields) -> Fields:
    """Add the stream's name, which nodes check, to a request, unless `stream` is ""."""
    return {**request, "stream": stream} if stream else request


def decode_fields(data: bytes | str) -> Fields | None:
    """Parse a JSON object; None if `data` is anything else.

    >>> decode_fields(b'{"do": "plan"}'), decode_fields(b"[" * 100_000)
    ({'do': 'plan'}, None)
    """
    try:
        fields = json.loads(data)
    except _UNREADABLE:
        return None
    return fields if isinstance(fields, dict) else None


def decode_request(data: bytes) -> Fields | None:
    """Parse a JSON object; None if `data` is anything else, or nested too deep for a request.

    Python parses and prints nested JSON recursively, so an object that is only just shallow
    enough to be parsed may crash the thread that writes it to a log.

    >>> decode_request(b'{"do": ' + b"[" * 20 + b"]" * 20 + b"}")
    """
    fields = decode_fields(data)
    level: list[Any] = [fields]
    for _ in range(_DEPTH_MAX):
        level = [part for each in level for part in _parts(each)]
    return None if level else fields


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
