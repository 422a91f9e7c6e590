"""Bodies: the bodies of message frames, checked, with their payloads one after another."""

from struct import unpack_from
from typing import Any, Final, NamedTuple

import numpy as np

from rt.errors import FrameError
from rt.format.checksum import crc32
from rt.format.frame import (
    HEADER_BYTES,
    HEADERS_COLUMN,
    KEYS_COLUMN,
    Codec,
    Header,
    body_matches,
    unpack_body,
)
from rt.limits import KIB, READ_BYTES
from rt.log.files.disk import File
from rt.spark.reading.ahead import Ahead
from rt.spark.reading.storage import read_into

_LAST_BYTES: Final = 512 * KIB  # of the frame that fills a block, as it usually is, twice
# From here on a read for each frame costs less than copying the frame out of a larger read.
_LARGE_BYTES: Final = 32 * KIB
_NOTHING: Final = memoryview(bytearray())
INCOMPLETE: Final = "the frame is incomplete"
_WRONG_CRC: Final = "the body's CRC does not match"
_NOT_ADDING_UP: Final = "the columns do not add up to the body"


class Body(NamedTuple):
    """The body of a frame of messages, decompressed; its CRC was checked, and how long it is.

    Attributes:
        columns: publish times and offsets, as docs/LOG_FORMAT.md has them.
        block: holds the payloads, from `begin` up to `end`, between those of other frames; those
            of the frame that was read last, if it is a `Scratch`.
        keys: of all messages, one after another.
        headers: likewise.
    """

    columns: memoryview
    block: memoryview
    begin: int
    end: int
    keys: bytes | memoryview
    headers: bytes = b""


NO_BODY: Final = Body(_NOTHING, _NOTHING, 0, 0, _NOTHING)  # where headers alone are read


class Block:
    """Memory for the payloads that are decoded at once.

    They are read to where the record batch needs them, so that joining them copies nothing. A
    block that batches were made from belongs to those batches.
    """

    def __init__(self, size: int) -> None:
        """Hold `size` bytes, and the last frame that begins before they are full."""
        self._size = size + _LAST_BYTES
        self.memory = _NOTHING
        self.used = 0

    def renew(self) -> None:
        """Leave the memory to the batches that were made from it."""
        self.memory, self.used = _NOTHING, 0

    def room(self, length: int) -> memoryview:
        """Return room for so many bytes after what is used; `take` keeps it."""
        if self.used + length > len(self.memory):
            made: Any = np.empty(max(length, self._size), "u1")  # its memory is not touched yet
            self.memory = memoryview(made)
            self.used = 0
        return self.memory[self.used : self.used + length]

    def take(self, length: int) -> int:
        """Keep this many bytes of the room that was returned last; return where they begin."""
        begin = self.used
        self.used += length
        return begin


class Scratch(Block):
    """Memory for payloads that are checked but not wanted; each frame overwrites the one before."""

    def __init__(self) -> None:
        """Hold no more than one frame, which stays in the processor's cache."""
        super().__init__(0)

    def take(self, length: int) -> int:  # noqa: ARG002 - nothing is kept
        """Leave the room to the next frame."""
        return 0


class BodyReader:
    """Reads the bodies of one file's frames, each of them once."""

    def __init__(
        self, file: File, ahead: Ahead, block: Block, *, columns_suffice: bool = False
    ) -> None:
        """Read payloads into `block`.

        Args:
            file: where the frames are.
            ahead: reads the headers of the same file.
            block: room for the payloads.
            columns_suffice: whether to read only the columns of uncompressed frames. The CRC of
                a body covers its payloads too, so nothing is compared with it then.
        """
        self._file = file
        self._ahead = ahead
        self._block = block
        self._columns_suffice = columns_suffice

    def read(self, header: Header, offset: int) -> Body:
        """Read the body of the frame of messages at `offset`, whose header was checked.

        Raises:
            FrameError: the body is not the one the header was sealed for, or contradicts itself.
        """
        length = _columns_bytes(header)
        if length > header.raw_length:
            raise FrameError("the columns are longer than the body")
        if self._columns_suffice and header.codec == Codec.NONE:
            return self._read_columns(header, offset, length)
        if header.codec == Codec.NONE and header.length >= _LARGE_BYTES:
            columns, data = self._read_to_place(header, offset, length)
        else:
            raw = memoryview(unpack_body(header, self.stored(header, offset)))
            columns, data = raw[:length], self._block.room(len(raw) - length)
            data[:] = raw[length:]
        return self._body(header, columns, data)

    def stored(self, header: Header, offset: int) -> memoryview:
        """Read the body of any frame as it is on disk; `FrameError` as `read`."""
        size = header.size
        frame = self._ahead.read(size, offset, READ_BYTES)
        if len(frame) < size:
            raise FrameError(INCOMPLETE)
        body = frame[HEADER_BYTES : HEADER_BYTES + header.length]
        if not body_matches(header, body):
            raise FrameError(_WRONG_CRC)
        _check_padding(frame[HEADER_BYTES + header.length :])
        return body

    def _read_columns(self, header: Header, offset: int, length: int) -> Body:
        read = self._file.pread if header.length >= _LARGE_BYTES else self._ahead_read
        columns = memoryview(read(length, offset + HEADER_BYTES))
        if len(columns) < length:
            raise FrameError(INCOMPLETE)
        size, *others = _sizes(header, columns)
        if length + size + sum(others) != header.raw_length:
            raise FrameError(_NOT_ADDING_UP)
        return Body(columns, _NOTHING, 0, size, _NOTHING)

    def _ahead_read(self, length: int, offset: int) -> bytes:
        return bytes(self._ahead.read(length, offset, READ_BYTES))  # a slice would keep it all

    def _read_to_place(
        self, header: Header, offset: int, length: int
    ) -> tuple[memoryview, memoryview]:
        columns = memoryview(bytearray(length))
        padding = bytearray(header.size - HEADER_BYTES - header.length)
        data = self._block.room(header.length - length)
        got = read_into(self._file, (columns, data, padding), offset + HEADER_BYTES)
        if got < header.size - HEADER_BYTES:
            raise FrameError(INCOMPLETE)
        if crc32(data, crc32(columns)) != header.body_crc:
            raise FrameError(_WRONG_CRC)
        _check_padding(padding)
        return columns, data

    def _body(self, header: Header, columns: memoryview, data: memoryview) -> Body:
        """Check that the last offsets reach the end, and keep the room of the payloads."""
        block = self._block
        size, keys_size, headers_size = _sizes(header, columns)
        if size + keys_size + headers_size != len(data):
            raise FrameError(_NOT_ADDING_UP)
        # copied: the next payloads will overwrite them
        keys, headers = bytes(data[size : size + keys_size]), bytes(data[size + keys_size :])
        begin = block.take(size)
        return Body(columns, block.memory, begin, begin + size, keys, headers)


def _columns_bytes(header: Header) -> int:
    """The bytes of a time for each message, and of the offsets of what it has."""
    if header.columns & HEADERS_COLUMN:
        return headers_begin(header) + 4 * (header.messages + 1)
    return headers_begin(header)


def headers_begin(header: Header) -> int:
    """Return where the header offsets begin among the columns, in a frame that has them."""
    count = header.messages
    return 12 * count + 4 + (4 * (count + 1) if header.columns & KEYS_COLUMN else 0)


def _sizes(header: Header, columns: memoryview) -> tuple[int, int, int]:
    """The bytes of all payloads, of all keys and of all headers, as the columns have them."""
    count, keys, headers = header.messages, 0, 0
    if header.columns & KEYS_COLUMN:
        keys = _last_offset(columns, 12 * count + 4, count)
    if header.columns & HEADERS_COLUMN:
        headers = _last_offset(columns, headers_begin(header), count)
    return _last_offset(columns, 8 * count, count), keys, headers


def _last_offset(columns: memoryview, begin: int, count: int) -> int:
    """The last of an offsets column, whose first must be 0."""
    if unpack_from("<I", columns, begin)[0]:
        raise FrameError("the offsets of the messages go back")
    last: int = unpack_from("<I", columns, begin + 4 * count)[0]
    return last


def _check_padding(padding: bytearray | memoryview) -> None:
    if padding and any(padding):
        raise FrameError("the padding is not zero")
