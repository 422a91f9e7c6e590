"""SessionWriter: the only live writer of a session: its lock, runs and rolls."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import zstandard

from rt.errors import Misuse
from rt.format.columns import encode_columns
from rt.format.frame import HEADERS_COLUMN, KEYS_COLUMN, encode_frame, session_tag
from rt.format.manifest import SESSION, Manifest
from rt.limits import SMALL_BYTES
from rt.log.files.archived import finish_archiving
from rt.log.files.disk import Disk, OsDisk
from rt.log.files.identity import new_identity
from rt.log.files.lock import take_lock
from rt.log.notify.confirmations import ConfirmationsFile
from rt.log.notify.fork_guard import ForkGuard
from rt.log.notify.in_process_notify import Announcer, WrittenFrame
from rt.log.write.appender import Appender, Durable
from rt.log.write.disk_room import DiskLimit, first_held, held_bytes
from rt.log.write.dropping import Dropping, finish_dropping, kept_end
from rt.log.write.sync_threads import SyncThreads
from rt.log.write.syncer import Fsync, Syncer, WriterSettings
from rt.names import session_directory
from rt.position import RUN_END, START, Position

__all__ = ["Fsync", "SessionWriter", "WriterSettings"]

_RUNS_MAX: Final = RUN_END - 1  # searching for the run after the last one still gives a valid name
# a pusher holds the lock for some milliseconds while it archives what was merged
_LOCK_S: Final = 0.5
_OVERHEAD_BYTES: Final = 128  # bytes of a frame beyond its body: header, padding and a margin


class SessionWriter:
    """Writes frames to one session. Each start opens a new run and leaves older files unchanged.

    Threads:
        One thread at a time calls the methods, and uses the fields, under the publisher's lock. Any
        thread may call `sync` and `synced_to`, which only read `_syncer`; its threads sync. After a
        fork, the child's copy has closed its descriptors and raises `Misuse`.
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
        limit: DiskLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
        threads: SyncThreads | None = None,
    ) -> None:
        """Take the session's lock, recover its last run, and prepare the next one.

        Args:
            root: directory that holds the streams.
            stream: name of the stream.
            session: name of the session.
            settings: durability, sizes, compression.
            disk: the file system.
            group: the session's group, if any.
            limit: the session's disk limit; with `drop_oldest` it also bounds the size of files.
            clock: a monotonic clock, in seconds.
            threads: the threads that sync the session; by default those of its disk.

        Raises:
            Misuse: a name is not valid, the session has a live writer, or a session of a group is
                to drop messages.
            CorruptLog: durable bytes of the last run are damaged.
        """
        self.settings = settings or WriterSettings()
        if limit is not None and limit.drops:
            limit.demand_no_group(session, group)
            size = min(self.settings.file_bytes_max, limit.file_bytes_max)
            self.settings = replace(self.settings, file_bytes_max=size)
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
            drops = limit is not None and limit.drops
            self.dropping = Dropping(self._appender, limit.bytes) if limit and drops else None
        except BaseException:
            os.close(self._lock_fd)
            raise
        level = self.settings.compression
        self._compressor = zstandard.ZstdCompressor(level=level) if level else None
        self._rolls_at_s = float("inf")
        self._clock = clock
        self._syncer = Syncer(self._appender, self.settings, clock, threads)
        self.news = Announcer(self.directory)
        self._guard = ForkGuard("a Publisher", self._abandon)

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
        finish_dropping(appender)
        # Positions that the nodes have beyond the end were lost here, or belong to a log that a
        # backup has replaced. Reusing them would make the nodes confirm other messages.
        known = max(appender.end, confirmed.received, confirmed.replicated, confirmed.merged)
        if known.run >= _RUNS_MAX - 1:
            raise Misuse(
                f"{self.directory}: session {session!r} was started {_RUNS_MAX:,} times, and has "
                "no positions left; publish under another name"
            )
        began = bool(appender.manifest.order)
        self._next_file = known.next_run() if began or known else START

    @property
    def end(self) -> Position:
        """Return where the last messages end, ignoring files that are empty or dropped."""
        appender, place = self._appender, self._appender.end
        if self.dropping is None:
            return appender.manifest.frames_end(place)
        if appender.is_open and not appender.facts.frames:
            place = place.file
        return kept_end(appender.manifest, place)

    def kept(self, position: Position) -> Position:
        """Return where the last message before a position ends, not counting dropped messages."""
        if self.dropping is None:
            return position
        # read first: a drop is named there before its line is written
        return kept_end(self._appender.manifest, position, self.dropping.spans)

    @property
    def held_bytes(self) -> int:
        """Return how many bytes the session's files hold; any thread may call this."""
        active = self._appender.end.offset if self._appender.is_open else 0
        return held_bytes(self._appender.manifest, active)

    @property
    def first_held(self) -> int:
        """Return the number of the first message in the session's files; any thread may call."""
        appender, facts = self._appender, self._appender.facts
        begun = appender.is_open and facts.frames
        return first_held(appender.manifest, facts.first if begun else self.next_sequence)

    @property
    def manifest(self) -> Manifest:
        """Return the session's manifest."""
        return self._appender.manifest

    def synced_to(self) -> Durable:
        """Return the end of what is on stable storage; `WriterFailed` if a sync has failed."""
        self._check()
        return self._syncer.durable

    def write(
        self,
        times_ns: Sequence[int],
        payloads: Sequence[bytes],
        keys: Sequence[bytes] | None,
        headers: Sequence[bytes] | None = None,
    ) -> WrittenFrame | None:
        """Write messages as one frame; return it if small, to spare senders reading the file.

        Args:
            times_ns: publish time of each message, ns since the epoch; at least one.
            payloads: one for each message.
            keys: one for each message, or None if no message has one.
            headers: each message's encoded headers, or None if no message has any.

        Raises:
            WriterFailed: the disk failed, now or earlier; this writer has ended.
            OSError: the disk is full; nothing was written, and a later call may succeed.
        """
        self._check()
        body = encode_columns(times_ns, payloads, keys, headers)
        columns = KEYS_COLUMN * (keys is not None) | HEADERS_COLUMN * (headers is not None)
        try:
            self._make_room(len(body))
            written = self._append(body, times_ns[0], len(payloads), columns)
        except OSError as error:
            raise self._syncer.failed_or_full(error) from error
        self.next_sequence += len(payloads)
        self._syncer.written()
        return written

    def _append(
        self, body: bytes, time_ns: int, messages: int, columns: int
    ) -> WrittenFrame | None:
        position = self._appender.end
        frame = encode_frame(
            body,
            position=position,
            sequence=self.next_sequence,
            time_ns=time_ns,
            messages=messages,
            durable=self._syncer.durable,
            columns=columns,
            compressor=self._compressor,
            session_tag=session_tag(self._appender.identity.session),
        )
        after = self._appender.walk.copy()
        after.step(frame.header)
        self._appender.append(frame.parts, (frame.header,), after)
        if frame.header.size > SMALL_BYTES:
            return None
        return WrittenFrame(self._appender.identity.id, position, b"".join(frame.parts), messages)

    def _make_room(self, length: int) -> None:
        if self._appender.is_open:
            offset = self._appender.end.offset  # a file takes at least one frame, however large
            full = offset > 0 and offset + length + _OVERHEAD_BYTES > self.settings.file_bytes_max
            if not full and self._clock() < self._rolls_at_s:
                return
            self._roll()
        self._begin_file()

    def _begin_file(self) -> None:
        if self.dropping is not None:
            self.dropping.begin(self._next_file, self.next_sequence)
        else:
            self._appender.begin_file(self._next_file)
        age = self.settings.file_age_s
        self._rolls_at_s = self._clock() + age if age else float("inf")

    def drop_oldest(self) -> bool:
        """Drop the oldest file that can be dropped; return whether there was one.

        Raises:
            WriterFailed: the disk failed, now or earlier; this writer has ended.
            OSError: the disk is full; a later call may succeed.
        """
        self._check()
        if self.dropping is None:
            return False
        try:
            is_dropped = self.dropping.drop(self._begin_file)
        except OSError as error:
            raise self._syncer.failed_or_full(error) from error
        if is_dropped:
            self.news.grown()
        return is_dropped

    def _roll(self) -> None:
        following = self._appender.end.next_file()
        self._appender.roll(time.time_ns())
        self._next_file = following
        self._syncer.rolled()

    def roll(self) -> None:
        """Roll the active file if it holds messages; errors as for `roll_if_old`."""
        self._check()
        if self._appender.facts.frames:
            self._roll_early()

    def roll_if_old(self) -> None:
        """Roll the active file if it has reached its age, even without a new message.

        Raises:
            WriterFailed: the disk failed, now or earlier; this writer has ended.
            OSError: the disk is full; a later call may succeed.
        """
        self._check()
        if self._appender.is_open and self._clock() >= self._rolls_at_s:
            self._roll_early()

    def _roll_early(self) -> None:
        """Roll the active file although it is not full, and notify readers."""
        try:
            self._roll()
        except OSError as error:
            raise self._syncer.failed_or_full(error) from error
        self.news.grown()

    def sync(self, timeout_s: float | None = None) -> bool:
        """Wait until everything written so far is durable; False if the time ran out first."""
        self._guard.demand_owner()
        return self._syncer.wait(timeout_s)

    def ask_sync(self) -> Position:
        """Ask for a sync of everything written so far; return the position where that ends."""
        self._check()
        return self._syncer.ask()

    def hear_syncs(self, heard: Callable[[], None]) -> None:
        """Call `heard` after each sync and when the disk fails; `heard` must not wait."""
        self._syncer.heard = heard

    def close(self) -> None:
        """Sync, end the run and release the lock; raises if a sync has failed, now or before."""
        if self._guard.is_copy:
            return
        self._syncer.stop()
        try:
            self._syncer.check()
            self._syncer.give_up()  # before the last file is rolled, which is kept
            self._end_run()
        finally:
            try:
                self._appender.close()
            finally:
                self._release_lock()
                self.news.close()

    def _end_run(self) -> None:
        """Roll and sync the active file, and wake all threads waiting for a sync."""
        try:
            if self._appender.is_open:
                self._appender.roll(time.time_ns())
            durable = self._appender.sync()
        except OSError as error:
            self._syncer.failed(error)
            raise
        self._syncer.reached(durable)

    def _check(self) -> None:
        self._guard.demand_owner()
        self._syncer.check()

    def _abandon(self) -> None:
        """In a forked child: close its copies of the lock and the files, which the parent uses."""
        self._appender.abandon()
        self._release_lock()

    def _release_lock(self) -> None:
        """Release the session's lock; never close its descriptor twice, as numbers are reused."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)
