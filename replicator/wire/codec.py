"""Wire: the bytes of each message (docs/WIRE.md).

Little endian. A message is a u32, the length of its body; a u8, its type; and the body.
"""

import struct
from collections.abc import Callable
from mmap import mmap
from typing import Any, Final, TypeVar

from replicator.wire.messages import (
    PULL,
    PUSH,
    SPANS_MAX,
    TAIL_BYTES_MAX,
    Ack,
    ArchivedNotice,
    CaughtUpNotice,
    Data,
    HeadersNotice,
    Heartbeat,
    Hello,
    Message,
    Open,
    Refusal,
    RolledNotice,
    Standing,
    SuccessionNotice,
    TailSpan,
)
from rt.errors import FrameError, ManifestError, PeerError
from rt.format import manifest
from rt.format.frame import HEADER_BYTES, parse_header
from rt.limits import BODY_BYTES_MAX, KIB, MANIFEST_LINE_BYTES_MAX, READ_BYTES
from rt.net.authority.succession import SUCCESSION_BYTES_MAX
from rt.position import FILE_BYTES_MAX, OFFSET_END, Position

VERSION: Final = 4
SUCCESSION_VERSION: Final = 4  # since then both sides say which log continues another
HEADERS_VERSION: Final = 3  # since then a node says whether publishers may write headers
VERSION_MIN: Final = 2  # the oldest version still spoken
WORDS_BYTES_MAX: Final = 1024  # of a refusal: a long sentence with two positions and a path
FRAME_BYTES_MAX: Final = BODY_BYTES_MAX + HEADER_BYTES + 8  # with its padding
START_BYTES_MAX: Final = 64  # room for the longest start: at: and 19 digits
HELLO_BYTES_MAX: Final = 256  # a stream of 63 bytes and a software version

LARGE_BYTES: Final = READ_BYTES + KIB  # a source sends more at once only if one frame has more

_OFFSET_MASK: Final = OFFSET_END - 1
_NAME_BYTES_MAX: Final = 255  # its length is one byte

_PREFIX: Final = struct.Struct("<IB")
PREFIX_BYTES: Final = _PREFIX.size
_HELLO: Final = struct.Struct("<HHBB")
_CHANNEL: Final = struct.Struct("<I")
_STANDING: Final = struct.Struct("<IQQIB")
_SPAN: Final = struct.Struct("<QI")
_PLACE: Final = struct.Struct("<IQ")
_DATA_HEAD: Final = struct.Struct("<IBIQ")
DATA_HEAD_BYTES: Final = _DATA_HEAD.size
_ACK: Final = struct.Struct("<IQQQQQ")
_CODE: Final = struct.Struct("<IB")
_HELLO_T, _OPEN_T, _STANDING_T, _DATA_T, _ROLLED_T = 1, 2, 3, 4, 5
_ARCHIVED_T, _CAUGHT_UP_T, _ACK_T, _HEARTBEAT_T, _REFUSED_T, _HEADERS_T = 6, 7, 8, 9, 10, 11
_SUCCESSION_T: Final = 12
_ACK_PREFIX: Final = _PREFIX.pack(_ACK.size, _ACK_T)
ACK_BYTES: Final = PREFIX_BYTES + _ACK.size
ACK_HEAD_BYTES: Final = PREFIX_BYTES + _CHANNEL.size  # equal for all Acks of a channel
GREETINGS: Final = frozenset({_HELLO_T, _REFUSED_T})  # all that may precede a Hello
# none of them large
FROM_SINK: Final = frozenset({
    _STANDING_T, _ACK_T, _HEARTBEAT_T, _REFUSED_T, _HEADERS_T, _SUCCESSION_T,
})  # fmt: skip


def encode(message: Message) -> bytes:
    """Return the bytes of a message; for `Data`, `put_data_head` avoids copying the payload."""
    kind, encode_body = _ENCODERS[type(message)]
    body = encode_body(message)
    return _PREFIX.pack(len(body), kind) + body


def encode_ack(ack: Ack) -> bytes:
    """Encode an acknowledgement faster than `encode`, since one is sent for each message."""
    return _ACK_PREFIX + _ACK.pack(*ack)


def put_data_head(buffer: memoryview, channel: int, position: Position, length: int) -> None:
    """Write the head of Data before `length` bytes of frames at `buffer[DATA_HEAD_BYTES:]`."""
    _DATA_HEAD.pack_into(buffer, 0, length + _PLACE.size, _DATA_T, channel, position)


def data_head(channel: int, position: Position, length: int) -> bytes:
    """Return the head of Data for `length` bytes of frames that follow it."""
    return _DATA_HEAD.pack(length + _PLACE.size, _DATA_T, channel, position)


def decode_prefix(data: bytearray | mmap, offset: int) -> tuple[int, int]:
    """Return the type of the message at `offset`, and the length of its body.

    Raises:
        PeerError: no message of that type has that length.
    """
    length: int
    kind: int
    length, kind = _PREFIX.unpack_from(data, offset)
    _, least, most = BODIES.get(kind, NO_BODY)
    if not least <= length <= most:
        raise PeerError(f"a message of type {kind} cannot have {length} bytes")
    return kind, length


def check_large(data: memoryview, length: int) -> bool:
    """Check that a large message carries a single frame; False if too little is here to tell.

    Raises:
        PeerError: the message does not carry exactly one frame.
    """
    if len(data) < DATA_HEAD_BYTES + HEADER_BYTES:
        return False
    try:
        size = parse_header(data, DATA_HEAD_BYTES).size
    except FrameError as error:
        raise PeerError(
            f"a message of {length} bytes does not begin with a frame: {error}"
        ) from None
    if size != length - _PLACE.size:
        raise PeerError(f"a message of {length} bytes begins with a frame of {size}")
    return True


def is_ack(head: bytes | bytearray) -> bool:
    """Whether a message that begins with these `ACK_HEAD_BYTES` is an acknowledgement."""
    return head.startswith(_ACK_PREFIX)


def _encode_hello(m: Hello) -> bytes:
    stream, software = m.stream.encode(), m.software.encode()
    head = _HELLO.pack(m.version_min, m.version_max, m.direction, len(stream))
    return head + stream + software


def _decode_hello(body: memoryview) -> Hello:
    version_min, version_max, direction, length = _HELLO.unpack_from(body)
    names = bytes(body[_HELLO.size :])
    if length > len(names) or version_min > version_max or direction not in (PUSH, PULL):
        raise PeerError("its Hello contradicts itself")
    stream, software = _text(names[:length]), _text(names[length:])
    return Hello(version_min, version_max, direction, stream, software)


def _decode_open(body: memoryview) -> Open:
    channel, [line] = _lines(body, 1)
    return Open(channel, _entry(manifest.LogIdentity, line))


def _encode_standing(m: Standing) -> bytes:
    head = _STANDING.pack(m.channel, m.end, m.archived_to, m.crc, len(m.spans))
    spans = b"".join(_SPAN.pack(*span) for span in m.spans)
    line = b"" if m.rolled is None else manifest.encode_entry(m.rolled)
    return head + spans + line + m.start.encode()


def _decode_standing(body: memoryview) -> Standing:
    channel, end, archived_to, crc, count = _STANDING.unpack_from(body)
    line_at = _STANDING.size + count * _SPAN.size
    if count > SPANS_MAX or line_at > len(body):
        raise PeerError(f"a Standing cannot have {count} spans")
    places = _SPAN.iter_unpack(body[_STANDING.size : line_at])
    spans = tuple(TailSpan(_position(place), length) for place, length in places)
    rest = bytes(body[line_at:])
    start_at = rest.rfind(b"\n") + 1
    rolled = _entry(manifest.Rolled, _line(body[line_at:][:start_at])) if start_at else None
    start = _start(rest[start_at:])
    standing = Standing(channel, _position(end), _position(archived_to), rolled, spans, crc, start)
    _check_proof(standing)
    return standing


def _start(text: bytes) -> str:
    if text.startswith(b"{") or len(text) > START_BYTES_MAX:
        raise PeerError("what follows the spans of a Standing is not 1 whole line, or a start")
    return _text(text)


def _check_proof(standing: Standing) -> None:
    """Raise `PeerError` if a Standing does not prove what the sink's copy holds.

    A proof that names bytes outside a file, or after the end of the copy, is refused too.
    """
    rolled, end = standing.rolled, standing.end
    for span in standing.spans:
        if not 0 < span.length <= TAIL_BYTES_MAX or span.end > end:
            raise PeerError(f"{span.length} bytes at {span.position} are no tail of {end}")
        if span.position.offset + span.length > FILE_BYTES_MAX:
            raise PeerError(f"{span.length} bytes at {span.position} reach beyond a file")
    if rolled is not None and rolled.file + rolled.end > end:
        raise PeerError(f"its last file ends after {end}")
    if end and not standing.spans and rolled is None:
        raise PeerError(f"nothing proves what its copy holds before {end}")


def _decode_data(body: memoryview) -> Data:
    channel, place = _PLACE.unpack_from(body)
    if place >> 63:
        raise _no_position(place)
    position, payload = Position(place), body[_PLACE.size :]
    if (place & _OFFSET_MASK) + len(payload) > FILE_BYTES_MAX:
        raise PeerError(f"{len(payload)} bytes at {position} reach beyond a file")
    return Data(channel, position, payload)


def _decode_rolled(body: memoryview) -> RolledNotice:
    channel, [line] = _lines(body, 1)
    return RolledNotice(channel, _entry(manifest.Rolled, line))


def _decode_archived(body: memoryview) -> ArchivedNotice:
    channel, [first, second] = _lines(body, 2)
    rolled, line = _entry(manifest.Rolled, first), _entry(manifest.Archived, second)
    if rolled.file != line.file:
        raise PeerError("it archives another file than the one it says was rolled")
    return ArchivedNotice(channel, rolled, line)


def _decode_caught_up(body: memoryview) -> CaughtUpNotice:
    channel, position = _PLACE.unpack(body)
    return CaughtUpNotice(channel, _position(position))


def _decode_ack(body: memoryview) -> Ack:
    channel, *positions = _ACK.unpack(body)
    if max(positions) >> 63:
        raise _no_position(max(positions))
    return Ack(channel, *map(Position, positions))


def _encode_refused(m: Refusal) -> bytes:
    code = m.code.encode()
    return _CODE.pack(m.channel, len(code)) + code + _words(m.words)


def _decode_refused(body: memoryview) -> Refusal:
    channel, length = _CODE.unpack_from(body)
    text = bytes(body[_CODE.size :])
    if length > len(text):
        raise PeerError("its refusal contradicts itself")
    return Refusal(channel, _text(text[:length]), _text(text[length:]))


_HEARTBEAT: Final = Heartbeat()
_LINE_MOST: Final = _CHANNEL.size + MANIFEST_LINE_BYTES_MAX
_STANDING_MOST: Final = (
    _STANDING.size + SPANS_MAX * _SPAN.size + MANIFEST_LINE_BYTES_MAX + START_BYTES_MAX
)
# by class of the message: the number of its type, and what encodes its body
_ENCODERS: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    Hello: (_HELLO_T, _encode_hello),
    Open: (_OPEN_T, lambda m: _CHANNEL.pack(m.channel) + manifest.encode_entry(m.identity)),
    Standing: (_STANDING_T, _encode_standing),
    Data: (_DATA_T, lambda m: _PLACE.pack(m.channel, m.position) + m.payload),
    RolledNotice: (_ROLLED_T, lambda m: _CHANNEL.pack(m.channel) + manifest.encode_entry(m.line)),
    ArchivedNotice: (
        _ARCHIVED_T,
        lambda m: (
            _CHANNEL.pack(m.channel)
            + manifest.encode_entry(m.rolled)
            + manifest.encode_entry(m.line)
        ),
    ),
    CaughtUpNotice: (_CAUGHT_UP_T, lambda m: _PLACE.pack(m.channel, m.position)),
    Ack: (_ACK_T, lambda m: _ACK.pack(*m)),
    Heartbeat: (_HEARTBEAT_T, lambda _m: b""),
    Refusal: (_REFUSED_T, _encode_refused),
    HeadersNotice: (_HEADERS_T, lambda m: _words(m.why_not)),
    SuccessionNotice: (_SUCCESSION_T, lambda m: m.text.encode()),
}
# by type: what decodes the body, or raises `PeerError`, and the body's least and most bytes
BODIES: Final[dict[int, tuple[Callable[[memoryview], Message], int, int]]] = {
    _HELLO_T: (_decode_hello, _HELLO.size, HELLO_BYTES_MAX),
    _OPEN_T: (_decode_open, _CHANNEL.size, _LINE_MOST),
    _STANDING_T: (_decode_standing, _STANDING.size, _STANDING_MOST),
    _DATA_T: (_decode_data, _PLACE.size + HEADER_BYTES, _PLACE.size + FRAME_BYTES_MAX),
    _ROLLED_T: (_decode_rolled, _CHANNEL.size, _LINE_MOST),
    _ARCHIVED_T: (_decode_archived, _CHANNEL.size, _LINE_MOST + MANIFEST_LINE_BYTES_MAX),
    _CAUGHT_UP_T: (_decode_caught_up, _PLACE.size, _PLACE.size),
    _ACK_T: (_decode_ack, _ACK.size, _ACK.size),
    _HEARTBEAT_T: (lambda _body: _HEARTBEAT, 0, 0),
    _REFUSED_T: (_decode_refused, _CODE.size, _CODE.size + _NAME_BYTES_MAX + WORDS_BYTES_MAX),
    _HEADERS_T: (lambda body: HeadersNotice(_text(bytes(body))), 0, WORDS_BYTES_MAX),
    _SUCCESSION_T: (
        lambda body: SuccessionNotice(_text(bytes(body))),
        1,
        SUCCESSION_BYTES_MAX,
    ),
}
NO_BODY: Final = (None, 1, 0)  # of an unknown type: no length is right

_EntryType = TypeVar("_EntryType", bound=manifest.Entry)


def _position(value: int) -> Position:
    if value >> 63:
        raise _no_position(value)
    return Position(value)


def _no_position(value: int) -> PeerError:
    return PeerError(f"{value} is not a position")


def _words(text: str) -> bytes:
    """Return a text as UTF-8, cut between characters to at most `WORDS_BYTES_MAX` bytes."""
    cut = text.encode(errors="replace")[:WORDS_BYTES_MAX]
    return cut.decode(errors="ignore").encode()


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise PeerError("a text is not UTF-8") from None


def _lines(body: memoryview, count: int) -> tuple[int, list[bytes]]:
    [channel] = _CHANNEL.unpack_from(body)
    *lines, rest = bytes(body[_CHANNEL.size :]).split(b"\n")
    if rest or len(lines) != count:
        raise PeerError(f"{count} whole manifest lines were expected")
    return channel, lines


def _line(data: memoryview) -> bytes:
    line, newline, rest = bytes(data).partition(b"\n")
    if rest or not newline:
        raise PeerError("1 whole manifest line was expected")
    return line


def _entry(kind: type[_EntryType], line: bytes) -> _EntryType:
    try:
        entry = manifest.decode_entry(line)
    except (ManifestError, RecursionError) as error:
        raise PeerError(f"a manifest line: {error}") from None
    if not isinstance(entry, kind):
        raise PeerError("a manifest line is of another kind")
    return entry
