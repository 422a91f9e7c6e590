"""Scan: splits a log file into whole frames, reading large blocks."""

from collections.abc import Callable
from typing import NamedTuple

from rt.errors import FrameError
from rt.format.frame import HEADER_BYTES, FrameKind, Header, body_matches, parse_header
from rt.format.walk import Walk
from rt.limits import READ_BYTES
from rt.position import Position


class Frame(NamedTuple):
    """A whole frame: its header, its body as on disk, and its position in the log being read."""

    header: Header
    body: memoryview
    position: Position


class Scan:
    """Reads one frame after another, checking header, position and body before returning it."""

    __slots__ = ("_base", "_data", "_read", "_view", "walk")

    def __init__(self, read: Callable[[int, int], bytes], walk: Walk) -> None:
        """Start at `walk.position`.

        Args:
            read: `read(length, offset)` of the file; returns fewer bytes at its end.
            walk: at a frame boundary of that file.
        """
        self._read = read
        self.walk = walk
        self._data = b""
        self._view = memoryview(b"")
        self._base = 0

    def next(self, end: int) -> Frame | None:
        """Return the next frame if it ends at or before the offset `end`, otherwise None.

        Raises:
            FrameError: the bytes at `walk.position` are not a frame of this log; the walk stays
                there.
        """
        position = self.walk.position
        offset = position.offset
        if end - offset < HEADER_BYTES or not self._read_ahead(offset, HEADER_BYTES, end):
            return None
        header = parse_header(self._data, offset - self._base)
        size = header.size
        if end - offset < size or not self._read_ahead(offset, size, end):
            return None
        start = offset - self._base + HEADER_BYTES
        body = self._view[start : start + header.length]
        if not body_matches(header, body):
            raise FrameError("the body's CRC does not match")
        padding = self._view[start + header.length : start + size - HEADER_BYTES]
        if padding and any(padding):
            raise FrameError("the padding is not zero")
        self.walk.step(header, body)
        return Frame(header, body, position)

    def forget(self) -> None:
        """Discard what was read ahead, because it may have been rewritten since."""
        self._data = b""

    def _read_ahead(self, offset: int, length: int, end: int) -> bool:
        start = offset - self._base
        if start < 0 or start + length > len(self._data):
            # stop at the end: allocating a large buffer costs more than reading a small frame
            self._data = self._read(min(max(length, READ_BYTES), end - offset), offset)
            self._view = memoryview(self._data)
            self._base = offset
            return len(self._data) >= length
        return True


def next_header(
    read: Callable[[int, int], bytes | memoryview], walk: Walk, end: int
) -> Header | None:
    """Step `walk` over the next frame and return its header; None if the frame ends after `end`.

    For callers that trust the body because it was checked when it was written. This takes one small
    read per frame and reads no payload. Raises `FrameError` like `Scan.next`.
    """
    offset = walk.position.offset
    if end - offset < HEADER_BYTES:
        return None
    data = read(HEADER_BYTES, offset)
    header = parse_header(data)
    if end - offset < header.size:
        return None
    body = read(header.length, offset + HEADER_BYTES) if header.kind == FrameKind.RANGE else b""
    walk.step(header, body)
    return header
