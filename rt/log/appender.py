"""Appender: puts whole frames at the end of a log directory, and nothing but whole frames."""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NewType

from rt.errors import CorruptLog, DiskFailed, ManifestError, Misuse
from rt.format.frame import Header
from rt.format.manifest import FILE_NAME, Archived, LogIdentity, Manifest, Rolled, encode_entry
from rt.format.recovery import Corrupt, Torn, judge
from rt.format.walk import Walk
from rt.log.active_file import ActiveFile, Facts, take_back
from rt.log.archived import empty_files
from rt.log.disk import Disk, File, Span
from rt.position import Position, file_position

# An acknowledgement of durability can only be built from this, and only `Appender.sync` makes one.
Durable = NewType("Durable", Position)


class Appender:
    """The growing end of one log directory.

    The publisher's writer, the receiving end of a replicator and the merge all append through
    this, so that files are rolled, indexed and recovered in one way. One thread appends; another
    may call `sync`.
    """

    def __init__(self, disk: Disk, directory: str, identity: LogIdentity) -> None:
        """Open the log in `directory`; make it, with `identity`, if there is none.

        Raises:
            ManifestError: the manifest is damaged, or is gone while its files are not.
        """
        self.disk = disk
        self.directory = directory
        self.torn: Torn | None = None
        self._file: ActiveFile | None = None
        self._failure: DiskFailed | None = None
        self._is_closed = False
        self._closing = threading.Lock()  # a file is not closed while it is being synced
        self._recording = threading.Lock()  # who appends records rolls, another thread archives
        disk.make_directory(directory)
        path = os.path.join(directory, FILE_NAME)
        self._manifest_file: File = disk.open(path, create=True)
        try:
            # Listed first: a file is there only after the line that ends the one before it.
            there = log_files(disk, directory)
            self.manifest = load_manifest(self._manifest_file, path)
            self._demand_lines(there, path)
            self._cut_manifest()
            if self.manifest.identity is None:
                self._begin(identity, path)
            else:
                self._manifest_file.sync()  # what was read may only be in memory
        except BaseException:
            self._manifest_file.close()
            raise
        self.identity: LogIdentity = self.manifest.identity or identity
        self.walk = self._walk(self._last_rolled_end())

    def _demand_lines(self, there: Sequence[Position], path: str) -> None:
        """Only the newest file may be active; a line that is lost would make others so."""
        order = self.manifest.order
        unended = [start for start in there if not order or start > order[-1]]
        if self.manifest.identity is not None and len(unended) > 1:
            file, later = (each.file_name for each in unended[:2])
            raise ManifestError(f"{path}: does not say where {file} ends, though {later} is there")

    def _cut_manifest(self) -> None:
        """Cut a last line that was never finished."""
        if self.manifest.length < self._manifest_file.size():
            self._manifest_file.truncate(self.manifest.length)

    def _begin(self, identity: LogIdentity, path: str) -> None:
        if log_files(self.disk, self.directory):
            raise ManifestError(f"{path}: does not name the log whose files stand beside it")
        self.record(identity)

    @property
    def end(self) -> Position:
        """Where the next frame goes; the end of the last rolled file if no file is active."""
        return self.walk.position

    @property
    def next_place(self) -> Position:
        """Where a merged log goes on: at `end`, or in the next file once that one was rolled."""
        return self.end.next_file() if self.end.file in self.manifest.rolled else self.end

    @property
    def is_open(self) -> bool:
        """Whether a file is active."""
        return self._file is not None

    @property
    def is_closed(self) -> bool:
        """Whether the files were released, for example because the copy was set aside."""
        return self._is_closed

    @property
    def last_frame(self) -> Position | None:
        """Where the last frame of the active file begins; None if it holds none."""
        return None if self._file is None else self._file.last_frame

    @property
    def facts(self) -> Facts:
        """What the active file holds; nothing if there is none."""
        return Facts() if self._file is None else self._file.facts

    @property
    def next_number(self) -> int:
        """The number the next message gets: sequence number, or number in the merged stream."""
        if self.facts.frames:
            return self.facts.next
        order = self.manifest.order
        return self.manifest.rolled[order[-1]].next if order else 0

    def recover(
        self, *, durable: int = 0, cut: bool = True, whole: bool = False, own: bool = True
    ) -> None:
        """Go on where the last life of this log ended: judge its active file, if there is one.

        Args:
            durable: up to where the log is known to have been durable.
            cut: whether to cut a torn tail, which a copy fetches again; a publisher leaves the
                bytes of its older runs as they are.
            whole: whether to check all of the active file, at about 1 GB/s, and not only what
                comes after its last index entry.
            own: False for a copy: what its frames call durable was so on another disk.

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
        self._file, self.walk = file, walk

    def begin_file(self, start: Position) -> None:
        """Make the file that starts at `start` the active one; the last must have been rolled.

        Raises:
            Misuse: there is still an active file, or `start` lies before the end.
        """
        if self._file is not None or start < self.end:
            raise Misuse(f"{self._path(start)} cannot follow {self.end} in {self.directory}")
        self._file = self._open_file(start)
        self.walk = self._walk(start)

    def append(
        self,
        parts: Sequence[bytes | memoryview],
        headers: Sequence[Header],
        after: Walk,
        copied: Span | None = None,
    ) -> None:
        """Append frames.

        Args:
            parts: the bytes of the frames, in any cut.
            headers: the frames, those in `copied` too, in order.
            after: a copy of `walk` that took these headers, so that their places were checked.
            copied: bytes of another log's file that follow `parts`, copied inside the kernel.

        Raises:
            OSError: the bytes could not be written; the log ends where it did.
            EOFError: `copied` names bytes that are not there; the log ends where it did.
            DiskFailed: nor could they be taken back, or a sync failed before: this log has ended.
        """
        file = self._active()
        self._check()
        try:
            file.append(parts, headers, copied)
        except DiskFailed as error:
            self._failure = error
            raise
        self.walk = after

    def cut(self, position: Position) -> None:
        """End the log at a frame of its active file: what follows is about to be written again."""
        file = self._active()
        file.cut(position.offset)
        self._close_file()
        self._file = self._open_file(position.file)
        _, self.walk = self._file.recover(durable=0)

    def read(self, position: Position, length: int) -> bytes:
        """Read up to `length` bytes at a position, from the file it lies in."""
        file = self.disk.open_read(self._path(position))
        try:
            return file.pread(length, position.offset)
        finally:
            file.close()

    def verify(self, since: Position) -> None:
        """Read all there is of the files from the one on that `since` lies in; any thread may.

        Raises:
            CorruptLog: one does not hold the frames any more that were appended.
            OSError: one cannot be read.
        """
        end = self.end
        ends = {each: line.end for each, line in self.manifest.rolled.copy().items()}
        for start, size in sorted((ends | {end.file: end.offset}).items()):
            if size and start >= since.file and start not in self.manifest.archived:
                self._verify_file(start, size)

    def _verify_file(self, start: Position, size: int) -> None:
        file = self.disk.open_read(self._path(start))
        try:
            verdict = judge(file.pread, size, self._walk(start), durable=start + size, own=False)
        finally:
            file.close()
        if isinstance(verdict, Corrupt) and start not in self.manifest.archived:  # meanwhile
            raise CorruptLog(self._path(start), verdict.at, verdict.reason)

    def sync(self) -> Durable:
        """Return the end as it stood when the sync began, now durable.

        Raises:
            DiskFailed: this sync failed, or one before it; it is not tried again.
        """
        end = self.walk.position  # read before the file: a roll in between has synced the old one
        with self._closing:
            self._check()
            if self._file is not None:
                self._settle(self._file.sync)
        return Durable(end)

    def roll(self, at_ns: int, *, digest: str = "", sessions: str = "") -> Rolled:
        """End the active file: sync it, then write the line that makes its end a fact.

        Args:
            at_ns: when, as the line says it.
            digest: of a merged log, as the line says it.
            sessions: as `rt.format.manifest.session_list` names them.
        """
        number, facts, end = self.next_number, self.facts, self.sync()
        if not facts.frames:  # an empty file repeats what was, so that searches find an order
            order = self.manifest.order
            time_ns = self.manifest.rolled[order[-1]].last_time_ns if order else 0
            facts = Facts(0, number, number, time_ns, time_ns)
        line = Rolled(
            end.file,
            end.offset,
            facts.first,
            number,
            facts.first_time_ns,
            facts.last_time_ns,
            at_ns,
            digest,
            sessions,
        )
        self.record(line)
        self._close_file()
        return line

    def follow_roll(self, line: Rolled) -> None:
        """End the active file of a copy where the log it is a copy of has, by that log's line.

        Raises:
            Misuse: the copy ends elsewhere.
        """
        if self._file is None or self.sync() != line.file + line.end:
            raise Misuse(f"{self.directory} ends at {self.end}, not where {line} says")
        self.record(line)
        self._close_file()

    def archive(self, line: Archived) -> None:
        """Give up the bytes of a rolled file; its name and its lines stay."""
        self.archive_all([line])

    def archive_all(self, lines: Sequence[Archived], *, empty: bool = True) -> None:
        """Give up the bytes of rolled files, by one synced write of their lines.

        Any thread may call it.

        Args:
            lines: one a file.
            empty: whether to empty them now; else somebody does by `rt.log.archived.empty_files`.
        """
        self.record(*lines)
        if empty:
            empty_files(self.disk, self.directory, [line.file for line in lines])

    def skip_archived(self, rolled: Rolled, line: Archived) -> None:
        """Go on behind a file that a copy can never have all of: its source has archived it."""
        self._close_file()
        # as one, in this order: of a torn write the first is left, and then it is told again
        self.record(line, rolled)
        self._empty(line.file)
        self.walk = self._walk(Position(rolled.file + rolled.end))

    def _empty(self, start: Position) -> None:
        file = self.disk.open(self._path(start), create=True)
        try:
            file.truncate(0)
        finally:
            file.close()

    def record(self, *entries: LogIdentity | Rolled | Archived) -> None:
        """Write manifest lines and sync them, before the acts they speak of.

        Raises:
            OSError: the lines could not be written; nothing was recorded.
            DiskFailed: they may or may not be on the disk: this log has ended.
        """
        with self._recording:
            self._check()
            if self._is_closed:  # whoever archives may not know yet
                raise OSError(errno.EBADF, f"{self.directory} was closed")
            for entry in entries:
                self.manifest.check(entry)
            end = self._manifest_file.size()
            try:
                self._manifest_file.append([b"".join(map(encode_entry, entries))])
            except OSError:
                self._settle(lambda: take_back(self._manifest_file, end))
                raise
            self._settle(self._manifest_file.sync)
            for entry in entries:
                self.manifest.add(entry)

    def close(self) -> None:
        """Write the index and release the files; nothing is synced by this. It may be repeated."""
        try:
            self._close_file()
        finally:
            with self._recording:
                if not self._is_closed:
                    self._is_closed = True
                    self._manifest_file.close()

    def abandon(self) -> None:
        """In a forked child: release the descriptors, write nothing, and take no lock."""
        self._is_closed = True
        file, self._file = self._file, None
        with suppress(OSError):  # the parent may have been closing them
            if file is not None:
                file.abandon()
            self._manifest_file.close()

    def _settle(self, act: Callable[[], None]) -> None:
        """Do what is never tried again, because a second try may say it went well."""
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
        if self._file is None:
            raise Misuse(f"no file of {self.directory} is open to append to")
        return self._file

    def _close_file(self) -> None:
        with self._closing:
            file, self._file = self._file, None
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


def log_files(disk: Disk, directory: str) -> list[Position]:
    """Return where the log files in a directory start, oldest first; other names are left alone."""
    starts = (file_position(name) for name in disk.names(directory))
    return sorted(start for start in starts if start is not None)


def load_manifest(file: File, path: str) -> Manifest:
    """Read a manifest for its owner.

    Raises:
        ManifestError: a finished line is damaged; names the file.
    """
    manifest = Manifest()
    try:
        manifest.feed(file.pread(file.size(), 0))
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from None
    return manifest
