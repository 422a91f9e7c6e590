"""LogDirectory: what a reader knows about a log: its manifest so far, and its files."""

import os
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from typing import Final

from rt.errors import CorruptLog, ManifestError
from rt.format.index import SUFFIX, Index, IndexEntry
from rt.format.manifest import FILE_NAME, Manifest
from rt.format.seek import walk_before
from rt.format.walk import Walk
from rt.log.files.damaged_files import DamagedFiles
from rt.log.files.disk import Disk, File, OsDisk, OsFile
from rt.log.files.gc_pause import uncollected
from rt.log.files.identity import identity_in
from rt.log.files.listing import log_files, manifest_size
from rt.position import Position

_LOOKS_A_PROBE: Final = 16  # a probe costs three system calls
# kept from a manifest's end: at least one line, which no log recreated in its place repeats
_LAST_BYTES: Final = 256
_NO_INDEX: Final = Index(lambda _length, _offset: b"", 0)


class LogDirectory:
    """A log directory that others write. It may be empty, or not exist yet."""

    def __init__(
        self, path: str, disk: Disk | None = None, damaged: DamagedFiles | None = None
    ) -> None:
        self.path = path
        self._begin = os.path.join(path, "")  # prefix of its files' paths
        self.damaged = damaged or DamagedFiles()  # files of the log that are not served
        self.disk = disk or OsDisk()
        self.manifest = Manifest()
        self._manifest_file: File | None = None
        self._idle_looks = 0  # consecutive checks of the manifest without news
        self._inode: tuple[int, int] | None = None  # of the manifest as first read
        self._last = b""  # the last bytes that were read of the manifest

    @property
    def is_there(self) -> bool:
        """Whether the log exists."""
        return self.manifest.identity is not None

    @property
    def merged(self) -> bool:
        """Whether this is a merged log; False while the log does not exist."""
        return self.manifest.identity is not None and self.manifest.identity.merged

    @property
    def session(self) -> str:
        """The name of the session whose log this is; "" for a merged log, or if there is no log."""
        return "" if self.manifest.identity is None else self.manifest.identity.session

    def refresh(self) -> bool:
        """Read new lines of the manifest; return whether there were any.

        Raises:
            CorruptLog: a manifest line is damaged, or the log was deleted and another was created
                in its place.
        """
        if self._manifest_file is None:
            try:
                self._manifest_file = file = self._open_manifest()
            except FileNotFoundError:
                return False
            if not self.manifest.length:
                self._inode = _inode(file)
        try:
            return self._take_news(self._manifest_file)
        except ManifestError as error:
            path = os.path.join(self.path, FILE_NAME)
            raise CorruptLog(path, Position(0), str(error)) from None

    def _take_news(self, file: File) -> bool:
        known = self.manifest.length
        length = manifest_size(file) - known
        if length > 0:
            data = file.pread(length, known)
            with uncollected():
                taken = self.manifest.feed(data)
            self._last = (self._last + data[max(0, taken - _LAST_BYTES) : taken])[-_LAST_BYTES:]
            return bool(taken)
        self._idle_looks += 1
        if self._idle_looks % _LOOKS_A_PROBE == 0:
            self._is_same()
        return False

    def _open_manifest(self) -> File:
        return self.disk.open_read(self._begin + FILE_NAME)

    def _is_same(self) -> bool:
        """Whether the manifest on disk names this log; False if the manifest is missing.

        Raises:
            ManifestError: it names another log; waiting for the deleted log would be in vain.
        """
        try:
            file = self._open_manifest()
        except FileNotFoundError:
            return False
        with closing(file):
            found = identity_in(file)
        if found is not None and found != self.manifest.identity:
            raise ManifestError("the log was deleted, and another made in its place")
        return found is not None

    def is_continued(self) -> bool:
        """Whether the manifest on disk is still the file that was read, though it may have grown.

        It is another file only if the directory was deleted or restored from a backup: a log's own
        writer never replaces the manifest. After `close`, this call opens the manifest and keeps it
        open, so that no other file can get its inode.
        """
        try:
            file = self._open_manifest()
        except FileNotFoundError:
            return False
        with ExitStack() as undo:
            undo.callback(file.close)
            is_same = self._continues(file)
            if is_same and self._manifest_file is None:
                self._manifest_file = file
                undo.pop_all()
            return is_same

    def is_replaced(self) -> bool:
        """Whether another manifest has taken the place of the one read; see `is_continued`."""
        with suppress(FileNotFoundError), closing(self._open_manifest()) as file:
            return not self._continues(file)
        return False

    def begun_again(self) -> "LogDirectory | None":
        """Return the copy that has replaced this one, refreshed; None if this one is still there.

        The new copy has the same identity. It may be incomplete: a node whose log was deleted
        copies it from the other nodes, from the first line on.

        Raises:
            CorruptLog: The directory now holds a log with another identity.
        """
        if self._inode is None or self._manifest_status()[0] == self._inode:
            return None
        fresh = LogDirectory(self.path, self.disk, self.damaged)
        try:
            fresh.refresh()
        finally:
            fresh.close()
        if fresh.is_there and fresh.manifest.identity != self.manifest.identity:
            reason = "the log was deleted, and another made in its place"
            raise CorruptLog(os.path.join(self.path, FILE_NAME), Position(0), reason)
        return fresh

    def take_up(self, fresh: "LogDirectory") -> None:
        """From now on, read `fresh`, the copy that has replaced this one."""
        self.close()
        self.manifest, self._inode, self._last = fresh.manifest, fresh._inode, fresh._last

    def is_in_place(self) -> bool:
        """Whether the manifest was neither replaced nor shortened; one system call."""
        if self._inode is None:
            return True  # the disk has no inodes
        inode, size = self._manifest_status()
        return inode == self._inode and size >= self.manifest.length

    def is_as_read(self) -> bool:
        """Whether the manifest was neither replaced nor changed in length; one system call."""
        known = self._inode, self.manifest.length  # read before checking whether they changed
        return self._manifest_status() == known

    @property
    def has_inodes(self) -> bool:
        """Whether `is_as_read` can notice that another log has replaced this log."""
        return self._inode is not None

    def _manifest_status(self) -> tuple[tuple[int, int] | None, int]:
        """Return inode and size of the manifest on disk; None and 0 if the manifest is missing."""
        try:
            if isinstance(self.disk, OsDisk):
                status = os.stat(self._begin + FILE_NAME)
                return (status.st_dev, status.st_ino), status.st_size
            with closing(self._open_manifest()) as file:
                return _inode(file), file.size()
        except FileNotFoundError:
            return None, 0

    def _continues(self, file: File) -> bool:
        begin = self.manifest.length - len(self._last)
        is_same = _inode(file) == self._inode
        return is_same and file.pread(len(self._last), begin) == self._last

    def files(self) -> list[Position]:
        """Return the start positions of the files that still hold their bytes, oldest first."""
        return [start for start in log_files(self.disk, self.path) if not self.is_gone(start)]

    def due_files(self) -> list[Position]:
        """Return the files that hold their bytes, or should hold them, oldest first.

        A rolled file that was not archived belongs to the log even if it was deleted: a reader has
        to notice that it is missing.
        """
        due = (start for start in self.manifest.order if not self.is_gone(start))
        return sorted({*self.files(), *due})

    def unreadable_files(self) -> list[Position]:
        """Return the rolled files that were archived or are missing, oldest first."""
        there = set(self.files())
        return [start for start in self.manifest.order if start not in there]

    def is_gone(self, start: Position) -> bool:
        """Whether a file was archived, so that its bytes can no longer be read."""
        return start in self.manifest.archived

    def file_from(self, position: Position) -> Position | None:
        """Return the file of `position`, or the next one if its bytes are gone; None at the end."""
        begin = position.file
        if not self.is_gone(begin) and self.has_file(begin):
            return begin  # most often: the directory need not be listed
        later = (start for start in log_files(self.disk, self.path) if start > begin)
        return next((start for start in later if not self.is_gone(start)), None)

    def has_file(self, start: Position) -> bool:
        """Whether a file exists, even if it is empty."""
        try:
            self.open_file(start).close()
        except FileNotFoundError:
            return False
        return True

    def open_file(self, start: Position) -> File:
        """Open a file for reading; `FileNotFoundError` if it does not exist."""
        return self.disk.open_read(self.file_path(start))

    def replacement(self, start: Position, file: File) -> File | None:
        """Open the file that has replaced the open `file`; None if `file` was not replaced."""
        if not isinstance(file, OsFile):
            return None  # an object store has no inodes, and an open costs a request
        try:
            fresh = self.open_file(start)
        except FileNotFoundError:
            return None
        if isinstance(fresh, OsFile) and file.inode != fresh.inode and self._is_ours(fresh):
            return fresh
        fresh.close()
        return None

    def _is_ours(self, fresh: File) -> bool:
        """Whether a newly opened file belongs to this log, not to another created in its place."""
        try:
            return self._is_same()
        except ManifestError as error:
            fresh.close()
            raise CorruptLog(os.path.join(self.path, FILE_NAME), Position(0), str(error)) from None

    def open_index(self, start: Position) -> tuple[Index, File | None]:
        """Return a file's index and the open index file, which the caller closes.

        Without an index file, this is an empty index and None.
        """
        try:
            file = self.disk.open_read(self.file_path(start) + SUFFIX)
        except FileNotFoundError:
            return _NO_INDEX, None
        return Index(file.pread, file.size()), file

    def walk_before(
        self, file: File, start: Position, is_past: Callable[[IndexEntry], bool]
    ) -> Walk:
        """Return a walk that begins in an open file, at its last indexed frame not past a place.

        `is_past` returns whether an index entry is past that place.
        """
        index, index_file = self.open_index(start)
        try:
            return walk_before(
                file.pread, index, start, is_past, merged=self.merged, session=self.session
            )
        finally:
            if index_file is not None:
                index_file.close()

    def file_path(self, start: Position) -> str:
        """Return the path of a file."""
        return self._begin + start.file_name

    def close(self) -> None:
        """Close the manifest; `refresh` opens it again."""
        if self._manifest_file is not None:
            self._manifest_file.close()
            self._manifest_file = None


def _inode(file: File) -> tuple[int, int] | None:
    return file.inode if isinstance(file, OsFile) else None
