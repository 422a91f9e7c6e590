"""Wire: what a source and a sink say to each other, and its bytes (docs/WIRE.md).

Little endian. A message is a u32, the length of its body; a u8, its type; and the body.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from rt.errors import ManifestError, PeerError
from rt.format import manifest
from rt.format.frame import HEADER_BYTES
from rt.limits import BODY_BYTES_MAX, KIB, MANIFEST_LINE_BYTES_MAX
from rt.position import FILE_BYTES_MAX, START, Position

VERSION: Final = 1
CONNECTION: Final = 0xFFFFFFFF  # in place of a channel: the whole connection is meant
PUSH, PULL = 1, 2  # who dials: the source, or the sink

WORDS_BYTES_MAX: Final = 1024  # of a refusal: a long sentence with two positions and a path
TAIL_BYTES_MAX: Final = 4 * KIB  # one page is what a crash most often takes
FRAME_BYTES_MAX: Final = BODY_BYTES_MAX + HEADER_BYTES + 8  # and its padding

_NAME_BYTES_MAX: Final = 255  # its length is one byte
# What one receive gives at most. The buffer grows as the bytes of a message come: a claim is free.
_RECORD_BYTES: Final = 16 * KIB
_BUFFER_BYTES: Final = 2 * _RECORD_BYTES
_BUFFER_BYTES_KEPT: Final = 4 << 20  # a rare larger message gives its memory back


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of either side; the server's names one version, the one to speak."""

    version_min: int
    version_max: int
    direction: int
    stream: str
    software: str


@dataclass(frozen=True, slots=True)
class Open:
    """The source has this log to give, and will speak of it by the number `channel`."""

    channel: int
    identity: manifest.LogIdentity


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the sink stands, and proof of what it has."""

    channel: int
    end: Position
    tail_length: int  # bytes before `end`, of the same file, that `tail_crc` is the CRC-32 of
    tail_crc: int
    archived_to: Position = START  # the sink knows of the archived files before this


class Data(NamedTuple):
    """Whole frames that stand at `position` in the log; never more than one file's.

    The payload is valid until more is received.
    """

    channel: int
    position: Position
    payload: memoryview


@dataclass(frozen=True, slots=True)
class RolledNotice:
    """The file ended here; the line goes into the sink's manifest as it is."""

    channel: int
    line: manifest.Rolled


@dataclass(frozen=True, slots=True)
class ArchivedNotice:
    """A rolled file was archived; both lines, since the sink may never have had the file."""

    channel: int
    rolled: manifest.Rolled
    line: manifest.Archived


@dataclass(frozen=True, slots=True)
class CaughtUpNotice:
    """The source has nothing more for now, after it had more than it could send at once."""

    channel: int
    position: Position


@dataclass(frozen=True, slots=True)
class Ack:
    """How far the session came at the sink; each number never goes back on one connection."""

    channel: int
    received: Position  # written at the sink
    durable: Position  # synced at the sink
    replicated: Position  # durable on a majority of the nodes, as far as the sink knows
    merged: Position  # in the merged log
    merged_at: Position  # where that ends in the merged log


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The sender is alive."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The channel, or with `CONNECTION` all of it, ends here, and why."""

    channel: int
    code: str
    words: str


Message = (
    Hello
    | Open
    | Standing
    | Data
    | RolledNotice
    | ArchivedNotice
    | CaughtUpNotice
    | Ack
    | Heartbeat
    | Refusal
)

_PREFIX: Final = struct.Struct("<IB")
PREFIX_BYTES: Final = _PREFIX.size
_HELLO: Final = struct.Struct("<HHBB")
_CHANNEL: Final = struct.Struct("<I")
_STANDING: Final = struct.Struct("<IQIIQ")
_PLACE: Final = struct.Struct("<IQ")
_DATA_HEAD: Final = struct.Struct("<IBIQ")
DATA_HEAD_BYTES: Final = _DATA_HEAD.size
_ACK: Final = struct.Struct("<IQQQQQ")
_CODE: Final = struct.Struct("<IB")
_HELLO_T, _OPEN_T, _STANDING_T, _DATA_T, _ROLLED_T = 1, 2, 3, 4, 5
_ARCHIVED_T, _CAUGHT_UP_T, _ACK_T, _HEARTBEAT_T, _REFUSED_T = 6, 7, 8, 9, 10


def encode(message: Message) -> bytes:
    """Return the bytes of a message; of `Data` too, though `put_data_head` copies no payload."""
    kind, body = _ENCODERS[type(message)](message)
    return _PREFIX.pack(len(body), kind) + body


def put_data_head(buffer: bytearray, channel: int, position: Position, length: int) -> None:
    """Write what stands before `length` bytes of frames at `buffer[DATA_HEAD_BYTES:]`."""
    _DATA_HEAD.pack_into(buffer, 0, length + _PLACE.size, _DATA_T, channel, position)


class Decoder:
    """Takes bytes as they come and gives out the messages in them.

    Receive into `space()`, say how many bytes came with `took()`, then call `next()` until it
    has no more.
    """

    __slots__ = ("_buffer", "_end", "_needed", "_start", "_view")

    def __init__(self) -> None:
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._needed = PREFIX_BYTES  # bytes of the message that begins at _start, as far as known

    def space(self) -> memoryview:
        """Return where to receive; the payloads given out before are not valid any more."""
        have, size = self._end - self._start, len(self._buffer)
        if have == 0:
            self._start = self._end = 0
            if size > _BUFFER_BYTES_KEPT:
                self._move_to(_BUFFER_BYTES)
        elif size - self._end < _RECORD_BYTES:
            enough = self._needed + _RECORD_BYTES
            self._move_to(size if have <= size // 2 and enough <= size else min(enough, 2 * size))
        return self._view[self._end :]

    def took(self, count: int) -> None:
        """Take the `count` bytes that were received into `space()`."""
        self._end += count

    def next(self) -> Message | None:
        """Return the next message, None if not all of it came yet.

        Raises:
            PeerError: what came is no message; nothing after it can be read.
        """
        have = self._end - self._start
        if have < PREFIX_BYTES:
            self._needed = PREFIX_BYTES
            return None
        length, kind = _PREFIX.unpack_from(self._buffer, self._start)
        decode, least, most = _DECODERS.get(kind, _UNKNOWN)
        if not least <= length <= most:
            raise PeerError(f"a message of type {kind} cannot have {length} bytes")
        self._needed = PREFIX_BYTES + length
        if have < self._needed:
            return None
        body = self._view[self._start + PREFIX_BYTES : self._start + self._needed]
        self._start += self._needed
        self._needed = PREFIX_BYTES
        return decode(body)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take all of `data` and give out the messages as they become whole."""
        rest = memoryview(data)
        while rest:
            space = self.space()
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            rest = rest[count:]
            self.took(count)
            while (message := self.next()) is not None:
                yield message

    def _move_to(self, size: int) -> None:
        """Bring what is not yet read to the front, of a new buffer if the size is another."""
        unread = self._view[self._start : self._end]
        if size != len(self._buffer):
            self._buffer = bytearray(size)
            self._view = memoryview(self._buffer)
        self._view[: len(unread)] = unread
        self._start, self._end = 0, len(unread)


def _encode_hello(m: Hello) -> tuple[int, bytes]:
    stream, software = m.stream.encode(), m.software.encode()
    head = _HELLO.pack(m.version_min, m.version_max, m.direction, len(stream))
    return _HELLO_T, head + stream + software


def _decode_hello(body: memoryview) -> Hello:
    version_min, version_max, direction, length = _HELLO.unpack_from(body)
    names = bytes(body[_HELLO.size :])
    if length > len(names) or version_min > version_max or direction not in (PUSH, PULL):
        raise PeerError("its Hello contradicts itself")
    stream, software = _text(names[:length]), _text(names[length:])
    return Hello(version_min, version_max, direction, stream, software)


def _encode_open(m: Open) -> tuple[int, bytes]:
    return _OPEN_T, _CHANNEL.pack(m.channel) + manifest.encode_entry(m.identity)


def _decode_open(body: memoryview) -> Open:
    channel, [line] = _lines(body, 1)
    return Open(channel, _entry(manifest.LogIdentity, line))


def _encode_standing(m: Standing) -> tuple[int, bytes]:
    fields = (m.channel, m.end, m.tail_length, m.tail_crc, m.archived_to)
    return _STANDING_T, _STANDING.pack(*fields)


def _decode_standing(body: memoryview) -> Standing:
    channel, end, length, crc, archived_to = _STANDING.unpack(body)
    standing = Standing(channel, _position(end), length, crc, _position(archived_to))
    if length > min(TAIL_BYTES_MAX, standing.end.offset):
        raise PeerError(
            f"a tail of {length} bytes is longer than its file or than {TAIL_BYTES_MAX}"
        )
    return standing


def _encode_data(m: Data) -> tuple[int, bytes]:
    return _DATA_T, _PLACE.pack(m.channel, m.position) + m.payload


def _decode_data(body: memoryview) -> Data:
    channel, place = _PLACE.unpack_from(body)
    position, payload = _position(place), body[_PLACE.size :]
    if position.offset + len(payload) > FILE_BYTES_MAX:
        raise PeerError(f"{len(payload)} bytes at {position} reach beyond a file")
    return Data(channel, position, payload)


def _encode_rolled(m: RolledNotice) -> tuple[int, bytes]:
    return _ROLLED_T, _CHANNEL.pack(m.channel) + manifest.encode_entry(m.line)


def _decode_rolled(body: memoryview) -> RolledNotice:
    channel, [line] = _lines(body, 1)
    return RolledNotice(channel, _entry(manifest.Rolled, line))


def _encode_archived(m: ArchivedNotice) -> tuple[int, bytes]:
    lines = manifest.encode_entry(m.rolled) + manifest.encode_entry(m.line)
    return _ARCHIVED_T, _CHANNEL.pack(m.channel) + lines


def _decode_archived(body: memoryview) -> ArchivedNotice:
    channel, [first, second] = _lines(body, 2)
    rolled, line = _entry(manifest.Rolled, first), _entry(manifest.Archived, second)
    if rolled.file != line.file:
        raise PeerError("it archives another file than it says was rolled")
    return ArchivedNotice(channel, rolled, line)


def _encode_caught_up(m: CaughtUpNotice) -> tuple[int, bytes]:
    return _CAUGHT_UP_T, _PLACE.pack(m.channel, m.position)


def _decode_caught_up(body: memoryview) -> CaughtUpNotice:
    channel, position = _PLACE.unpack(body)
    return CaughtUpNotice(channel, _position(position))


def _encode_ack(m: Ack) -> tuple[int, bytes]:
    fields = (m.channel, m.received, m.durable, m.replicated, m.merged, m.merged_at)
    return _ACK_T, _ACK.pack(*fields)


def _decode_ack(body: memoryview) -> Ack:
    channel, *positions = _ACK.unpack(body)
    return Ack(channel, *map(_position, positions))


def _encode_heartbeat(_m: Heartbeat) -> tuple[int, bytes]:
    return _HEARTBEAT_T, b""


def _decode_heartbeat(_body: memoryview) -> Heartbeat:
    return _HEARTBEAT


def _encode_refused(m: Refusal) -> tuple[int, bytes]:
    code = m.code.encode()
    words = m.words.encode(errors="replace")[:WORDS_BYTES_MAX].decode(errors="ignore").encode()
    return _REFUSED_T, _CODE.pack(m.channel, len(code)) + code + words


def _decode_refused(body: memoryview) -> Refusal:
    channel, length = _CODE.unpack_from(body)
    text = bytes(body[_CODE.size :])
    if length > len(text):
        raise PeerError("its refusal contradicts itself")
    return Refusal(channel, _text(text[:length]), _text(text[length:]))


_HEARTBEAT: Final = Heartbeat()
_LINE_MOST: Final = _CHANNEL.size + MANIFEST_LINE_BYTES_MAX
_ENCODERS: Final[dict[type, Callable[..., tuple[int, bytes]]]] = {
    Hello: _encode_hello,
    Open: _encode_open,
    Standing: _encode_standing,
    Data: _encode_data,
    RolledNotice: _encode_rolled,
    ArchivedNotice: _encode_archived,
    CaughtUpNotice: _encode_caught_up,
    Ack: _encode_ack,
    Heartbeat: _encode_heartbeat,
    Refusal: _encode_refused,
}
# type: (decode, least and most bytes of the body)
_DECODERS: Final[dict[int, tuple[Callable[[memoryview], Message], int, int]]] = {
    _HELLO_T: (_decode_hello, _HELLO.size, _HELLO.size + 2 * _NAME_BYTES_MAX),
    _OPEN_T: (_decode_open, _CHANNEL.size, _LINE_MOST),
    _STANDING_T: (_decode_standing, _STANDING.size, _STANDING.size),
    _DATA_T: (_decode_data, _PLACE.size + HEADER_BYTES, _PLACE.size + FRAME_BYTES_MAX),
    _ROLLED_T: (_decode_rolled, _CHANNEL.size, _LINE_MOST),
    _ARCHIVED_T: (_decode_archived, _CHANNEL.size, _LINE_MOST + MANIFEST_LINE_BYTES_MAX),
    _CAUGHT_UP_T: (_decode_caught_up, _PLACE.size, _PLACE.size),
    _ACK_T: (_decode_ack, _ACK.size, _ACK.size),
    _HEARTBEAT_T: (_decode_heartbeat, 0, 0),
    _REFUSED_T: (_decode_refused, _CODE.size, _CODE.size + _NAME_BYTES_MAX + WORDS_BYTES_MAX),
}
_UNKNOWN: Final = (_decode_heartbeat, 1, 0)  # no length is right

_EntryType = TypeVar("_EntryType", bound=manifest.Entry)


def _position(value: int) -> Position:
    if value >> 63:
        raise PeerError(f"{value} is no position")
    return Position(value)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise PeerError("a text is not UTF-8") from None


def _lines(body: memoryview, count: int) -> tuple[int, list[bytes]]:
    [channel] = _CHANNEL.unpack_from(body)
    *lines, rest = bytes(body[_CHANNEL.size :]).split(b"\n")
    if rest or len(lines) != count:
        raise PeerError(f"{count} whole manifest lines were to come")
    return channel, lines


def _entry(kind: type[_EntryType], line: bytes) -> _EntryType:
    try:
        entry = manifest.decode_entry(line)
    except (ManifestError, RecursionError) as error:
        raise PeerError(f"a manifest line: {error}") from None
    if not isinstance(entry, kind):
        raise PeerError("a manifest line speaks of something else")
    return entry
