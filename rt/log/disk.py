"""Disk: the few calls that a log makes to a file system, so that tests can make them fail."""

import errno
import os
import shutil
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from rt.latencies import Latencies

IOV_MAX: Final = 1024  # POSIX lets one writev take this many parts on Linux
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
SET_ASIDE: Final = "quarantine."  # prefix of names that no program reads again
# Damaged files that a whole copy has replaced, for people to look at: 8 GiB of a directory at most,
# or a failing disk would fill up with them.
_REPLACED: Final = f"{SET_ASIDE}replaced."
_REPLACED_MAX: Final = 8
# What was set aside under one name: the first shows what began it. A failing disk, or a publisher
# with other bytes, sets aside one after another, each copied again from the start.
_ASIDE_MAX: Final = 2
# Larger than any descriptor on Linux (fs.nr_open); -1 is a ValueError in some calls of Python.
_NO_FD: Final = (1 << 31) - 1
COPY_BYTES: Final = 1 << 20  # per read and write; with less, the calls cost as much as the copy
# What a disk returns for a sector that it cannot read; as good as wrong bytes.
UNREADABLE: Final = frozenset({errno.EIO, errno.ENODATA, getattr(errno, "EUCLEAN", errno.EIO)})


class File(Protocol):
    """One open file: read anywhere, append at the end."""

    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        """Write all parts at the end; return how many bytes, or raise `OSError`."""

    def copy(self, source: "File", offset: int, length: int) -> None:
        """Append `length` bytes of `source` from `offset`; `EOFError` if it has fewer."""

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; fewer at the end of the file."""

    def size(self) -> int:
        """The bytes in the file now."""

    def truncate(self, length: int) -> None:
        """Cut the file to `length` bytes; later appends go there."""

    def write_again(self, offset: int) -> None:
        """Write the bytes from `offset` on once more, in place.

        The kernel may call pages clean that a failed sync did not write, so that the next sync
        succeeds and writes nothing. Once they have been written again, it writes them. They do not
        change, so that no power cut can harm those that were durable.
        """

    def overwrite(self, data: bytes, offset: int) -> None:
        """Replace bytes that are there, in place; before a sync, a power cut may take either."""

    def sync(self) -> None:
        """Return once all bytes and the length are on stable storage; never retry a failure."""

    def close(self) -> None:
        """Release the descriptor."""


class Span(NamedTuple):
    """Bytes of a file to copy without looking at them."""

    file: File
    offset: int
    length: int


class Disk(Protocol):
    """A file system: the seam between the log's decisions and the machine."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and appending; `create` creates the file and syncs its directory."""

    def open_read(self, path: str) -> File:
        """Open for reading only; `FileNotFoundError` if there is none."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in any order; none if it does not exist."""

    def make_directory(self, path: str) -> None:
        """Create the directory and its parents, each synced into its parent."""

    def replace(self, source: str, target: str) -> None:
        """Rename within one file system, and sync the directory of the new name."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second name in its directory, and sync that directory."""

    def remove(self, path: str) -> None:
        """Remove a file, or a directory and all in it, as far as that is possible; not synced."""


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_end", "_fd", "_syncs")

    def __init__(self, fd: int, path: str | None = None, syncs: Latencies | None = None) -> None:
        """Take over `fd`, of `path`; `OSError` if it is not a regular file.

        Args:
            fd: open for reading, or for reading and appending.
            path: for messages.
            syncs: where to count how long syncs take.
        """
        self._fd = fd
        self._syncs = syncs
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        self._end = status.st_size

    def fileno(self) -> int:
        """The descriptor, for callers that pass it to the kernel themselves."""
        return self._fd

    @property
    def inode(self) -> tuple[int, int]:
        """Device and inode, which tell apart two files that had one name."""
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        """Write all parts at the end; a full disk first gives a short write, and then raises."""
        total = sum(map(len, parts))
        written = os.pwritev(self._fd, parts[:IOV_MAX], self._end)
        self._end += written
        if written < total:
            rest = memoryview(b"".join(parts))[written:]
            while rest:
                written = os.pwrite(self._fd, rest, self._end)
                self._end += written
                rest = rest[written:]
        return total

    def copy(self, source: "File", offset: int, length: int) -> None:
        """Append bytes of another file, through a buffer.

        The kernel's own copy (copy_file_range) reaches 0.7 to 0.9 of this speed, because source
        and target are at different offsets within a page.
        """
        if not isinstance(source, OsFile):
            raise TypeError("an OsFile copies from an OsFile only")
        buffer, copied = memoryview(bytearray(min(COPY_BYTES, length))), 0
        while copied < length:
            wanted = buffer[: length - copied]
            count = source.preadv(wanted, offset + copied)
            if not count:
                raise EOFError(f"the source ends {length - copied} bytes early")
            copied += self.append([wanted[:count]])

    def preadv(self, buffer: memoryview, offset: int) -> int:
        """Read into a buffer; return how many bytes there were."""
        return os.preadv(self._fd, [buffer], offset)

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`."""
        return os.pread(self._fd, length, offset)

    def size(self) -> int:
        """The bytes in the file now, including those appended by others."""
        return os.fstat(self._fd).st_size

    def truncate(self, length: int) -> None:
        """Cut the file to `length` bytes."""
        os.ftruncate(self._fd, length)
        self._end = length

    def write_again(self, offset: int) -> None:
        """Write the bytes from `offset` on once more, in place."""
        end = self.size()
        buffer = memoryview(bytearray(min(COPY_BYTES, max(0, end - offset))))
        while offset < end:
            count = os.preadv(self._fd, [buffer[: end - offset]], offset)
            if not count:
                raise EOFError(f"the file ends {end - offset} bytes early")
            offset += os.pwrite(self._fd, buffer[:count], offset)

    def overwrite(self, data: bytes, offset: int) -> None:
        """Replace bytes that are there, in place."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._fd, rest, offset)
            offset, rest = offset + written, rest[written:]

    def sync(self) -> None:
        """Flush data and length; fdatasync includes the length when it changed."""
        began_s = time.perf_counter()
        os.fdatasync(self._fd)
        if self._syncs is not None:
            self._syncs.observe(time.perf_counter() - began_s)

    def close(self) -> None:
        """Close the descriptor, and forget its number, which will soon be another file's."""
        fd, self._fd = self._fd, _NO_FD
        os.close(fd)


# Links are not followed, and a pipe under a log's name does not make us wait for its writer.
OPEN_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class OsDisk:
    """The file system of the operating system."""

    _syncs: Latencies | None = None

    def __init__(self, syncs: Latencies | None = None) -> None:
        """Count in `syncs`, if given, how long the syncs of its files take."""
        self._syncs = syncs

    def open(self, path: str, *, create: bool = False) -> OsFile:
        """Open for reading and appending.

        With `create`, the directory is synced even if the file exists: the process that created it
        may have died before it synced the name.
        """
        if not create:
            return OsFile(os.open(path, os.O_RDWR | OPEN_FLAGS), path, self._syncs)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, FILE_MODE)
        file = OsFile(fd, path, self._syncs)
        try:
            sync_directory(os.path.dirname(path))
        except OSError:
            file.close()
            raise
        return file

    def open_read(self, path: str) -> OsFile:
        """Open for reading only."""
        return OsFile(os.open(path, os.O_RDONLY | OPEN_FLAGS), path)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if it does not exist."""
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        """Create the directory and its missing parents, from the top, each synced."""
        parent = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path):
            sync_directory(parent)  # its creator may have died before it did
            return
        self.make_directory(parent)
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        sync_directory(parent)

    def replace(self, source: str, target: str) -> None:
        """Rename within one file system, and sync the directory of the new name."""
        os.replace(source, target)
        sync_directory(os.path.dirname(target))

    def link(self, source: str, target: str) -> None:
        """Give a file a second name in its directory, and sync that directory."""
        os.link(source, target, follow_symlinks=False)
        sync_directory(os.path.dirname(target))

    def remove(self, path: str) -> None:
        """Remove a file, or a directory and all in it, as far as that is possible; not synced."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                os.unlink(path)


def make_private_directory(path: str) -> None:
    """Create a directory and its missing parents for this user alone; what is there stays."""
    if os.path.isdir(path):
        return
    if parent := os.path.dirname(os.path.abspath(path)):
        make_private_directory(parent)
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def read_small(path: str, bytes_max: int) -> bytes:
    """Return the first bytes of a file; `OSError` for a link, a pipe or a device in its place."""
    file = OsDisk().open_read(path)
    try:
        return file.pread(bytes_max, 0)
    finally:
        file.close()


def read_or_rotten(disk: Disk, path: str, bytes_max: int) -> bytes:
    """Return the first bytes of a file that has a checksum; none where the disk has lost a sector.

    Raises:
        OSError: it is missing, or cannot be read for another reason.
    """
    try:
        file = disk.open_read(path)
        try:
            return file.pread(bytes_max, 0)
        finally:
            file.close()
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return b""


def open_small(path: str) -> int:
    """Return a descriptor that writes to a private file from its start, made if it is missing.

    Nothing is cut off. A link, a pipe or a device in its place is an `OSError`: another user of the
    directory must not choose which of our files is overwritten, or make us wait.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | OPEN_FLAGS, FILE_MODE)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", path)


def set_aside(disk: Disk, path: str) -> str:
    """Rename a damaged file or directory to `quarantine.<name>.<number>`, and return that name.

    No program reads it again; it is kept for people to look at. Of each name the first and the last
    are kept: a disk that fails again and again would be filled with them.
    """
    kept, last = _aside(disk, path, SET_ASIDE), _last_aside(path)
    if last in disk.names(os.path.dirname(path)):
        disk.remove(os.path.join(os.path.dirname(path), last))
        kept = last
    disk.replace(path, os.path.join(os.path.dirname(path), kept))
    return kept


def put_in_place(disk: Disk, fresh: str, path: str) -> str:
    """Replace a damaged file by a whole copy, so that its name always leads to one of the two.

    Args:
        disk: where.
        fresh: the copy, synced and checked.
        path: the damaged file; it may be missing.

    Returns:
        The name under which the damaged file is kept. "" if it is not: some are kept already, or
        the disk does not let it; the copy holds all that it held.
    """
    parent = os.path.dirname(path)
    if sum(name.startswith(_REPLACED) for name in disk.names(parent)) >= _REPLACED_MAX:
        disk.replace(fresh, path)
        return ""
    kept = _aside(disk, path, _REPLACED)
    try:
        disk.link(path, os.path.join(parent, kept))
    except OSError:  # it is missing, the disk is full, or the file system has no links
        kept = ""
    disk.replace(fresh, path)
    return kept


def _last_aside(path: str) -> str:
    return f"{SET_ASIDE}{os.path.basename(path)}.{_ASIDE_MAX - 1}"


def _aside(disk: Disk, path: str, prefix: str) -> str:
    """Return a name beside a path that no program reads and no file has."""
    parent, name = os.path.split(path)
    there = set(disk.names(parent))
    number = 0
    while (kept := f"{prefix}{name}.{number}") in there:
        number += 1
    return kept


def sync_directory(path: str) -> None:
    """Return once the names in the directory are on stable storage."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
