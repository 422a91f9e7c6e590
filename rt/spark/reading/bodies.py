"""Bodies: reads and checks the bodies of message frames, and places their payloads side by side."""

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
from rt.spark.reading.storage import Ahead, read_into

_LAST_BYTES: Final = 512 * KIB  # room for the last frame of a block, twice its usual size
# From this size on, a read for each frame costs less than copying it out of a larger read.
_LARGE_BYTES: Final = 32 * KIB
_NOTHING: Final = memoryview(bytearray())
INCOMPLETE: Final = "the frame is incomplete"
_WRONG_CRC: Final = "the body's CRC does not match"
_NOT_ADDING_UP: Final = "the columns do not add up to the body"


class Body(NamedTuple):
    """The decompressed body of a messages frame; its CRC and its length were checked."""

    columns: memoryview  # publish times and offsets, as docs/LOG_FORMAT.md has them
    block: memoryview  # holds payloads of several frames; this one's are from `begin` up to `end`
    begin: int
    end: int
    keys: bytes | memoryview  # the keys of all messages, one after another
    headers: bytes = b""  # the headers of all messages, one after another


NO_BODY: Final = Body(_NOTHING, _NOTHING, 0, 0, _NOTHING)  # used if only headers are read


class Block:
    """Memory for the payloads of frames that are decoded together.

    Payloads are read directly into the memory, and record batches are made from it without a copy.
    After that, the memory belongs to the batches, and must not be written.
    """

    def __init__(self, size: int, *, keeps: bool = True) -> None:
        """Make a block for `size` bytes and the rest of the last frame.

        If `keeps` is false, payloads are only checked: each frame overwrites the frame before, and
        the memory stays in the processor's cache.
        """
        self._size = size + _LAST_BYTES
        self._keeps = keeps
        self.memory = _NOTHING
        self.used = 0

    def renew(self) -> None:
        """Use new memory from now on; the old memory stays with the batches made from it."""
        self.memory, self.used = _NOTHING, 0

    def room(self, length: int) -> memoryview:
        """Return `length` bytes of free memory to write to; call `mark_used` once they are used."""
        if self.used + length > len(self.memory):
            made: Any = np.empty(max(length, self._size), "u1")  # the memory is not touched yet
            self.memory = memoryview(made)
            self.used = 0
        return self.memory[self.used : self.used + length]

    def mark_used(self, length: int) -> int:
        """Mark the first `length` bytes that `room` last returned as used; return their offset."""
        begin = self.used
        self.used += length * self._keeps
        return begin


class BodyReader:
    """Reads the bodies of one file's frames, each once."""

    def __init__(
        self, file: File, ahead: Ahead, block: Block, *, columns_suffice: bool = False
    ) -> None:
        """Prepare to read payloads into `block`, and headers and small frames through `ahead`.

        If `columns_suffice`, only the columns of uncompressed frames are read. Their CRCs are then
        not checked, since a CRC covers the payloads too.
        """
        self._file = file
        self._ahead = ahead
        self._block = block
        self._columns_suffice = columns_suffice

    def read(self, header: Header, offset: int) -> Body:
        """Read the body of the messages frame at `offset`, whose header was checked.

        Raises:
            FrameError: the body does not match its header, or contradicts itself.
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
        """Read and check any frame's body, as stored on disk; `FrameError` if it is damaged."""
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
        # a copy, since a slice would keep the whole buffer
        return bytes(self._ahead.read(length, offset, READ_BYTES))

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
        """Return the body; its payloads, at the beginning of `data`, stay in the block.

        Raises:
            FrameError: the offsets do not add up to the length of `data`.
        """
        block = self._block
        size, keys_size, headers_size = _sizes(header, columns)
        if size + keys_size + headers_size != len(data):
            raise FrameError(_NOT_ADDING_UP)
        # copied, because the next payloads overwrite them
        keys, headers = bytes(data[size : size + keys_size]), bytes(data[size + keys_size :])
        begin = block.mark_used(size)
        return Body(columns, block.memory, begin, begin + size, keys, headers)


def _columns_bytes(header: Header) -> int:
    """Return the total length of a frame's fixed-size columns: times and offsets."""
    if header.columns & HEADERS_COLUMN:
        return headers_begin(header) + 4 * (header.messages + 1)
    return headers_begin(header)


def headers_begin(header: Header) -> int:
    """Return where the header offsets of a frame begin in its columns, if it has headers."""
    count = header.messages
    return 12 * count + 4 + (4 * (count + 1) if header.columns & KEYS_COLUMN else 0)


def _sizes(header: Header, columns: memoryview) -> tuple[int, int, int]:
    """Return the total length of a frame's payloads, of its keys and of its headers."""
    count, keys, headers = header.messages, 0, 0
    if header.columns & KEYS_COLUMN:
        keys = _last_offset(columns, 12 * count + 4, count)
    if header.columns & HEADERS_COLUMN:
        headers = _last_offset(columns, headers_begin(header), count)
    return _last_offset(columns, 8 * count, count), keys, headers


def _last_offset(columns: memoryview, begin: int, count: int) -> int:
    """Return the last of the `count` + 1 offsets at `begin`; `FrameError` if the first is not 0."""
    if unpack_from("<I", columns, begin)[0]:
        raise FrameError("the offsets of the messages go back")
    last: int = unpack_from("<I", columns, begin + 4 * count)[0]
    return last


def _check_padding(padding: bytearray | memoryview) -> None:
    if padding and any(padding):
        raise FrameError("the padding is not zero")
