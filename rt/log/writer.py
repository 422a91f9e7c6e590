"""SessionWriter: the one live writer of a session: its lock, its runs, its rolls, its syncs."""

import errno
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import zstandard

from rt.errors import DiskFailed, Misuse, WriterFailed
from rt.format.columns import encode_columns
from rt.format.frame import KEYS_COLUMN, encode_frame, session_tag
from rt.format.manifest import SESSION
from rt.limits import KIB
from rt.log.appender import Appender, Durable
from rt.log.archived import finish_archiving, released_files
from rt.log.confirmations import ConfirmationsFile
from rt.log.disk import Disk, OsDisk
from rt.log.identity import new_identity
from rt.log.lock import take_lock
from rt.names import session_directory
from rt.position import FILE_BYTES_MAX, RUN_END, START, Position

_ARCHIVE_S: Final = 1.0
_LIVES_MAX: Final = RUN_END - 1  # so that what looks for the run behind the last one finds a name
_LOCK_S: Final = 0.5  # a pusher takes the lock for some milliseconds, to archive what is merged
_SPACE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Fsync(Enum):
    """When a session's file is made durable without being asked.

    `always`: as soon as the last sync has ended, all that was written since goes into the next
    one (group commit); `flush` waits for the sync that covers it. A power cut loses what no flush
    returned for, some milliseconds of it at most.
    `interval`: every `fsync_interval_s`; a power cut loses up to that much, unless flushed.
    `never`: only when flushed, rolled or closed; a power cut may lose all that was written since,
    though nothing is lost by the death of the process.
    """

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """How a session's files are written.

    Args:
        fsync: when to sync unasked.
        fsync_interval_s: between syncs under `Fsync.INTERVAL`.
        file_bytes_max: a file rolls before it would pass this; at most 1 GiB.
        file_age_s: a file rolls this long after its first message; 0 is never. Without it a slow
            session's last file never grows old enough to be archived.
        compression: zstd level, 1 to 19; 0 is none. Frames that do not shrink are stored plain.
    """

    fsync: Fsync = Fsync.INTERVAL
    fsync_interval_s: float = 0.2
    file_bytes_max: int = FILE_BYTES_MAX
    file_age_s: float = 0.0
    compression: int = 0

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


class SessionWriter:
    """Writes frames to one session. Each start opens a new run and leaves the older ones alone.

    One thread writes. A thread of its own syncs, so that a slow disk delays no message.
    """

    def __init__(
        self,
        root: str,
        stream: str,
        session: str,
        settings: WriterSettings | None = None,
        disk: Disk | None = None,
        *,
        group: str = "",
    ) -> None:
        """Take the session's lock, recover its last run, and stand ready for the next.

        Raises:
            Misuse: a bad name, or the session has a live writer.
            CorruptLog: durable bytes of the last run are damaged.
        """
        self.settings = settings or WriterSettings()
        self.directory = session_directory(root, stream, session)
        disk = disk or OsDisk()
        disk.make_directory(self.directory)
        self._lock_fd = take_lock(
            self.directory,
            f"session {session!r} in {self.directory} has a live writer; stop it, or choose "
            "another name",
            wait_s=_LOCK_S,
        )
        try:
            self._appender = self._recovered(disk, stream, session, group)
        except BaseException:
            os.close(self._lock_fd)
            raise
        level = self.settings.compression
        self._compressor = zstandard.ZstdCompressor(level=level) if level else None
        self._rolls_at_s = float("inf")
        self._archives_at_s = 0.0
        self._durable = Durable(self._appender.end)
        self._failure: WriterFailed | None = None
        self._changed = threading.Condition()
        self._wanted = self._durable  # up to where somebody waits for a sync
        self._closing = False
        self._tag = session_tag(session)
        self._syncer = threading.Thread(target=self._sync_loop, name=f"sync {session}", daemon=True)
        self._syncer.start()

    def _recovered(self, disk: Disk, stream: str, session: str, group: str) -> Appender:
        identity = new_identity(SESSION, stream, session, created_ns=time.time_ns(), group=group)
        appender = Appender(disk, self.directory, identity)
        try:
            self._recover(appender, stream, session, group)
        except BaseException:
            appender.close()
            raise
        return appender

    def _recover(self, appender: Appender, stream: str, session: str, group: str) -> None:
        there = appender.identity
        if (there.stream, there.name, there.group) != (stream, session, group):
            raise Misuse(
                f"{self.directory} holds session {there.name!r} of stream {there.stream!r} and "
                f"group {there.group!r}; it cannot be opened as another"
            )
        confirmed = ConfirmationsFile(self.directory).read()
        appender.recover(durable=confirmed.received, cut=False)
        finish_archiving(appender.disk, appender.directory, appender.manifest)
        self.next_sequence = appender.next_number
        if appender.is_open:
            appender.roll(time.time_ns())
        if appender.end.run >= _LIVES_MAX - 1:
            raise Misuse(
                f"{self.directory}: session {session!r} has had {_LIVES_MAX:,} lives, and its "
                "positions can tell no more apart; publish under another name"
            )
        began = bool(appender.manifest.order)
        self._next_file = appender.end.next_run() if began else START

    @property
    def end(self) -> Position:
        """Where the last frame ends; nobody confirms more, be there a file without one behind."""
        return self._appender.manifest.frames_end(self._appender.end)

    @property
    def durable(self) -> Durable:
        """Up to where the session is on stable storage."""
        return self._durable

    def write(
        self, times_ns: Sequence[int], payloads: Sequence[bytes], keys: Sequence[bytes] | None
    ) -> None:
        """Write messages as one frame.

        Raises:
            WriterFailed: the disk failed, now or earlier; this writer has ended.
            OSError: the disk is full; nothing was written and a later call may succeed.
        """
        self._check()
        body = encode_columns(times_ns, payloads, keys)
        try:
            self._make_room(len(body))
            self._append(body, times_ns[0], len(payloads), 0 if keys is None else KEYS_COLUMN)
        except OSError as error:
            raise self._judged(error) from error
        self.next_sequence += len(payloads)
        if self.settings.fsync is Fsync.ALWAYS:
            with self._changed:
                self._changed.notify_all()

    def _append(self, body: bytes, time_ns: int, messages: int, columns: int) -> None:
        frame = encode_frame(
            body,
            position=self._appender.end,
            sequence=self.next_sequence,
            time_ns=time_ns,
            messages=messages,
            durable=self._durable,
            columns=columns,
            compressor=self._compressor,
            session_tag=self._tag,
        )
        after = self._appender.walk.copy()
        after.step(frame.header)
        self._appender.append(frame.parts, (frame.header,), after)

    def _make_room(self, length: int) -> None:
        if self._appender.is_open:
            offset = self._appender.end.offset  # a file takes one frame, however large
            full = offset > 0 and offset + length + 128 > self.settings.file_bytes_max
            if not full and time.monotonic() < self._rolls_at_s:
                return
            self._roll()
        self._appender.begin_file(self._next_file)
        age = self.settings.file_age_s
        self._rolls_at_s = time.monotonic() + age if age else float("inf")

    def _roll(self) -> None:
        following = self._appender.end.next_file()
        self._appender.roll(time.time_ns())
        self._next_file = following

    def roll_if_old(self) -> None:
        """Roll the active file if its time has come, though nobody publishes.

        Raises:
            As `write`.
        """
        self._check()
        if self._appender.is_open and time.monotonic() >= self._rolls_at_s:
            try:
                self._roll()
            except OSError as error:
                raise self._judged(error) from error

    def sync(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was written so far is durable; False if the time ran out first."""
        target = self._appender.end
        if timeout_s is not None:
            timeout_s = min(timeout_s, threading.TIMEOUT_MAX)  # for ever may be said as `inf`
        with self._changed:
            self._wanted = max(self._wanted, Durable(target))
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: self._failure or self._durable >= target, timeout_s
            )
            self._check()
            return bool(done)

    def close(self) -> None:
        """Sync, end the run and release the lock; a failed sync is raised here at the latest."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._syncer.join()
        try:
            self._check()
            self._end_run()
        finally:
            try:
                self._appender.close()
            finally:
                os.close(self._lock_fd)

    def _end_run(self) -> None:
        """Roll the active file, which syncs it, and tell whoever still waits for a sync."""
        try:
            if self._appender.is_open:
                self._appender.roll(time.time_ns())
            durable = self._appender.sync()
        except OSError as error:
            self._fail(error)
            raise
        self._tell_durable(durable)

    def _tell_durable(self, end: Durable) -> None:
        with self._changed:
            self._durable = max(self._durable, end)
            self._changed.notify_all()

    def _sync_loop(self) -> None:
        policy, interval_s = self.settings.fsync, self.settings.fsync_interval_s
        while True:
            with self._changed:
                wait_s = interval_s if policy is Fsync.INTERVAL else _ARCHIVE_S
                is_asked = self._changed.wait_for(self._sync_is_due, wait_s)
                if self._closing or self._failure:
                    return
                is_asked = is_asked or policy is Fsync.INTERVAL
                is_due = is_asked and self._appender.end > self._durable
            try:
                durable = self._appender.sync() if is_due else self._durable
                self._archive_released()
            except OSError as error:
                self._fail(error)
                return
            self._tell_durable(durable)

    def _archive_released(self) -> None:
        """Give up, about once a second, what the pusher says the nodes have merged."""
        now_s = time.monotonic()
        if now_s >= self._archives_at_s:
            self._archives_at_s = now_s + _ARCHIVE_S
            try:
                released = ConfirmationsFile(self.directory).read().released
                gone = released_files(self._appender.manifest, released, time.time_ns())
                if gone:
                    self._appender.archive_all(gone)
            except OSError as error:
                if not _is_full_disk(error):
                    raise  # else its line found no room: it is tried again, and may then

    def _sync_is_due(self) -> bool:
        if self._closing or self._wanted > self._durable:
            return True
        return self.settings.fsync is Fsync.ALWAYS and self._appender.end > self._durable

    def _judged(self, error: OSError) -> OSError | WriterFailed:
        """Tell a full disk, after which a later call may succeed, from one that failed."""
        return error if _is_full_disk(error) else self._fail(error)

    def _fail(self, error: OSError) -> WriterFailed:
        failure = WriterFailed(
            f"{self.directory}: the disk failed ({error.strerror}); this writer has ended, and "
            "what was not flushed may be lost; mend the disk and start again"
        )
        with self._changed:
            self._failure = failure
            self._changed.notify_all()
        return failure

    def _check(self) -> None:
        if self._failure:
            raise self._failure


def _is_full_disk(error: OSError) -> bool:
    return error.errno in _SPACE_ERRORS and not isinstance(error, DiskFailed)
