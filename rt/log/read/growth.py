"""Growth: decides what an invalid frame means in a log that is still growing."""

from dataclasses import dataclass

from rt.format.recovery import Corrupt, Gone, Torn, judge
from rt.format.walk import Walk
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import File
from rt.position import START, Position


@dataclass(frozen=True, slots=True)
class UnwrittenFrame:
    """The frame at `at` may be unfinished: wait there, and ignore everything after it."""

    at: Position


@dataclass(frozen=True, slots=True)
class DamagedFrame:
    """The frame at `at` was whole before, so it is damaged: stop there and keep the file."""

    at: Position
    reason: str


@dataclass(frozen=True, slots=True)
class EmptiedFile:
    """The file was archived while being read: continue where the manifest says."""


Meaning = UnwrittenFrame | DamagedFrame | EmptiedFile


class BadFrames:
    """Decides what each bad frame of a log means: unfinished, damaged, or archived meanwhile.

    Subscribers, pushers and Spark see the same bytes, and all of them use this class: if each
    decided for itself, some would call a damaged log complete.
    """

    __slots__ = ("_log", "_waited_at")

    def __init__(self, log: LogDirectory) -> None:
        """Explain the frames of `log`, refreshing its manifest as needed."""
        self._log = log
        self._waited_at: tuple[Position, int, int, Position] | None = None

    def explain(self, file: File, walk: Walk, *, durable: Position = START) -> Meaning:
        """Return what the first bad frame at or after `walk` means.

        A decision to wait is cached until the file or the manifest grows, because judging reads
        everything after the bad frame, and readers poll 200 times a second.

        Args:
            file: the log file that `walk` is in.
            walk: at the bad frame, or at a whole one before it; it is not moved.
            durable: a position up to which the log is known to be on this disk, for example because
                a sync of it returned.
        """
        log, start = self._log, walk.position.file
        # before reading the size: a rolled file has its full size, an archived one is empty
        log.refresh()
        size = file.size()
        state = walk.position, size, log.manifest.length, durable
        if state == self._waited_at:
            return UnwrittenFrame(walk.position)
        verdict = judge(
            file.pread,
            size,
            walk.copy(),
            rolled_end=log.manifest.rolled_end(start),
            archived=start in log.manifest.archived,
            # a shorter file is being rewritten: its end proves nothing
            durable=durable if size >= durable - start else START,
        )
        if isinstance(verdict, Gone) or (
            isinstance(verdict, Corrupt) and self._emptied(file, start)
        ):
            return EmptiedFile()
        if isinstance(verdict, Corrupt):
            return DamagedFrame(verdict.at, verdict.reason)
        if isinstance(verdict, Torn) and verdict.followed:
            # the writer of a merged log cuts a torn tail before appending the next range
            return DamagedFrame(verdict.at, f"{verdict.reason}, though a later range is whole")
        self._waited_at = state
        return UnwrittenFrame(walk.position)

    def _emptied(self, file: File, start: Position) -> bool:
        """Whether the file was archived since the manifest was last read."""
        self._log.refresh()
        return start in self._log.manifest.archived and file.size() == 0
