"""Recovery: one function judges a log file, and nothing else decides what is torn or damaged."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rt.errors import FrameError
from rt.frame import MAGIC, Header, parse_header
from rt.limits import READ_BYTES
from rt.position import Position
from rt.scan import Scan
from rt.walk import Walk


@dataclass(frozen=True, slots=True)
class Clean:
    """Every byte belongs to a whole frame; the file ends at `end`."""

    end: Position


@dataclass(frozen=True, slots=True)
class Torn:
    """The frames end at `at`; what follows was never durable as far as anything tells."""

    at: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Corrupt:
    """What stands at `at` was once whole and durable, and is not any more."""

    at: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The file was archived: it has 0 bytes, and the manifest says so."""


Verdict = Clean | Torn | Corrupt | Gone

_OVERLAP: Final = 63  # a header that begins in one read may end in the next


def judge(
    read: Callable[[int, int], bytes],
    size: int,
    walk: Walk,
    *,
    rolled_end: int | None = None,
    archived: bool = False,
    durable: int = 0,
    seen: Callable[[Header], None] | None = None,
) -> Verdict:
    """Judge the file that `walk` stands in, from there on.

    Torn is an incomplete last batch that nothing later proves durable. Three things can prove it:
    the manifest (`rolled_end`), a later frame of the same session whose header names a durable
    position behind the damage, and what the caller knows (`durable`: a peer's acknowledgement, a
    later run, a ledger).

    Args:
        read: `read(length, offset)` of the file.
        size: its length in bytes.
        walk: at its start, or at a frame an index named and the caller checked. It is moved.
        rolled_end: where the manifest says the file ends, if it was rolled.
        archived: whether the manifest says it was archived.
        durable: a position of this log up to which it is known to have been durable.
        seen: is given the header of every whole frame, in order.
    """
    if archived and size == 0:
        return Gone()
    end = size if rolled_end is None else min(size, rolled_end)
    reason = _first_fault(Scan(read, walk), end, seen)
    at = walk.position
    proven = max(durable, at.file + (rolled_end or 0))
    if not reason and at.offset == end:
        return Clean(at) if proven <= at else Corrupt(at, "the file is shorter than it was")
    if not walk.merged and proven <= at:
        proven = _latest_durable(read, at, size)
    reason = reason or "the frame is incomplete"
    return Corrupt(at, reason) if proven > at else Torn(at, reason)


def _first_fault(scan: Scan, end: int, seen: Callable[[Header], None] | None) -> str:
    try:
        while frame := scan.next(end):
            if seen:
                seen(frame.header)
    except FrameError as error:
        return str(error)
    return ""


def _latest_durable(read: Callable[[int, int], bytes], at: Position, size: int) -> int:
    """Return the furthest durable position that an intact header behind `at` names, or 0."""
    latest, offset = 0, at.offset + 8
    while offset < size:
        data = read(READ_BYTES + _OVERLAP, offset)
        if not data:
            break
        found = data.find(MAGIC)
        while 0 <= found < READ_BYTES:
            latest = max(latest, _durable_mark(data, found, at.file + offset + found))
            found = data.find(MAGIC, found + 1)
        offset += READ_BYTES
    return latest


def _durable_mark(data: bytes, offset: int, position: int) -> int:
    try:
        header = parse_header(data, offset)
    except FrameError:
        return 0
    # a payload may hold the image of a frame; it does not stand where that frame says it stands
    return header.durable if header.position == position else 0
