"""Gaps: finds the parts of a log that were removed before a reader got to them."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from rt.events import Gap
from rt.log.files.archived import MISSING
from rt.log.files.directory import LogDirectory
from rt.position import Position

# at most this many files are listed in a gap; a log's history may hold 100,000
_FILES_MAX: Final = 100


def gap_before(log: LogDirectory, position: Position, file: Position | None) -> Gap | None:
    """Return the gap that starts at `position`; None if nothing is missing.

    Args:
        log: The log, already refreshed.
        position: Where a reader continues.
        file: The next readable file, where the gap ends; if None, the gap reaches the end of the
            last missing file.
    """
    rolled, order = log.manifest.rolled, log.manifest.order
    gone = [
        each
        for each in order[bisect_left(order, position.file) :]
        if (file is None or each < file) and rolled[each].end > max(0, position - each)
    ]
    return _gap(log, gone, position, file) if gone else None


def gaps_between(log: LogDirectory, start: Position, stop: Position) -> Iterator[Gap]:
    """Yield the gaps between two positions, one for each run of missing files."""
    there, rolled = set(log.files()), log.manifest.rolled
    gone: list[Position] = []
    for file in log.manifest.order:
        end = rolled[file].end
        overlaps = end and file < stop and start < file + end
        if overlaps and file not in there:
            gone.append(file)
        elif gone:
            yield _gap(log, gone, max(start, gone[0]), file)
            gone = []
    if gone:
        yield _gap(log, gone, max(start, gone[0]), None)


def _gap(log: LogDirectory, gone: Sequence[Position], begin: Position, end: Position | None) -> Gap:
    """Return the gap from `begin` to `end`; if `end` is None, to the end of the last file gone."""
    if end is None:
        end = Position(gone[-1] + log.manifest.rolled[gone[-1]].end)
    lines = [log.manifest.archived[file] for file in gone if file in log.manifest.archived]
    reasons = ", ".join(sorted({line.reason for line in lines})) or MISSING
    names = tuple(file.file_name for file in gone[:_FILES_MAX])
    return Gap(begin, end, names, reasons, max((line.at_ns for line in lines), default=0))
