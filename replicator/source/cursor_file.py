"""CursorFile: keeps open the log file that a source is sending, and finds the next file."""

from collections.abc import Callable

from rt.log.files.archived import is_dropped
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import File
from rt.log.notify.confirmations import ConfirmationsFile
from rt.log.write.dropping import covers
from rt.log.write.sending import sending
from rt.position import START, Position


class CursorFile:
    """CursorFile: the open file of a log from which a source is sending."""

    __slots__ = ("_is_own", "_log", "_replaced", "file", "is_held_back", "start")

    def __init__(self, log: LogDirectory, *, is_own: bool = False) -> None:
        """Prepare; `is_own` tells whether the log is a publisher's own, rather than a copy."""
        self._log = log
        self._is_own = is_own
        self._replaced = 0  # the count of replaced files when `file` was opened
        self.is_held_back = False  # whether the next file may not be sent yet
        self.file: File | None = None
        self.start = START

    def open(self, start: Position) -> File | None:
        """Return the file that starts at `start`; None if there is none.

        Raises:
            CorruptLog: the file is known to be damaged.
        """
        damaged = self._log.damaged
        damaged.demand_whole(start)
        # Read the count after that check: a replaced file is counted before it is served again.
        # Read it before opening the file, so that the opened file is never older than the count.
        replaced = damaged.replaced
        if self.file is not None and (self.start, self._replaced) == (start, replaced):
            return self.file
        self.close()
        try:
            self.file, self.start = self._log.open_file(start), start
        except FileNotFoundError:
            return None
        self._replaced = replaced
        return self.file

    def close(self) -> None:
        """Release the descriptor."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def following(self, start: Position) -> Position | None:
        """Return the start of the file after the one at `start`; None if there is none yet.

        Files that a full session dropped are left out, as if they had never been written.
        """
        known = self._log.manifest
        archived = known.successor(start)
        while archived is not None and is_dropped(known, archived):
            archived = known.successor(archived)
        nexts = (self._log.file_from(start.next_file()), archived)
        return min((each for each in nexts if each is not None), default=None)

    def first(self) -> Position:
        """Return the file to begin with for an empty sink; raises `OSError` like `next_after`."""
        return (self._entered(self._oldest) if self._is_own else self._oldest()) or START

    def next_after(self, start: Position) -> Position | None:
        """Return the start of the next file, if that file may be sent; otherwise None.

        Raises:
            OSError: the record of files that are being sent could not be written.
        """
        if not self._is_own:
            return self.following(start)
        return self._entered(lambda: self.following(start))

    def record_end(self, end: Position) -> Position:
        """Record that the sink's copy ends at `end`, to keep the file there; return `end`."""
        if self._is_own:
            with sending(self._log.path) as mark:
                if mark is not None and end.file >= mark.bound:
                    mark.write(end.file + 1, mark.limit)
        return end

    def _oldest(self) -> Position:
        """Return the first file that was not dropped; `START` if there is none."""
        known = self._log.manifest
        first = min([*known.order[:1], *self._log.files()[:1]], default=START)
        return (self.following(first) or START) if is_dropped(known, first) else first

    def _entered(self, find: Callable[[], Position | None]) -> Position | None:
        """Return the file that `find` returns, or None if that file may not be sent yet.

        A session that drops its oldest messages keeps the files that are recorded as being sent, so
        the file is recorded first. In such a session, a pusher may be ahead of the merge by at most
        half of the session's limit, so that some files can still be dropped.

        Args:
            find: returns the next file of the log, according to the present manifest.
        """
        self.is_held_back = False
        with sending(self._log.path) as mark:
            self._log.refresh()
            file, known = find(), self._log.manifest
            if mark is None or file is None:
                return file
            while file in known.rolled and covers(self._log, known, file):
                file = self.following(file) or file  # it was dropped meanwhile
            if file >= mark.bound:
                ahead = _unmerged(self._log, file)
                if ahead and ahead >= mark.limit // 2:
                    self.is_held_back = True
                    return None
                mark.write(file + 1, mark.limit)
        return file


def _unmerged(log: LogDirectory, file: Position) -> int:
    """Return how many bytes in the files before `file` are neither merged nor archived."""
    known, merged = log.manifest, ConfirmationsFile(log.path).read().merged
    kept = (each for each in known.order if merged.file <= each < file)
    return sum(
        max(0, each + known.rolled[each].end - max(merged, each))
        for each in kept
        if each not in known.archived
    )
