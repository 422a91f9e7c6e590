"""Syncer: makes what a session's writer appends durable, on another thread."""

import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rt.errors import DiskFailed, Misuse, WriterFailed
from rt.format.manifest import Archived
from rt.limits import KIB
from rt.log.files.archived import given_up_files, has_kept_file, released_files
from rt.log.notify.confirmations import ConfirmationsFile
from rt.log.notify.shipping import ShippingNote
from rt.log.write.appender import Appender, Durable
from rt.log.write.sync_threads import SyncThreads, sync_threads
from rt.position import FILE_BYTES_MAX, Position

_ARCHIVE_S: Final = 1.0
SPACE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Fsync(Enum):
    """When a session's file is synced without a flush.

    `always`: as soon as one sync ends, the next covers everything written since (group commit), and
    `flush` waits for the sync that covers its messages. A power cut loses only messages for which
    no flush has returned, a few milliseconds' worth at most.
    `interval`: every `fsync_interval_s`; a power cut loses at most the messages of that time, and
    none that were flushed.
    `never`: only on flush, roll or close; a power cut may lose everything written since, but a
    crash of the process loses nothing.
    """

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """How a session's files are written.

    Args:
        fsync: when to sync without being asked to.
        fsync_interval_s: seconds between syncs under `Fsync.INTERVAL`; 0.001 to 3600.
        file_bytes_max: a file rolls before it would exceed this size; 64 KiB to 1 GiB.
        file_age_s: a file rolls this many seconds after its first message; 0 means never. Without
            it, a slow session's last file never becomes old enough to be archived.
        compression: zstd level, 1 to 19; 0 is none. Frames that do not shrink are stored plain.
        keep_s: if the session is not shipped, a file is given up this many seconds after it was
            rolled; 0 means never.
        keep_bytes: if the session is not shipped, the oldest files are given up above this total; 0
            means never. The active file is never given up; see `file_bytes_max`, `file_age_s`.

    Examples:
        >>> WriterSettings(fsync=Fsync.ALWAYS, compression=3).file_age_s
        0.0
    """

    fsync: Fsync = Fsync.INTERVAL
    fsync_interval_s: float = 0.2
    file_bytes_max: int = FILE_BYTES_MAX
    file_age_s: float = 0.0
    compression: int = 0
    keep_s: float = 0.0
    keep_bytes: int = 0

    def __post_init__(self) -> None:
        if not 64 * KIB <= self.file_bytes_max <= FILE_BYTES_MAX:
            raise Misuse(
                f"file_bytes_max is {self.file_bytes_max}; use {64 * KIB} to {FILE_BYTES_MAX}"
            )
        if not 0.001 <= self.fsync_interval_s <= 3600:
            raise Misuse(f"fsync_interval_s is {self.fsync_interval_s}; use 0.001 to 3600")
        if not self.file_age_s >= 0:
            raise Misuse(f"file_age_s is {self.file_age_s}; use 0 (off) or more")
        if not 0 <= self.compression <= 19:
            raise Misuse(f"compression is {self.compression}; use 0 (none) to 19")
        if not (self.keep_s >= 0 and self.keep_bytes >= 0):
            raise Misuse("keep_s and keep_bytes are 0 (for ever) or more")


class Syncer:
    """Syncs a log in another thread, so that a slow disk delays no message.

    It syncs when the settings say so or a thread waits. The same threads archive, about once a
    second, what the pusher has released. They are idle while there is nothing to sync or archive,
    because a process may have a thousand sessions, most of them silent. A failed sync ends the
    writer and is never retried.

    Threads: `_changed` guards `durable`, `failure`, `_wanted` and `_closing`. The writer and `wait`
        set `_wanted`, `_closing` and `failure`; `turn`, called by one thread at a time, sets
        `durable` and `failure`, and sets `_is_resting` before it checks whether it may rest, so
        that the writer, which reads and clears it after writing, misses nothing. `durable` and
        `failure` may be read without the lock: `durable` only grows, and `failure` is set once.
        `heard`, which the syncing threads call, is set once, too. `_archives_at_s` belongs to
        `turn`. `turn` may sync and archive `_log` while the writer appends.
    """

    def __init__(
        self,
        log: Appender,
        settings: WriterSettings,
        clock: Callable[[], float] = time.monotonic,
        threads: SyncThreads | None = None,
    ) -> None:
        """Start syncing the log.

        Args:
            log: the session's log; its recovery has made it durable.
            settings: when to sync.
            clock: a monotonic clock, in seconds.
            threads: the threads that call `turn`; by default those of the log's disk.

        Raises:
            RuntimeError: the system allows no further thread.
        """
        self.durable = durable = Durable(log.end)
        self.failure: WriterFailed | None = None
        self.heard: Callable[[], None] = lambda: None  # called after each sync; must not wait
        self._log = log
        self._settings = settings
        self._changed = threading.Condition()
        self._wanted = durable  # the position up to which a thread waits for a sync
        self._closing = False
        self._is_resting = True  # no sync is planned
        self._archives_at_s = 0.0
        self._clock = clock
        self._threads = threads or sync_threads(log.directory)
        self._threads.join(self)
        self.rolled()  # archives what an earlier writer has left to archive

    def written(self) -> None:
        """Record that more was appended; with `Fsync.ALWAYS`, request a sync."""
        policy = self._settings.fsync
        if policy is Fsync.ALWAYS:
            self._threads.ask(self)
        elif self._is_resting and policy is Fsync.INTERVAL:
            self._is_resting = False
            self._threads.ask(self, self._settings.fsync_interval_s)

    def rolled(self) -> None:
        """Record that a file was rolled, so that a turn archives it once that is allowed."""
        if has_kept_file(self._log.manifest):
            self._threads.ask(self, _ARCHIVE_S)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything appended so far is durable; False if the time ran out first.

        Raises:
            WriterFailed: the disk failed, now or before.
        """
        target = self.ask()
        if timeout_s is not None:
            timeout_s = min(timeout_s, threading.TIMEOUT_MAX)  # infinity is allowed
        with self._changed:
            done = self._changed.wait_for(lambda: self._is_done(target), timeout_s)
            self.check()
            return done

    def ask(self) -> Position:
        """Request a sync of everything appended so far; return where that ends."""
        target = self._log.end
        with self._changed:
            self._wanted = max(self._wanted, Durable(target))
            if not self._is_done(target):
                self._threads.ask(self)
        return target

    def _is_done(self, target: Position) -> bool:
        return self.failure is not None or self.durable >= target

    def stop(self) -> None:
        """Stop syncing; waits for a sync that is under way."""
        with self._changed:
            self._closing = True
        self._threads.leave(self)

    def reached(self, end: Durable) -> None:
        """Record the end that a sync has reached, and wake the threads waiting for it."""
        with self._changed:
            self.durable = max(self.durable, end)
            self._changed.notify_all()
        self.heard()

    def failed_or_full(self, error: OSError) -> OSError | WriterFailed:
        """Return the error to raise after a failed write.

        If the disk is full, this returns `error` itself, since a later call may succeed. Any other
        error ends the writer, and this returns the `WriterFailed` that every later call raises.
        """
        return error if _is_full_disk(error) else self.failed(error)

    def failed(self, error: OSError) -> WriterFailed:
        """End the writer; return the error that every later call raises."""
        failure = WriterFailed(
            f"{self._log.directory}: the disk failed ({error.strerror}); this writer has ended, "
            "and what was not flushed may be lost; repair the disk and start again"
        )
        with self._changed:
            self.failure = failure
            self._changed.notify_all()
        self.heard()
        return failure

    def check(self) -> None:
        """Raise `WriterFailed` if the writer has ended."""
        if self.failure:
            raise self.failure

    def turn(self) -> float | None:
        """Sync and archive what is due; return the seconds until the next call.

        Returns None if no further call is needed, because all is done or the writer has ended.
        """
        with self._changed:
            if self._closing or self.failure:
                return None
            is_asked = self._wanted > self.durable or self._settings.fsync is not Fsync.NEVER
        try:
            if is_asked and self._log.end > self.durable:
                self.reached(self._log.sync())
            is_kept = has_kept_file(self._log.manifest)
            if is_kept:
                self._archive_released()
        except OSError as error:
            self.failed(error)
            return None
        self._is_resting = True
        if self._settings.fsync is not Fsync.NEVER and self._log.end > self.durable:
            self._is_resting = False
            by_itself = self._settings.fsync is Fsync.INTERVAL
            return self._settings.fsync_interval_s if by_itself else 0.0
        return _ARCHIVE_S if is_kept else None

    def _archive_released(self) -> None:
        now_s = self._clock()
        if now_s >= self._archives_at_s:
            self._archives_at_s = now_s + _ARCHIVE_S
            self._archive()

    def give_up(self) -> None:
        """Archive the files that `keep_s` and `keep_bytes` do not keep.

        A writer calls this at the end of its run, which may have been too short for a turn to
        archive them.
        """
        if self._settings.keep_s or self._settings.keep_bytes:
            try:
                self._archive()
            except OSError as error:
                self.failed(error)
                raise

    def _archive(self) -> None:
        try:
            known = ConfirmationsFile(self._log.directory)
            gone = released_files(self._log.manifest, known.read().released, time.time_ns())
            if not known.is_there and not ShippingNote(self._log.directory).read():
                gone = self._given_up()
            if gone:
                self._log.archive_all(gone)
        except OSError as error:
            if not _is_full_disk(error):
                raise  # a full disk had no room for the line; the next attempt may succeed

    def _given_up(self) -> list[Archived]:
        """Return manifest lines that archive what `keep_s` and `keep_bytes` do not keep."""
        settings = self._settings
        return given_up_files(
            self._log.manifest, self._log.end.offset if self._log.is_open else 0,
            time.time_ns(), keep_s=settings.keep_s, keep_bytes=settings.keep_bytes,
        )  # fmt: skip


def _is_full_disk(error: OSError) -> bool:
    return error.errno in SPACE_ERRORS and not isinstance(error, DiskFailed)
