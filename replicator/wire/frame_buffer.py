"""FrameBuffer: reads whole frames from a file into the message that carries them."""

import os
from mmap import mmap
from typing import Final

from replicator.wire.codec import DATA_HEAD_BYTES, data_head, put_data_head
from replicator.wire.large_messages import HeldMemory
from rt.errors import FrameError, Refused
from rt.format.frame import HEADER_BYTES, FrameKind, parse_header
from rt.limits import KIB, READ_BYTES
from rt.log.files.disk import File, OsFile
from rt.log.notify.in_process_notify import WrittenFrame
from rt.log.write.recent_frames import Appended
from rt.position import FILE_BYTES_MAX, Position
from rt.traffic import Traffic

_NOTHING: Final = memoryview(b"")
# What an idle connection keeps: small updates fit, and 512 connections have 16 MiB.
_RESTING_BYTES: Final = 32 * KIB
_MESSAGES: Final = int(FrameKind.MESSAGES)  # looking up a member takes 0.1 us


class FrameBuffer:
    """FrameBuffer: memory to read frames into, with room before them for the message head.

    A connection has one buffer, since what was read is sent before the next read begins. The buffer
    is large only during a backlog, since most connections are idle.
    """

    __slots__ = ("_memory", "_size", "_taken", "_traffic", "_view")

    def __init__(
        self,
        size: int = READ_BYTES,
        traffic: Traffic | None = None,
        memory: HeldMemory | None = None,
    ) -> None:
        """Hold frames of up to `size` bytes in all; a larger single frame gets its own memory.

        `traffic` counts the frames read. `memory` is the budget for a large buffer; once it is used
        up, the buffer stays small.
        """
        self._traffic = traffic or Traffic()
        self._size = size
        self._memory = memory
        self._taken = 0  # bytes taken from it
        self._resize(min(size, _RESTING_BYTES))

    @property
    def is_large(self) -> bool:
        """Whether this buffer has grown for a backlog since `rest`."""
        return len(self._view) > DATA_HEAD_BYTES + _RESTING_BYTES

    def rest(self) -> None:
        """Release the memory taken for a backlog."""
        if self.is_large:
            self._resize(_RESTING_BYTES)
        if self._taken and self._memory is not None:
            self._memory.give_back(self._taken)
            self._taken = 0

    def _grow(self, wanted: int) -> None:
        """Grow to the full size if `wanted` bytes do not fit, unless the budget is used up."""
        if len(self._view) - DATA_HEAD_BYTES >= min(wanted, self._size):
            return
        if self._memory is not None:
            try:
                self._memory.take(self._size)
            except Refused:
                return  # connections of the same name use the memory; take smaller steps
            self._taken = self._size
        self._resize(self._size)

    def _resize(self, size: int) -> None:
        # Large memory is mapped: an allocator might keep freed memory for this thread.
        length = DATA_HEAD_BYTES + size
        self._view = memoryview(bytearray(length) if size <= _RESTING_BYTES else mmap(-1, length))

    def data_message(self, channel: int, file: File, start: Position, limit: int) -> memoryview:
        """Return Data with the whole frames of `file` from `start` on; empty if there are none.

        No frame extends past the offset `limit`.
        """
        offset = start.offset
        self._grow(limit - offset)
        data = self._view
        size = len(data) - DATA_HEAD_BYTES
        length = _read(file, data, offset, limit)
        whole, needed, frames, messages = _whole(data, length)
        if whole == 0 and size < needed <= limit - offset:
            data = memoryview(bytearray(DATA_HEAD_BYTES + needed))
            length = _read(file, data, offset, offset + needed)
            whole, _, frames, messages = _whole(data, length)
        if whole == 0:
            return _NOTHING
        put_data_head(data, channel, start, whole)
        self._traffic.add(whole, messages, frames)
        return data[: DATA_HEAD_BYTES + whole]

    def recent_message(self, channel: int, frames: Appended) -> bytes:
        """Return Data with consecutive frames that are in memory."""
        messages, data = 0, frames.data
        for header, _ in frames.headings:
            if header.kind == _MESSAGES:
                messages += header.messages
        self._traffic.add(len(data), messages, len(frames.headings))
        return data_head(channel, frames.position, len(data)) + data

    def frame_message(self, channel: int, frame: WrittenFrame) -> bytes:
        """Return Data with a frame whose bytes are in memory."""
        self._traffic.add(len(frame.data), frame.messages, frame.frames)
        return data_head(channel, frame.position, len(frame.data)) + frame.data


def _read(file: File, view: memoryview, offset: int, limit: int) -> int:
    target = view[DATA_HEAD_BYTES : DATA_HEAD_BYTES + min(limit, FILE_BYTES_MAX) - offset]
    if isinstance(file, OsFile):
        return os.preadv(file.fileno(), [target], offset)
    data = file.pread(len(target), offset)
    target[: len(data)] = data
    return len(data)


def _whole(data: memoryview, length: int) -> tuple[int, int, int, int]:
    """Measure the whole frames in `data`, after the room for a message head.

    Returns:
        How many bytes these frames have; the size of the first frame, whole or not; how many whole
        frames there are, and how many messages they hold.
    """
    end, offset, needed, frames, messages = DATA_HEAD_BYTES + length, DATA_HEAD_BYTES, 0, 0, 0
    try:
        while end - offset >= HEADER_BYTES:
            header = parse_header(data, offset)
            size = header.size
            needed = needed or size
            if size > end - offset:
                break
            offset += size
            frames += 1
            messages += header.messages if header.kind == _MESSAGES else 0
    except FrameError:
        pass  # the next read begins there, and reports it
    return offset - DATA_HEAD_BYTES, needed, frames, messages
