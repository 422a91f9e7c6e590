"""Appender: appends whole frames to a log directory."""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import NewType

from rt.errors import CorruptLog, DiskFailed, ManifestError, Misuse
from rt.format.checksum import crc32
from rt.format.frame import Header
from rt.format.index import SUFFIX
from rt.format.manifest import FILE_NAME, Archived, LogIdentity, Rolled, encode_entry
from rt.format.recovery import Corrupt, Torn, judge
from rt.format.walk import Walk
from rt.limits import READ_BYTES
from rt.log.files.archived import empty_files, finish_archiving
from rt.log.files.disk import Disk, File, Span, put_in_place
from rt.log.files.listing import load_manifest, log_files, place_of
from rt.log.write.active_file import ActiveFile, Facts, take_back
from rt.log.write.recent_frames import RecentFrames, UsedSpan
from rt.position import Position

# A position up to which a log was synced. Every acknowledgement is built from one, and only
# `Appender.sync` makes them.
Durable = NewType("Durable", Position)


class Appender:
    """The growing end of one log directory.

    A publisher's writer, the receiving side of replication and the merge all append through this
    class, so files are rolled, indexed and recovered in one way.

    Threads: One thread at a time opens, recovers, appends, rolls and closes; it alone writes
        `walk`, `end`, `is_open`, `torn` and `_file`; `recent` is set once and has a lock of its
        own. Any thread may call `sync`, `archive_all`, `record`, `read`, `verify`, `verify_file`,
        `compare`, `held` and `replace_rolled`. `_closing` is held while `_file` syncs or closes, so
        that no file is closed during its sync. `_recording` is held while lines are written and
        files are emptied, and guards `manifest` and `is_closed`; readers of `manifest` in other
        threads copy what they iterate over. `_failure` is set once and never cleared. `walk` is
        replaced, never changed; any thread may read it, and `end`.

    Attributes:
        walk: checks the next frame.
        end: where the next frame goes; the end of the last rolled file if no file is active.
        is_open: whether a file is active.
    """

    def __init__(self, disk: Disk, directory: str, identity: LogIdentity) -> None:
        """Open the log in `directory`, or create it with `identity`.

        Raises:
            ManifestError: the manifest is damaged, or missing although log files exist.
        """
        self.disk = disk
        self.directory = directory
        self.torn: Torn | None = None
        self.recent: RecentFrames | None = None  # set by a host that wants them in memory
        self._file: ActiveFile | None = None
        self.is_open = False
        self._failure: DiskFailed | None = None
        self.is_closed = False
        self._closing = threading.Lock()
        self._recording = threading.Lock()
        disk.make_directory(directory)
        path = os.path.join(directory, FILE_NAME)
        with closing(disk.open(path, create=True)) as file:
            # Listed first: a new file is created only after the line that ends the previous one.
            there = log_files(disk, directory)
            self.manifest = load_manifest(file, path)
            self._demand_lines(there, path)
            self._mend_manifest(file)
            self._place = place_of(file)
            if self.manifest.identity is not None:
                file.sync()
        if self.manifest.identity is None:
            self.record(identity)
        self.identity: LogIdentity = self.manifest.identity or identity
        self._go_to(self._walk(self._last_rolled_end()))

    def _go_to(self, walk: Walk) -> None:
        self.walk, self.end = walk, walk.position

    def _demand_lines(self, there: Sequence[Position], path: str) -> None:
        """Raise `ManifestError` if the first line or an older file's `rolled` line is missing."""
        if self.manifest.identity is None and there:
            raise ManifestError(f"{path}: does not name the log whose files are beside it")
        order = self.manifest.order
        unended = [start for start in there if not order or start > order[-1]]
        if len(unended) > 1:
            file, later = (each.file_name for each in unended[:2])
            raise ManifestError(f"{path}: does not say where {file} ends, though {later} is there")

    def _mend_manifest(self, file: File) -> None:
        """Cut off an unfinished last line, and make the next sync rewrite all other lines.

        The other lines may exist only in memory, if a sync has failed.
        """
        if self.manifest.length < file.size():
            file.truncate(self.manifest.length)
        file.write_again(0)

    @property
    def next_place(self) -> Position:
        """Where a merged log continues: at `end`, or in the next file if one was rolled there."""
        return self.end.next_file() if self.end.file in self.manifest.rolled else self.end

    @property
    def last_frame(self) -> Position | None:
        """Return where the last frame of the active file begins; None if the file has no frame."""
        return None if self._file is None else self._file.last_frame

    @property
    def facts(self) -> Facts:
        """Return the active file's totals; empty if no file is active."""
        return Facts() if self._file is None else self._file.facts

    @property
    def next_number(self) -> int:
        """The next message's number: sequence number, or number in the merged stream."""
        if self.facts.frames:
            return self.facts.next
        order = self.manifest.order
        return self.manifest.rolled[order[-1]].next if order else 0

    def recover(
        self, *, durable: int = 0, cut: bool = True, whole: bool = False, own: bool = True
    ) -> None:
        """Continue where the log's last writer stopped: judge the active file, if there is one.

        Args:
            durable: a position up to which the log is known to have been durable.
            cut: whether to cut a torn tail. A copy cuts it, and fetches these bytes again; a
                publisher leaves the bytes of its older runs as they are.
            whole: whether to check the whole active file, at about 1 GB/s, instead of only what
                follows its last index entry.
            own: False for a copy, because the durable positions in its frames refer to another
                disk.

        Raises:
            CorruptLog: durable bytes are damaged; nothing was changed.
        """
        start = self._active_start()
        if start is None:
            return
        file = self._open_file(start)
        try:
            verdict, walk = file.recover(durable=durable, whole=whole, own=own)
            if isinstance(verdict, Corrupt):
                raise CorruptLog(self._path(start), verdict.at, verdict.reason)
            if isinstance(verdict, Torn):
                self.torn = verdict
                if cut:
                    file.cut(verdict.at.offset)
        except BaseException:
            file.close()
            raise
        self._file, self.is_open = file, True
        self._go_to(walk)

    def begin_file(self, start: Position) -> None:
        """Make the file that starts at `start` the active one; the previous one must be rolled.

        Raises:
            Misuse: a file is still active, or `start` is before the end.
        """
        if self._file is not None or start < self.end:
            raise Misuse(f"{self._path(start)} cannot follow {self.end} in {self.directory}")
        self._file, self.is_open = self._open_file(start), True
        self._go_to(self._walk(start))

    def append(
        self,
        parts: Sequence[bytes | memoryview],
        headers: Sequence[Header],
        after: Walk,
        copied: Span | None = None,
    ) -> None:
        """Append frames.

        Args:
            parts: the bytes of the frames, split anywhere.
            headers: the headers of all frames in order, including those in `copied`.
            after: a copy of `walk` that has stepped over these headers, so they were checked.
            copied: bytes of another log's file that follow `parts`, copied without being parsed.

        Raises:
            OSError: the bytes could not be written; the log ends where it ended before.
            EOFError: `copied` names bytes that do not exist; the log ends where it ended before.
            DiskFailed: a partial write could not be removed, or an earlier sync failed; the log
                takes no more frames.
        """
        file = self._file
        if file is None or self._failure is not None:
            file = self._active()
        try:
            file.append(parts, headers, copied)
        except DiskFailed as error:
            self._failure = error
            raise
        if self.recent is not None:
            if copied is None:
                self.recent.keep(self.end, after.position, parts, headers)
            if copied is not None or self.is_closed:  # or closed meanwhile
                self.recent.clear()
        self.walk, self.end = after, after.position

    def cut(self, position: Position) -> None:
        """Cut the active file at a frame; what follows is about to be rewritten."""
        file = self._active()
        file.cut(position.offset)
        self._close_file()
        if self.recent is not None:
            self.recent.clear()
        self._file, self.is_open = self._open_file(position.file), True
        self._go_to(self._file.recover(durable=0)[1])

    def read(self, position: Position, length: int) -> bytes:
        """Read up to `length` bytes at a position."""
        with closing(self.disk.open_read(self._path(position))) as file:
            return file.pread(length, position.offset)

    def verify(self, since: Position) -> None:
        """Check all files from the one that contains `since`; any thread may call this.

        Raises:
            CorruptLog: a file no longer holds the frames that were appended.
            OSError: a file cannot be read.
        """
        end = self.end
        ends = {each: line.end for each, line in self.manifest.rolled.copy().items()}
        for start, size in sorted((ends | {end.file: end.offset}).items()):
            if size and start >= since.file and start not in self.manifest.archived:
                self._verify_file(start, size)

    def verify_file(self, position: Position) -> None:
        """Check the file that contains a position; errors as for `verify`."""
        start, end, line = position.file, self.end, self.manifest.rolled.get(position.file)
        size = line.end if line is not None else end.offset if end.file == start else 0
        if size and start not in self.manifest.archived:
            self._verify_file(start, size)

    def _verify_file(self, start: Position, size: int) -> None:
        with closing(self.disk.open_read(self._path(start))) as file:
            verdict = judge(file.pread, size, self._walk(start), durable=start + size, own=False)
        # archived meanwhile
        if isinstance(verdict, Corrupt) and start not in self.manifest.archived:
            raise CorruptLog(self._path(start), verdict.at, verdict.reason)

    def compare(self, spans: Sequence[UsedSpan]) -> None:
        """Compare the log's files with bytes that were taken from memory; any thread may call this.

        Raises:
            CorruptLog: a file has other bytes.
            OSError: a file cannot be read.
        """
        for begin, end, crc in spans:
            is_same = self._crc(begin, end) == crc
            is_gone = self.is_closed or begin.file in self.manifest.archived
            if not is_same and not is_gone:
                words = f"it has other bytes up to {end} than were received and merged, or none"
                raise CorruptLog(self._path(begin.file), begin, words)

    def _crc(self, begin: Position, end: Position) -> int | None:
        """Return the CRC-32 of the log's bytes in a range; None if the disk has lost some."""
        crc = 0
        try:
            for place in range(begin, end, READ_BYTES):  # many bytes, after a slow sync
                length = min(READ_BYTES, end - place)
                crc = crc32(self.read(Position(place), length), crc)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None
        return crc

    def sync(self) -> Durable:
        """Make the log durable; return where it ended when the sync began.

        Raises:
            DiskFailed: this sync or an earlier one failed; a failed sync is never retried.
        """
        end = self.walk.position  # read before `_file`: a roll in between would have synced it
        with self._closing:
            self._check()
            if self._file is not None:
                self._do_once(self._file.sync)
        return Durable(end)

    def roll(self, at_ns: int, *, digest: str = "", sessions: str = "") -> Rolled:
        """End the active file: sync it, then record its end in the manifest.

        Args:
            at_ns: the time to record, ns since the epoch.
            digest: a merged log's digest up to here, in hexadecimal.
            sessions: names from `rt.format.manifest.session_list`.
        """
        number, facts, end = self.next_number, self.facts, self.sync()
        if not facts.frames:  # an empty file repeats earlier values, so that searches stay in order
            order = self.manifest.order
            time_ns = self.manifest.rolled[order[-1]].last_time_ns if order else 0
            facts = Facts(0, number, number, time_ns, time_ns)
        line = Rolled(
            end.file, end.offset, facts.first, number, facts.first_time_ns, facts.last_time_ns,
            at_ns, digest, sessions,
        )  # fmt: skip
        self.record(line)
        self._close_file()
        return line

    def follow_roll(self, line: Rolled) -> None:
        """End a copy's active file where the original ends, recording the original's line.

        Raises:
            Misuse: the copy ends elsewhere.
        """
        if self._file is None or self.sync() != line.file + line.end:
            raise Misuse(f"{self.directory} ends at {self.end}, not where {line} says")
        self.record(line)
        self._close_file()

    def archive(self, line: Archived) -> None:
        """Archive a rolled file: its bytes are removed, its name and manifest lines stay."""
        self.archive_all([line])

    def archive_all(self, lines: Sequence[Archived], *, empty: bool = True) -> None:
        """Archive rolled files with one synced write of all lines; any thread may call this.

        With `empty=False` the caller empties the files later, with
        `rt.log.files.archived.empty_files`.
        """
        with self._recording:  # after `close`, another log may be using this directory
            self._record(lines)
            if empty:
                empty_files(self.disk, self.directory, [line.file for line in lines])

    def finish_archiving(self) -> None:
        """Truncate archived files that a crash left with bytes; any thread may call this."""
        with self._recording:
            if not self.is_closed:
                finish_archiving(self.disk, self.directory, self.manifest)

    def skip_archived(self, rolled: Rolled, line: Archived) -> None:
        """Continue after a file that a copy can never complete, because its source archived it."""
        self._close_file()
        # One write in this order: if it is torn, the first line remains, and both are sent again.
        self.record(line, rolled)
        self._empty(line.file)
        self._go_to(self._walk(Position(rolled.file + rolled.end)))

    def _empty(self, start: Position) -> None:
        with closing(self.disk.open(self._path(start), create=True)) as file:
            file.truncate(0)

    def record(self, *entries: LogIdentity | Rolled | Archived) -> None:
        """Write and sync manifest lines, before the changes they record. Any thread may call this.

        Raises:
            OSError: the lines could not be written; nothing was recorded.
            DiskFailed: the lines may or may not be on disk; this log takes no more frames.
        """
        with self._recording:
            self._record(entries)

    def _record(self, entries: Sequence[LogIdentity | Rolled | Archived]) -> None:
        self._demand_open()
        for entry in entries:
            self.manifest.check(entry)
        # Opened each time: for ten thousand idle sessions, open files would take 3 MB.
        with closing(self.disk.open(os.path.join(self.directory, FILE_NAME))) as file:
            if place_of(file) != self._place:
                raise FileNotFoundError(errno.ENOENT, "the manifest was replaced", self.directory)
            end = file.size()
            try:
                file.append([b"".join(map(encode_entry, entries))])
            except OSError:
                self._do_once(lambda: take_back(file, end))
                raise
            self._do_once(file.sync)
        for entry in entries:
            self.manifest.add(entry)

    def replace_rolled(self, start: Position, fresh: str) -> str | None:
        """Replace a damaged rolled file by a whole copy; any thread may call this.

        A reader that has the damaged file open keeps it, and gets the new file if it opens the path
        again.

        Args:
            start: where the file starts.
            fresh: path of the copy, synced and checked, on the same file system; its index is in
                the same directory.

        Returns:
            The name under which the damaged file is kept, or ""; None if nothing was replaced
            because the file has been archived.

        Raises:
            OSError: the file could not be replaced, or the log was closed.
        """
        path = self._path(start)
        with self._recording:  # no file is emptied before its line is recorded
            self._demand_open()
            if start in self.manifest.archived:
                return None
            if start not in self.manifest.rolled:
                raise Misuse(f"{path} is not a rolled file")
            kept = put_in_place(self.disk, fresh, path)
            with suppress(FileNotFoundError):  # there may be no index
                self.disk.replace(fresh + SUFFIX, path + SUFFIX)
        return kept

    def _demand_open(self) -> None:
        self._check()
        if self.is_closed:  # an archiving thread may not have noticed yet
            raise OSError(errno.EBADF, f"{self.directory} was closed")

    def close(self) -> None:
        """Write the index and release the files, without a sync. Idempotent."""
        try:
            self._close_file()
        finally:
            with self._recording:
                self.is_closed = True
            if self.recent is not None:
                self.recent.clear()

    def abandon(self) -> None:
        """In a forked child: close the files, write nothing and take no lock."""
        self.is_closed = True
        file, self._file, self.is_open = self._file, None, False
        with suppress(OSError):  # the parent may have been closing them
            if file is not None:
                file.abandon()

    def _do_once(self, act: Callable[[], None]) -> None:
        """Run `act`; if it fails, end this log's writing, because a retry may wrongly succeed."""
        try:
            act()
        except OSError as error:
            self._failure = DiskFailed(error.errno, error.strerror)
            raise self._failure from error

    def _check(self) -> None:
        if self._failure is not None:
            raise DiskFailed(self._failure.errno, self._failure.strerror)

    def _walk(self, position: Position) -> Walk:
        return Walk(position, merged=self.identity.merged, session=self.identity.session)

    def _open_file(self, start: Position) -> ActiveFile:
        identity = self.identity
        return ActiveFile(
            self.disk, self._path(start), start, merged=identity.merged, session=identity.session
        )

    def _active(self) -> ActiveFile:
        self._check()
        if self._file is None:
            raise Misuse(f"no file of {self.directory} is open to append to")
        return self._file

    def _close_file(self) -> None:
        with self._closing:
            file, self._file, self.is_open = self._file, None, False
            if file is not None:
                file.close()

    def _path(self, start: Position) -> str:
        return os.path.join(self.directory, start.file_name)

    def _last_rolled_end(self) -> Position:
        order = self.manifest.order
        return Position(order[-1] + self.manifest.rolled[order[-1]].end) if order else Position(0)

    def _active_start(self) -> Position | None:
        order = self.manifest.order
        newest = max(log_files(self.disk, self.directory), default=None)
        return None if newest is None or (order and newest <= order[-1]) else newest
