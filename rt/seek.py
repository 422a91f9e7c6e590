"""Seek: finds a frame of a log by its index, and believes the frame only."""

from collections.abc import Callable

from rt.errors import FrameError
from rt.frame import HEADER_BYTES, parse_header
from rt.index import Index, IndexEntry
from rt.position import Position
from rt.walk import Walk


def walk_before(
    read: Callable[[int, int], bytes],
    index: Index,
    start: Position,
    is_past: Callable[[IndexEntry], bool],
    *,
    merged: bool,
) -> Walk:
    """Return a walk at the last indexed frame that is not past what is sought.

    An entry that does not lead to a frame of this place is as good as none: the walk then begins
    at the start of the file.

    Args:
        read: `read(length, offset)` of the log file.
        index: of that file; may be empty, stale or damaged.
        start: position of the file.
        is_past: monotone over the entries.
        merged: whether the log is a merged one.
    """
    count = index.count(is_past)
    if count:
        position = Position(start + index[count - 1].offset)
        try:
            if parse_header(read(HEADER_BYTES, position.offset)).position == position:
                return Walk(position, merged=merged)
        except FrameError:
            return Walk(start, merged=merged)
    return Walk(start, merged=merged)
