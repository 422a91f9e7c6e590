"""RecentFrames: the last frames appended to a log, in memory, so they need not be read back."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from rt.errors import Refused
from rt.format.checksum import crc32
from rt.format.frame import HEADER_BYTES, Header
from rt.limits import KIB, MIB
from rt.position import START, Position

_SPANS_MAX: Final = 16  # spans not compared yet; a large append or a roll begins another


class Heading(NamedTuple):
    """A frame's header, parsed and raw."""

    header: Header
    raw: bytes


class Appended(NamedTuple):
    """Appended: consecutive whole frames of one file, from one append or several.

    Attributes:
        position: where the first frame begins in this log.
        end: where the last frame ends.
        headings: the frames' headers; in a merged log, they have positions in the sessions' logs.
        data: the frames' bytes.
    """

    position: Position
    end: Position
    headings: Sequence[Heading]
    data: bytes


# Faster than the constructor of a named tuple, which is a Python function; called for each frame.
_new_heading: Final[Callable[[tuple[Header, bytes]], Heading]] = partial(tuple.__new__, Heading)
_new_appended: Final[Callable[[tuple[Position, Position, list[Heading], bytes]], Appended]] = (
    partial(tuple.__new__, Appended)
)


class UsedSpan(NamedTuple):
    """UsedSpan: a span of the log whose bytes were taken from memory instead of the file.

    The next sync checks that the file has the same bytes.

    Attributes:
        begin: where the span begins.
        end: where it ends.
        crc: the CRC-32 of the bytes that were taken.
    """

    begin: Position
    end: Position
    crc: int


class FrameBounds(NamedTuple):
    """Limits, in bytes, on the recent frames that a process keeps in memory.

    Attributes:
        log: the limit for one log; older frames are read from the log's file.
        append: the frames of one append are kept only if their total is at most this: the 16 KiB
            that an instruction may carry, and a range frame.
        all: the limit for all logs of a process together, enough for 256 logs at their limit.
        step: memory is requested from the process in steps of this size, since a request for each
            message would cost some 10 us.
        heading: memory that a parsed header takes in addition to its bytes; a small frame takes
            little else.
    """

    log: int = 64 * KIB
    append: int = 20 * KIB
    all: int = 16 * MIB
    step: int = MIB
    heading: int = 750


class FrameMemory:
    """FrameMemory: the memory of the recent frames of all logs of a process.

    Threads: any; `lock` guards its fields, and those of every `RecentFrames` that shares it.
    """

    def __init__(
        self,
        take: Callable[[int], None] = lambda _count: None,
        give_back: Callable[[int], None] = lambda _count: None,
        bounds: FrameBounds = FrameBounds(),  # noqa: B008 - it never changes
    ) -> None:
        """Start empty.

        Args:
            take: takes a number of bytes from the process's memory, or raises `Refused`.
            give_back: releases a number of bytes that were taken.
            bounds: how much may stay in memory.
        """
        self.bounds = bounds
        self.lock = threading.Lock()
        self.held = 0  # bytes of frames, and of their headings
        self.taken = 0
        self._take = take
        self._give_back = give_back

    def has_room(self) -> bool:
        """Take one more step of memory; False if none is free. The caller holds the lock."""
        if self.taken + self.bounds.step > self.bounds.all:
            return False
        try:
            self._take(self.bounds.step)
        except Refused:
            return False
        self.taken += self.bounds.step
        return True

    def shrink(self) -> None:
        """Release unneeded steps of memory, keeping one spare; the caller holds the lock."""
        while self.taken > self.held + 2 * self.bounds.step:
            self.taken -= self.bounds.step
            self._give_back(self.bounds.step)


class RecentFrames:
    """RecentFrames: the last frames of a log, consecutive, as they were checked and appended.

    The file has the same bytes, so any frame may be missing here. A copy's frames are dropped once
    they are merged or synced, and all are dropped when the log is closed.
    """

    __slots__ = ("_left_to", "_memory", "_parts", "used")

    def __init__(self, memory: FrameMemory) -> None:
        self._memory = memory
        self._parts: tuple[Appended, ...] = ()
        self._left_to = START  # frames before this are needed no more
        self.used: tuple[UsedSpan, ...] = ()  # not compared with the file yet

    @property
    def size(self) -> int:
        """Bytes in memory."""
        parts = self._parts
        return parts[-1].end - parts[0].position if parts else 0

    def keep(
        self,
        position: Position,
        end: Position,
        parts: Sequence[bytes | memoryview],
        headers: Sequence[Header],
    ) -> None:
        """Keep frames that were appended, unless they are many or memory is short.

        Args:
            position: where the first frame begins in this log.
            end: where the last frame ends.
            parts: the frames' bytes, split anywhere.
            headers: the frames' headers, checked.
        """
        memory, length = self._memory, end - position
        with memory.lock:
            known = self._parts
            if known and known[-1].end != position:
                self._leave(len(known))
            if end <= self._left_to:
                return  # it was merged before it came
            while self._parts and end - self._parts[0].position > memory.bounds.log:
                self._leave(1)
            is_much = length > memory.bounds.append or len(self.used) > _SPANS_MAX
            cost = length + memory.bounds.heading * len(headers)
            if is_much or (memory.held + cost > memory.taken and not memory.has_room()):
                self._leave(len(self._parts))
                return
            data, headings, at = b"".join(parts), list[Heading](), 0
            for header in headers:
                headings.append(_new_heading((header, data[at : at + HEADER_BYTES])))
                at += header.size
            self._parts += (_new_appended((position, end, headings, data)),)
            memory.held += cost

    def between(self, first: Position, end: Position) -> Appended | None:
        """Return the frames from `first` up to `end` at most; None if they are not in memory."""
        parts = self._parts  # replaced as a whole
        if not parts or not parts[0].position <= first < end:
            return None
        found, place = list[Appended](), first
        for each in parts:
            if each.position == place and each.end <= end:
                found.append(each)
                place = each.end
        if len(found) < 2:
            return found[0] if found else None
        headings = [heading for each in found for heading in each.headings]
        return Appended(first, place, headings, b"".join([each.data for each in found]))

    def use(self, frames: Appended) -> bool:
        """Record the use of frames in memory, so that the next sync compares them with the file.

        Returns False if the frames were dropped meanwhile: the sync that should compare them may be
        over.
        """
        begin, end, _, data = frames
        with self._memory.lock:
            if not self._parts or begin < self._parts[0].position:
                return False
            *before, last = self.used or (UsedSpan(begin, begin, 0),)
            if last.end == begin:
                self.used = (*before, UsedSpan(last.begin, end, crc32(data, last.crc)))
            elif last.end < end:
                self.used = (*self.used, UsedSpan(begin, end, crc32(data)))
        return True

    def take_used(self) -> tuple[UsedSpan, ...]:
        """Return the spans that the file has to be compared with, and forget them."""
        with self._memory.lock:
            spans, self.used = self.used, ()
        return spans

    def not_compared(self, spans: Sequence[UsedSpan]) -> None:
        """Put back spans taken by `take_used` that differ, or could not be compared."""
        with self._memory.lock:
            self.used = (*spans, *self.used)

    def release(self, end: Position) -> None:
        """Drop frames that end at or before `end`, both now and if they are added later."""
        with self._memory.lock:
            self._left_to = max(self._left_to, end)
            count = 0
            for each in self._parts:
                if each.end > end:
                    break
                count += 1
            if count:
                self._leave(count)

    def clear(self) -> None:
        """Drop all frames."""
        with self._memory.lock:
            if self._parts:
                self._leave(len(self._parts))

    def _leave(self, count: int) -> None:
        """Drop the oldest frames; the caller holds the lock."""
        left, self._parts = self._parts[:count], self._parts[count:]
        if left:
            memory = self._memory
            memory.held -= left[-1].end - left[0].position
            for each in left:
                memory.held -= memory.bounds.heading * len(each.headings)
            if memory.taken > memory.held + 2 * memory.bounds.step:
                memory.shrink()
