"""Headers: a message's small map of names to bytes, encoded as one cell of the headers column.

A cell is empty, or has entries in ascending order of their names: u8 length of the name, u16 length
of the value (little endian), the name in UTF-8, the value.
"""

from collections.abc import Mapping
from typing import Final

from rt.errors import FrameError, Misuse
from rt.limits import HEADER_NAME_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX

Headers = Mapping[str, bytes]
_ENTRY_BYTES: Final = 3  # the two lengths


def encode_headers(headers: Headers) -> bytes:
    r"""Encode the headers of one message; empty if there are none.

    Raises:
        Misuse: `headers` does not map names to bytes, or is too large; the message says which.

    >>> encode_headers({"b": b"2", "a": b""})
    b'\x01\x00\x00a\x01\x01\x00b2'
    """
    if not isinstance(headers, Mapping):
        raise Misuse(f"headers are a mapping of names to bytes, not {type(headers).__name__}")
    if len(headers) > HEADERS_MAX:
        raise Misuse(f"a message has {len(headers)} headers; use {HEADERS_MAX} at most")
    cells = sorted((_name(name), _value(name, value)) for name, value in headers.items())
    size = sum(_ENTRY_BYTES + len(name) + len(value) for name, value in cells)
    if size > HEADERS_BYTES_MAX:
        raise Misuse(f"the headers of a message take {size} bytes; use {HEADERS_BYTES_MAX} at most")
    return b"".join(
        bytes((len(name),)) + len(value).to_bytes(2, "little") + name + value
        for name, value in cells
    )


def decode_headers(cell: bytes) -> dict[str, bytes]:
    r"""Decode one message's headers; `FrameError` unless `encode_headers` could have written them.

    >>> decode_headers(b"\x01\x00\x00a\x01\x01\x00b2")
    {'a': b'', 'b': b'2'}
    """
    found: dict[str, bytes] = {}
    at, end, before = 0, len(cell), b""
    if end > HEADERS_BYTES_MAX:
        raise FrameError(f"the headers of a message are longer than {HEADERS_BYTES_MAX} bytes")
    while at < end:
        name_at = at + _ENTRY_BYTES
        value_at = name_at + cell[at]
        at = value_at + int.from_bytes(cell[at + 1 : name_at], "little")
        name = cell[name_at:value_at]
        if at > end or name <= before:  # an empty name is not above the empty start either
            raise FrameError("the headers of a message are cut off or not in order")
        try:
            found[name.decode()] = cell[value_at:at]
        except UnicodeDecodeError:
            raise FrameError("the name of a header is not UTF-8") from None
        before = name
    if len(found) > HEADERS_MAX:
        raise FrameError(f"a message has more than {HEADERS_MAX} headers")
    return found


def _name(name: object) -> bytes:
    if not isinstance(name, str):
        raise Misuse(f"the name of a header is a text, not {type(name).__name__}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise Misuse("the name of a header is not UTF-8") from None
    if not 0 < len(encoded) <= HEADER_NAME_BYTES_MAX:
        raise Misuse(
            f"the name of a header has 1 to {HEADER_NAME_BYTES_MAX} bytes, not {len(encoded)}"
        )
    return encoded


def _value(name: str, value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise Misuse(f"header {name[:40]!r} is bytes, not {type(value).__name__}; encode it first")
