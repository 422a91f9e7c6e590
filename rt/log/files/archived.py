"""Archived: decides which files may be archived, and empties the archived ones."""

import os
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import closing
from typing import Final

from rt.events import Gap
from rt.format.index import SUFFIX
from rt.format.manifest import Archived, Manifest, Rolled
from rt.log.files.disk import Disk
from rt.position import START, Position

MERGED: Final = "merged"  # reason to archive a publisher's own file
NOT_COPIED: Final = "not copied"  # reason for a file before the start of a copy
# The same reason, if the copy had asked for an earlier start.
NOT_OFFERED: Final = "not copied: its source lacks it"
MISSING: Final = "missing"  # reason for a gap that no manifest line explains
DROPPED: Final = "dropped"  # reason for a file that a full session dropped before any node had it
KEPT: Final = "keep"  # start of the reason for a file deleted by a copy's own retention rule
# Archived files are emptied in order, right after their manifest lines are written. If the process
# died in between, only the last archived files still hold bytes. So `finish_archiving` searches
# backwards, and stops after this many empty files in a row.
_EMPTY_IN_A_ROW: Final = 1024


def released_files(known: Manifest, released: Position, at_ns: int) -> list[Archived]:
    """Return manifest lines that archive a session's rolled files up to `released`."""
    return [
        Archived(file, at_ns, MERGED)
        for file in _after_archived(known)
        if file not in known.archived and file + known.rolled[file].end <= released
    ]


def has_kept_file(known: Manifest) -> bool:
    """Whether any rolled file is not archived yet."""
    return any(file not in known.archived for file in _after_archived(known))


def is_dropped(known: Manifest, file: Position) -> bool:
    """Whether a full session dropped a file before any of it was sent to a node.

    Files are archived oldest first, but files older than a dropped one may still be kept.
    """
    line = known.archived.get(file)
    return line is not None and line.reason == DROPPED


def last_archived(known: Manifest) -> Position:
    """Return the last file that was archived rather than dropped; the start if there is none."""
    archived = known.archived.copy().values()  # other threads may add lines
    return max((line.file for line in archived if line.reason != DROPPED), default=START)


def _after_archived(known: Manifest) -> list[Position]:
    return known.order[bisect_left(known.order, last_archived(known)) :]


def given_up_files(
    known: Manifest, active: int, at_ns: int, *, keep_s: float, keep_bytes: int
) -> list[Archived]:
    """Return manifest lines that archive the files that an unshipped session no longer keeps.

    Args:
        known: the session's manifest.
        active: bytes of the file that is still growing; they count, but the file is kept.
        at_ns: the current time, ns since the epoch.
        keep_s: how many seconds a file is kept after it was rolled; 0 for no limit.
        keep_bytes: total bytes of files above which the oldest are archived; 0 for no limit.
    """
    kept = [file for file in _after_archived(known) if file not in known.archived]
    total, lines = active + sum(known.rolled[file].end for file in kept), []
    for file in kept:
        rolled = known.rolled[file]
        is_old = keep_s and at_ns - rolled.at_ns > keep_s * 1e9
        if not is_old and not (keep_bytes and total > keep_bytes):
            break
        total -= rolled.end
        lines.append(Archived(file, at_ns, "time" if is_old else "limit"))
    return lines


def not_copied(rolled: Rolled) -> Archived:
    """Return a manifest line that marks a file as never copied, since the copy begins after it."""
    return Archived(rolled.file, rolled.at_ns, NOT_COPIED)


def is_not_copied(line: Archived) -> bool:
    """Whether this line says that the copy never had the file's bytes."""
    return line.reason in (NOT_COPIED, NOT_OFFERED)


def begins_as_wanted(known: Manifest) -> bool:
    """Whether a copy begins where it should; False if its source lacked that part of the log."""
    first = known.archived.get(known.order[0]) if known.order else None
    return first is None or first.reason != NOT_OFFERED


def is_own_choice(line: Archived) -> bool:
    """Whether a file is missing only in this copy, so that other copies may still have it."""
    return is_not_copied(line) or line.reason == DROPPED or line.reason.startswith(f"{KEPT} ")


def is_own_gap(gap: Gap) -> bool:
    """Whether other copies of the log may still have some of the messages in a gap."""
    reasons = gap.reason.split(", ")
    return any(each.startswith((NOT_COPIED, f"{KEPT} ", MISSING)) for each in reasons)


def place_after(known: Manifest, place: Position) -> Position:
    """Return where to continue in a log that was read or copied up to `place`.

    This is `place` itself, or the start of the next file if a file ended at `place`.
    """
    end = known.rolled_end(place.file)
    return place.file.next_file() if end is not None and place.offset >= end else place


def empty_files(disk: Disk, directory: str, files: Iterable[Position]) -> int:
    """Truncate archived files and their indexes; return how many files were not empty before."""
    return sum([_empty(disk, os.path.join(directory, file.file_name)) for file in files])


def finish_archiving(disk: Disk, directory: str, manifest: Manifest) -> int:
    """Truncate the files that the manifest says are archived; return how many still had bytes.

    A process that died after recording an archived file may have left bytes in it.
    """
    count = in_a_row = 0
    for file in reversed(manifest.order):
        if file in manifest.archived:
            emptied = empty_files(disk, directory, [file])
            count += emptied
            in_a_row = 0 if emptied else in_a_row + 1
            if in_a_row == _EMPTY_IN_A_ROW:
                break
    return count


def _empty(disk: Disk, path: str) -> bool:
    held = _truncate(disk, path)
    _truncate(disk, path + SUFFIX)
    return held


def _truncate(disk: Disk, path: str) -> bool:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return False  # only the manifest names it, or it was never copied
    with closing(file):
        held = file.size() > 0
        if held:
            file.truncate(0)
        return held
