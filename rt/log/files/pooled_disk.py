"""PooledDisk: any number of open files on a limited number of descriptors."""

import errno
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from itertools import islice
from typing import Concatenate, Final, ParamSpec, TypeVar

from rt.format.index import SUFFIX
from rt.latencies import Latencies
from rt.log.files.disk import OsDisk, OsFile

# A pool gets a quarter of the process's descriptor limit; the rest is for connections, the merged
# log, the journal and peers. At the usual limit of 1,024, a pool has 256 descriptors, and an active
# session uses 5.
_SHARE: Final = 4
_FILES_MIN: Final = 32
_FILES_MAX: Final = 4096  # more gain nothing: reopening a file takes some 5 us
_INODE_BITS: Final = 64
_NEVER: Final = object()
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def pool_size() -> int:
    """Return how many descriptors a pool may use, given this process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FILES_MAX if soft == resource.RLIM_INFINITY else soft // _SHARE
    return max(_FILES_MIN, min(limit, _FILES_MAX))


class PooledDisk(OsDisk):
    """A disk whose files give up their descriptors when others need them, and reopen when used.

    Every session that a node has ever seen has open files, most of them unused for days. A file
    with unsynced writes keeps its descriptor, because the kernel reports a disk error only to
    descriptors that were open when it happened.

    Threads:
        `lock` guards `_open` and `uses`, and in every file `pins`, `used`, `is_open`, `is_closed`
        and the descriptor. It is held while a file reopens or gives up its descriptor, but
        not while it is read, written or synced. `files_max` and `recent_uses` are set once. Any
        thread may call everything.
    """

    def __init__(self, files_max: int = 0, syncs: Latencies | None = None) -> None:
        """Use at most `files_max` descriptors, or `pool_size()` if that is 0.

        Files that are in use or unsynced keep their descriptors, even beyond the limit. `syncs`
        records the duration of each sync.
        """
        super().__init__(syncs)
        self.files_max = files_max or pool_size()
        # Least recently used first. A file that was moved to the end within the last `recent_uses`
        # uses of the pool is still far from the front, so it is not moved again.
        self._open: OrderedDict[PooledFile, object] = OrderedDict()
        self.recent_uses = self.files_max // 4
        self.uses = 0
        self.lock = threading.Lock()

    def open(self, path: str, *, create: bool = False) -> "PooledFile":
        """Open for reading and appending."""
        self._make_room()
        file = super().open(path, create=create)
        return self._adopt(file, path, os.O_RDWR)

    def open_read(self, path: str) -> "PooledFile":
        """Open for reading only."""
        self._make_room()
        return self._adopt(super().open_read(path), path, os.O_RDONLY)

    def _adopt(self, file: OsFile, path: str, flags: int) -> "PooledFile":
        try:
            pooled = PooledFile(self, file, path, flags, self._syncs)
        finally:
            file.close()
        with self.lock:
            self._open[pooled] = None
        return pooled

    def open_again(self, file: "PooledFile") -> None:
        """Reopen a file that gave up its descriptor; the caller holds the lock.

        Raises:
            OSError: the file was closed, cannot be reopened, or another file has its name.
        """
        if file.is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), file.path)
        self._close_idle(self.files_max - 1)
        file.reopen()
        self._open[file] = None
        file.used = self.uses

    def move_back(self, file: "PooledFile") -> None:
        """Mark a file as used last, so that it is released last; the caller holds the lock."""
        self._open.move_to_end(file)
        file.used = self.uses

    def forget(self, file: "PooledFile") -> None:
        """Close a file for good; a thread that is using it may finish.

        If the descriptor were closed during use, that thread could write into the next file that is
        given the same number.
        """
        with self.lock:
            file.is_closed = True
            self.release_unused(file)

    def release_unused(self, file: "PooledFile") -> None:
        """Close a file that no thread is using; the caller holds the lock."""
        if not file.pins and self._open.pop(file, _NEVER) is None:
            file.release()

    def _make_room(self) -> None:
        with self.lock:
            self._close_idle(self.files_max - 1)

    def _close_idle(self, files_max: int) -> None:
        """Take descriptors from the files that have been unused longest."""
        excess = len(self._open) - files_max
        if excess > 0:
            idle = (file for file in self._open if not file.pins and not file.is_dirty)
            for file in list(islice(idle, excess)):
                del self._open[file]
                file.release()


def _pinned(
    call: Callable[Concatenate["PooledFile", _Args], _Result], *, writes: bool = False
) -> Callable[Concatenate["PooledFile", _Args], _Result]:
    """Wrap a method of a pooled file, so that the file has a descriptor during the call.

    If the file has given up its descriptor, it is opened again first.
    """

    @wraps(call)
    def pinned(file: "PooledFile", /, *args: _Args.args, **named: _Args.kwargs) -> _Result:
        disk = file.disk
        with disk.lock:
            disk.uses += 1
            if file.is_closed or not file.is_open:
                disk.open_again(file)
            elif disk.uses - file.used > disk.recent_uses:
                disk.move_back(file)
            file.pins += 1
        try:
            file.written += writes
            return call(file, *args, **named)
        finally:
            with disk.lock:
                file.pins -= 1
                if file.is_closed:
                    disk.release_unused(file)

    return pinned


class PooledFile(OsFile):
    """A file of a `PooledDisk`, used like an `OsFile`."""

    __slots__ = (
        "_flags", "_inode", "_synced", "disk", "is_closed", "is_open", "path", "pins", "used",
        "written",
    )  # fmt: skip

    def __init__(
        self, disk: PooledDisk, file: OsFile, path: str, flags: int, syncs: Latencies | None
    ) -> None:
        """Duplicate the open file, which the caller closes, and remember how to reopen it."""
        super().__init__(os.dup(file.fileno()), path, syncs)
        self.disk, self.path, self._flags = disk, path, flags
        device, inode = super().inode
        self._inode = device << _INODE_BITS | inode  # a single integer takes a third of the memory
        self.written = self._synced = 0  # writes, and how many of them were synced
        self.pins = 0  # how many threads are using it
        self.used = 0  # the pool's use count when it was last moved to the end
        self.is_open = True  # whether it has a descriptor
        self.is_closed = False  # for good

    @property
    def is_dirty(self) -> bool:
        """Whether the file has unsynced writes; never true for an index, which can be rebuilt."""
        return self.written != self._synced and not self.path.endswith(SUFFIX)

    def reopen(self) -> None:
        """Open the file again; `OSError` if another file has taken its name."""
        fd = os.open(self.path, self._flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        status = os.fstat(fd)
        if status.st_dev << _INODE_BITS | status.st_ino != self._inode:
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, "the file was replaced", self.path)
        self._fd, self.is_open = fd, True

    def release(self) -> None:
        """Give up the descriptor."""
        self.is_open = False
        super().close()

    @property
    def inode(self) -> tuple[int, int]:
        """Device and inode."""
        return divmod(self._inode, 1 << _INODE_BITS)

    append = _pinned(OsFile.append, writes=True)
    copy = _pinned(OsFile.copy, writes=True)
    preadv = _pinned(OsFile.preadv)
    pread = _pinned(OsFile.pread)
    size = _pinned(OsFile.size)
    truncate = _pinned(OsFile.truncate, writes=True)
    write_again = _pinned(OsFile.write_again, writes=True)
    overwrite = _pinned(OsFile.overwrite, writes=True)

    @_pinned
    def sync(self) -> None:
        """Flush data and length; may not cover what another thread appends meanwhile."""
        written = self.written
        OsFile.sync(self)
        self._synced = written

    def close(self) -> None:
        """Close the file for good."""
        self.disk.forget(self)
