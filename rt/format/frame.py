"""Frame: the unit of writing, checksumming, shipping and merging; see docs/LOG_FORMAT.md."""

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache, partial
from typing import Final, NamedTuple

import zstandard

from rt.errors import FrameError
from rt.format.checksum import crc32
from rt.limits import BODY_BYTES_MAX, ZSTD_WINDOW_BYTES_MAX
from rt.position import Position

MAGIC: Final = b"RTF\x01"  # the last byte is the format version
HEADER: Final = struct.Struct("<4sIQQqQIIIIBBBxI")
HEADER_BYTES: Final = HEADER.size
_SEALED: Final = struct.Struct("<QQqQIIIIBBBxI")  # what the header's CRC covers
_RESERVED_AT: Final = 59  # offset of a byte that is 0 in this version
NUMBER_END: Final = 1 << 63  # upper bound of message numbers, which fit an i64

KEYS_COLUMN: Final = 1  # bit 0 of `columns`: key offsets and key bytes follow
HEADERS_COLUMN: Final = 2  # bit 1: header offsets and header bytes follow (`rt.format.headers`)
_COLUMNS: Final = KEYS_COLUMN | HEADERS_COLUMN


class FrameKind(IntEnum):
    """What the body of a frame holds."""

    MESSAGES = 0
    RANGE = 1
    CONTROL = 2


class Codec(IntEnum):
    """How the body of a frame is stored."""

    NONE = 0
    ZSTD = 1


# Plain integers: looking up an enum member takes 0.1 us, and each header needs six.
_MESSAGES, _CONTROL, _KIND_MAX = (
    int(FrameKind.MESSAGES),
    int(FrameKind.CONTROL),
    int(max(FrameKind)),
)
_PLAIN, _CODEC_MAX = int(Codec.NONE), int(max(Codec))


class Header(NamedTuple):
    """The 64 bytes before every body; positions, sizes and times as in LOG_FORMAT.md."""

    position: int
    sequence: int
    time_ns: int
    durable: int
    messages: int
    length: int
    raw_length: int
    body_crc: int
    kind: int
    codec: int
    columns: int
    session_tag: int  # identifies the session that wrote the frame

    @property
    def size(self) -> int:
        """Total bytes of the frame in a file: header, body and padding.

        It is a multiple of 8. The message at index i has the frame's position plus i, so a frame
        has at least as many bytes as messages.
        """
        end = HEADER_BYTES + self.length
        if self.messages > end and self.kind == _MESSAGES:
            end = self.messages
        return (end + 7) & ~7


_new_header: Final[Callable[[list[int]], Header]] = partial(tuple.__new__, Header)


class Encoded(NamedTuple):
    """A frame ready to be written."""

    header: Header
    parts: tuple[bytes, bytes, bytes]  # header, body, padding


@lru_cache(1024)  # cache as many sessions as a stream usually has; called for each frame
def session_tag(session: str) -> int:
    """Return the CRC-32 of a session's name.

    Sessions with the same traffic have frames with equal positions and sizes. The tag reveals a
    block of one session that has ended up in the log of another.
    """
    return crc32(session.encode())


def parse_header(data: bytes | bytearray | memoryview, offset: int = 0) -> Header:
    """Decode and check the header at `offset`; `FrameError` names the first fault found."""
    if len(data) - offset < HEADER_BYTES:
        raise FrameError("the header is incomplete")
    magic, seal, *fields = HEADER.unpack_from(data, offset)
    if magic != MAGIC:
        raise FrameError("no frame starts here" if magic[:3] != MAGIC[:3] else "unknown version")
    if crc32(data[offset + 8 : offset + HEADER_BYTES]) != seal:
        raise FrameError("the header's CRC does not match")
    # Local variables are faster than fields: this runs for each frame on each hop.
    _, sequence, _, _, messages, length, raw_length, _, kind, codec, columns, _ = fields
    if data[offset + _RESERVED_AT] or kind > _KIND_MAX or codec > _CODEC_MAX:
        raise FrameError("the header asks for something that this version does not know")
    if length > BODY_BYTES_MAX or raw_length > BODY_BYTES_MAX:
        raise FrameError(f"the body is longer than {BODY_BYTES_MAX} bytes")
    if columns & ~_COLUMNS:
        raise FrameError("the header names a column this version does not know")
    if codec == _PLAIN and length != raw_length:
        raise FrameError("the header contradicts itself: not compressed, yet two lengths")
    if kind == _MESSAGES and not 0 < messages <= raw_length // 12:
        # each message takes at least 12 bytes of columns: its time and its end offset
        raise FrameError("the header's message count cannot be")
    if sequence + messages > NUMBER_END or (kind == _CONTROL and messages):
        raise FrameError("the header numbers messages that there cannot be")
    return _new_header(fields)


def position_in(header: bytes) -> Position:
    """Return the position in a raw header, which must already have been checked."""
    return Position(int.from_bytes(header[8:16], "little"))


def seal_header(header: Header) -> bytes:
    """Encode a header as 64 bytes; `FrameError` if a field does not fit."""
    try:
        sealed = _SEALED.pack(*header)
    except struct.error as error:
        raise FrameError(f"a header field is out of its bounds: {error}") from None
    return b"".join((MAGIC, crc32(sealed).to_bytes(4, "little"), sealed))


def body_matches(header: Header, body: bytes | memoryview) -> bool:
    """Whether `body`, as on disk and without padding, has the header's length and CRC."""
    return len(body) == header.length and crc32(body) == header.body_crc


def encode_frame(
    body: bytes,
    *,
    position: int,
    sequence: int,
    time_ns: int,
    messages: int,
    kind: FrameKind = FrameKind.MESSAGES,
    durable: int = 0,
    columns: int = 0,
    compressor: zstandard.ZstdCompressor | None = None,
    session_tag: int = 0,
) -> Encoded:
    """Encode a frame for its position, in parts ready for one `writev`.

    The compressed body is used only if it is shorter. `FrameError` if the body is too long, or if
    message numbers would exceed 63 bits.
    """
    if sequence + messages > NUMBER_END:
        raise FrameError(f"{messages} messages from {sequence} on have numbers beyond 63 bits")
    raw_length, codec = len(body), Codec.NONE
    if raw_length > BODY_BYTES_MAX:
        raise FrameError(f"the body is longer than {BODY_BYTES_MAX} bytes")
    if compressor is not None and len(packed := compressor.compress(body)) < raw_length:
        body, codec = packed, Codec.ZSTD
    header = Header(
        position, sequence, time_ns, durable, messages, len(body), raw_length,
        crc32(body), kind, codec, columns, session_tag,
    )  # fmt: skip
    padding = bytes(header.size - HEADER_BYTES - len(body))
    return Encoded(header, (seal_header(header), body, padding))


def unpack_body(header: Header, body: bytes | memoryview) -> bytes | memoryview:
    """Return a body, decompressed if it is compressed; the caller has checked its CRC.

    `FrameError` unless a compressed body yields exactly `raw_length` bytes; never allocates more.
    """
    if header.codec == Codec.NONE:
        return body
    return _decompress(body, header.raw_length)


def _decompress(body: bytes | memoryview, raw_length: int) -> bytes:
    try:
        stated = zstandard.get_frame_parameters(body)
        if stated.content_size != raw_length or stated.window_size > ZSTD_WINDOW_BYTES_MAX:
            raise FrameError("the compressed body does not state the size its header does")
        raw = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX).decompress(
            body, max_output_size=raw_length, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise FrameError(f"the body does not decompress: {error}") from None
    if len(raw) != raw_length:
        raise FrameError("the compressed body is not as long as its header says")
    return raw
