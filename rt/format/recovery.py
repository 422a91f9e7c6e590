"""Recovery: the only function that decides which bytes of a log file are whole, torn or bad."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rt.errors import FrameError
from rt.format.frame import MAGIC, FrameKind, Header, parse_header
from rt.format.scan import Scan
from rt.format.walk import Walk
from rt.limits import READ_BYTES
from rt.position import Position


@dataclass(frozen=True, slots=True)
class Clean:
    """Verdict: every byte belongs to a whole frame; the file ends at `end`."""

    end: Position


@dataclass(frozen=True, slots=True)
class Torn:
    """Verdict: the whole frames end at `at`, and nothing proves that the rest was ever durable."""

    at: Position
    reason: str
    followed: bool = False  # in a merged log: a whole range follows


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Verdict: the frame at `at` was once whole and durable, and no longer is."""

    at: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """Verdict: the file is empty because it was archived, according to the manifest."""


Verdict = Clean | Torn | Corrupt | Gone

_OVERLAP: Final = 63  # a header may span two reads


def judge(
    read: Callable[[int, int], bytes],
    size: int,
    walk: Walk,
    *,
    rolled_end: int | None = None,
    archived: bool = False,
    durable: int = 0,
    own: bool = True,
    seen: Callable[[Header], None] | None = None,
) -> Verdict:
    """Judge the file that `walk` is in, from its position on.

    A bad frame counts as torn unless something proves that it was durable: the manifest
    (`rolled_end`); a later frame of the same session whose header states a durable position after
    the bad one; or the caller (`durable`: a peer's acknowledgement, a later run, a ledger). Frames
    of a merged log prove nothing, since their headers were written for the sessions' logs. In a
    merged log, `Torn.followed` says whether a whole range follows the bad frame. If one does, the
    frame is not just unfinished: the log's writer cuts such a frame before it appends a range.

    Args:
        read: `read(length, offset)` of the file.
        size: the file's length in bytes.
        walk: at the start of the file, or at a frame that an index named and the caller checked.
            It advances to the end of the whole frames.
        rolled_end: where the manifest says the file ends, if it was rolled.
        archived: whether the manifest says the file was archived.
        durable: a position up to which this log is known to have been durable.
        own: whether the durable positions in the headers refer to this disk. In a copy they do not,
            so they prove nothing.
        seen: called with the header of each whole frame, in order.
    """
    if archived and size == 0:
        return Gone()
    end = size if rolled_end is None else min(size, rolled_end)
    reason = _first_fault(Scan(read, walk), end, seen)
    at = walk.position
    proven = max(durable, at.file + (rolled_end or 0))
    if not reason and at.offset == end:
        return Clean(at) if proven <= at else Corrupt(at, "the file is shorter than it was")
    reason = reason or "the frame is incomplete"
    if proven > at:
        return Corrupt(at, reason)
    later = later_headers(read, at, size)
    if walk.merged:
        return Torn(at, reason, followed=any(header.kind == FrameKind.RANGE for header in later))
    was_durable = own and any(header.durable > at for header in later)
    return Corrupt(at, reason) if was_durable else Torn(at, reason)


def _first_fault(scan: Scan, end: int, seen: Callable[[Header], None] | None) -> str:
    try:
        while frame := scan.next(end):
            if seen:
                seen(frame.header)
    except FrameError as error:
        return str(error)
    return ""


def later_headers(read: Callable[[int, int], bytes], at: Position, size: int) -> Iterator[Header]:
    """Yield the intact headers of a file after `at` that state the position where they were found.

    Args:
        read: reads so many bytes at an offset of the file.
        at: the position of the bytes that are not a frame.
        size: the offset at which to stop.
    """
    offset = at.offset + 8
    while offset < size:
        # stop at `size`, though the file may grow meanwhile
        data = read(min(READ_BYTES + _OVERLAP, size - offset), offset)
        if not data:
            break
        found = data.find(MAGIC)
        while 0 <= found < READ_BYTES:
            # A payload may contain the image of a frame, but that states another position.
            header = _intact(data, found)
            if header is not None and header.position == at.file + offset + found:
                yield header
            found = data.find(MAGIC, found + 1)
        offset += READ_BYTES


def _intact(data: bytes, offset: int) -> Header | None:
    try:
        return parse_header(data, offset)
    except FrameError:
        return None
