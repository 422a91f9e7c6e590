"""Seek: finds a frame through the index, and checks that frame."""

from collections.abc import Callable

from rt.errors import FrameError
from rt.format.frame import HEADER_BYTES, FrameKind, Header, parse_header
from rt.format.index import Index, IndexEntry
from rt.format.walk import Walk
from rt.position import FILE_BYTES_MAX, Position


def walk_before(
    read: Callable[[int, int], bytes],
    index: Index,
    start: Position,
    is_past: Callable[[IndexEntry], bool],
    *,
    merged: bool,
    session: str = "",
) -> Walk:
    """Return a walk that begins before a wanted frame, as near as the index allows.

    The walk begins at the last indexed frame that is not past the wanted one. If the index entry of
    that frame does not match the frame, the walk begins at the start of the file: an entry with a
    wrong time or number could point beyond the wanted frame.

    Args:
        read: `read(length, offset)` of the log file.
        index: the file's index; it may be empty, stale or damaged.
        start: the file's start position.
        is_past: returns whether an entry is past the wanted frame; monotone over the entries.
        merged: whether the log is a merged one.
        session: the session's name, for a session's log.
    """
    count = index.count(is_past)
    if count:
        entry = index[count - 1]
        header = _header_at(read, entry.offset)
        kind = FrameKind.RANGE if merged else FrameKind.MESSAGES
        if header is not None and header.kind == kind and _fits(entry, header, start):
            return Walk(Position(header.position), merged=merged, session=session)
    return Walk(start, merged=merged, session=session)


def _header_at(read: Callable[[int, int], bytes], offset: int) -> Header | None:
    if offset > FILE_BYTES_MAX:
        return None
    try:
        return parse_header(read(HEADER_BYTES, offset))
    except FrameError:
        return None


def _fits(entry: IndexEntry, header: Header, start: Position) -> bool:
    told = (start + entry.offset, entry.time_ns, entry.number)
    return told == (header.position, header.time_ns, header.sequence)
