"""ChangeDetector: detects, with a few system calls, that a log has changed."""

import os
import time
from collections.abc import Callable
from typing import Final

from replicator.wire.messages import BEHIND
from rt.errors import Refused
from rt.log.files.directory import LogDirectory
from rt.position import Position

# A file system's clock ticks only every few milliseconds, so a recent time may hide a change.
_TIME_IS_SURE_NS: Final = 2_000_000_000


class LogReplaced(Refused):
    """The log being sent is gone: it was deleted, or replaced by an older copy."""

    def __init__(self, path: str) -> None:
        super().__init__(
            "diverged",
            f"{path} was deleted or put back from a backup while it was being pushed; stop the "
            "pusher before a session is restored",
        )


class ChangeDetector:
    """ChangeDetector: remembers how a log directory looked when nothing was left to send.

    Threads: used in the connection's turns. Any other thread may call `has_changed`, which then at
    worst reports a change that is already being sent.
    """

    def __init__(self, log: LogDirectory, *, is_copy: bool) -> None:
        """Watch `log`; `is_copy` is true for a node's copy, which may be deleted and made again."""
        self.is_quiet = False  # there was nothing to send at the last check
        self.has_rested = False  # the manifest was closed since the last comparison
        self._log = log
        self._is_copy = is_copy
        self._was_used = False  # since the last `has_idled`
        self._size = 0  # last known size of the file at the cursor
        self._listed_ns = 0  # the directory's change time when its files were last listed

    def looked(self, size: int) -> None:
        """Record the size of the file at the cursor."""
        self._size = size
        self._was_used = True

    def has_idled(self) -> bool:
        """Whether no file of the log was read for sending since this was last called."""
        was_used, self._was_used = self._was_used, False
        return not was_used

    def listing(self) -> None:
        """Record that the files are about to be listed."""
        _, self._listed_ns = _status(self._log.path)

    def has_changed(self, cursor: Position, *, ended: bool, follows: Callable[[], bool]) -> bool:
        """Whether there may be more to send after the cursor; costs two or three `stat` calls.

        `ended` tells whether the cursor's file has ended. If so, `follows` may be called: it lists
        the files, and returns whether another one follows.
        """
        known = self._size  # read before checking for changes
        if not self.is_quiet:
            return True
        size, _ = _status(self._log.file_path(cursor))
        if size != known or not self._log.is_as_read():
            return True
        if not ended:
            return False
        _, changed_ns = _status(self._log.path)
        is_young = time.time_ns() - changed_ns < _TIME_IS_SURE_NS
        if changed_ns == self._listed_ns and not is_young:
            return False
        if follows():
            return True
        self._listed_ns = changed_ns  # the confirmations file is in the directory too
        return False

    def refresh(self) -> None:
        """Read the new part of the manifest, after checking that the log was not replaced."""
        is_as_read = self._log.is_as_read()
        if self._is_copy and not is_as_read and not self._log.is_in_place():
            raise Refused(BEHIND, f"{self._log.path} is being copied again")
        if self.has_rested or not is_as_read:
            self.demand_same_log()
        if not (is_as_read and self._log.has_inodes):
            self._log.refresh()

    def demand_same_log(self) -> None:
        """Raise `LogReplaced` if the directory no longer holds the log that was read so far.

        For a node's copy this never raises, since the copy's content is compared when it is merged.
        """
        if not self._is_copy and not self._log.is_continued():
            raise LogReplaced(self._log.path)
        self.has_rested = False

    def is_in_place(self) -> bool:
        """Return False if the log was replaced; always True for a node's copy. One system call."""
        return self._is_copy or self._log.is_in_place()

    def demand_in_place(self) -> None:
        """Raise `LogReplaced` if the log was replaced; cheap enough for each acknowledgement."""
        if not self.is_in_place():
            raise LogReplaced(self._log.path)

    def bytes_after(self, position: Position) -> int:
        """Return how many bytes follow a position in its file."""
        size, _ = _status(self._log.file_path(position))
        return max(0, size - position.offset)


def _status(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
