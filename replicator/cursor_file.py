"""CursorFile: the log file that a source is sending, kept open."""

from rt.log.directory import LogDirectory
from rt.log.disk import File
from rt.position import START, Position


class CursorFile:
    """One open file of a log, at the cursor of a source."""

    __slots__ = ("_log", "_replaced", "file", "start")

    def __init__(self, log: LogDirectory) -> None:
        self._log = log
        self._replaced = 0  # files of the log had been replaced so often when it was opened
        self.file: File | None = None
        self.start = START

    def open(self, start: Position) -> File | None:
        """Return the file that starts at `start`; None if there is none.

        Raises:
            CorruptLog: it is known to be damaged.
        """
        damaged = self._log.damaged
        damaged.demand_whole(start)
        # Read after that, since a file is served again only after it was counted as replaced; and
        # before the file is opened, which may then only be newer.
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
