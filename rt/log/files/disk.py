"""Disk: the few file system calls that a log makes, as an interface with a fake for tests."""

import errno
import os
import shutil
import stat
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Final, NamedTuple, Protocol

from rt.latencies import Latencies

IOV_MAX: Final = 1024  # most parts that Linux accepts in one writev
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
SET_ASIDE: Final = "quarantine."  # prefix of names that no program reads
# Damaged files replaced by a whole copy are kept for inspection: at most 8 GiB in a directory, or a
# failing disk would fill up with them.
_REPLACED: Final = f"{SET_ASIDE}replaced."
_REPLACED_MAX: Final = 8
# How many versions set aside under one name are kept. The first shows how the trouble started. More
# would fill the disk if it fails repeatedly, or if a publisher keeps sending different bytes.
_ASIDE_MAX: Final = 2
# The descriptor of a closed file: larger than any on Linux (fs.nr_open), so that calls raise
# `OSError`; with -1, some Python calls raise `ValueError`.
_NO_FD: Final = (1 << 31) - 1
# per read and write; with smaller blocks, the calls cost as much as the copying
COPY_BYTES: Final = 1 << 20
# Errors for a sector that the disk cannot read, treated like wrong bytes.
UNREADABLE: Final = frozenset({errno.EIO, errno.ENODATA, getattr(errno, "EUCLEAN", errno.EIO)})


class File(Protocol):
    """An open file: read anywhere, append at the end."""

    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        """Write all parts at the end; return the number of bytes. `OSError` on failure."""

    def copy(self, source: "File", offset: int, length: int) -> None:
        """Append `length` bytes of `source` from `offset`; `EOFError` if it has fewer."""

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; fewer at the end of the file."""

    def size(self) -> int:
        """Current size in bytes."""

    def truncate(self, length: int) -> None:
        """Cut the file to `length` bytes; appends continue there."""

    def write_again(self, offset: int) -> None:
        """Rewrite the bytes from `offset` on, in place.

        After a failed sync the kernel may mark unwritten pages clean, so that the next sync
        succeeds and writes nothing. Rewriting makes the pages dirty again. The bytes stay the same,
        so a power cut cannot harm those that were durable.
        """

    def overwrite(self, data: bytes, offset: int) -> None:
        """Replace bytes in place; until they are synced, a power cut may leave old or new bytes."""

    def sync(self) -> None:
        """Return once all bytes and the length are on stable storage; never retry a failure."""

    def close(self) -> None:
        """Release the descriptor."""


class Span(NamedTuple):
    """Bytes of a file to copy without parsing them."""

    file: File
    offset: int
    length: int


class Disk(Protocol):
    """A file system, as the log uses it; tests replace it by a simulated one."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and appending; `create` creates the file and syncs its directory."""

    def open_read(self, path: str) -> File:
        """Open for reading only; `FileNotFoundError` if the file does not exist."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in any order; empty if it does not exist."""

    def make_directory(self, path: str) -> None:
        """Create the directory and its parents, syncing each into its parent."""

    def replace(self, source: str, target: str) -> None:
        """Rename within one file system, and sync the directory of the new name."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second name in the same directory, and sync that directory."""

    def remove(self, path: str) -> None:
        """Remove a file, or a directory and its contents, as far as possible; not synced."""


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_end", "_fd", "_syncs")

    def __init__(self, fd: int, path: str | None = None, syncs: Latencies | None = None) -> None:
        """Take over `fd`; `OSError` if `fd` is not a regular file.

        Args:
            fd: open for reading, or for reading and appending.
            path: for error messages.
            syncs: records the duration of each sync, if given.
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
        """Device and inode, which distinguish two files that had the same name."""
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        """Write all parts at the end; `OSError` if only some of the bytes could be written."""
        total = sum(map(len, parts))
        written = os.pwritev(self._fd, parts[:IOV_MAX], self._end)
        self._end += written
        if written < total:
            self.overwrite(b"".join(parts)[written:], self._end)
            self._end += total - written
        return total

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        """Write in place; return how many bytes were written, which may be fewer."""
        return os.pwrite(self._fd, data, offset)

    def copy(self, source: "File", offset: int, length: int) -> None:
        """Append bytes of another file, through a buffer.

        The kernel's own copy (copy_file_range) reaches only 0.7 to 0.9 of this speed, because
        source and target are at different offsets within a page.
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
        """Read into a buffer; return how many bytes were read."""
        return os.preadv(self._fd, [buffer], offset)

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`."""
        return os.pread(self._fd, length, offset)

    def size(self) -> int:
        """Current size in bytes, including what others appended."""
        return os.fstat(self._fd).st_size

    def truncate(self, length: int) -> None:
        """Cut the file to `length` bytes."""
        os.ftruncate(self._fd, length)
        self._end = length

    def write_again(self, offset: int) -> None:
        """Rewrite the bytes from `offset` on, in place."""
        end = self.size()
        buffer = memoryview(bytearray(min(COPY_BYTES, max(0, end - offset))))
        while offset < end:
            count = os.preadv(self._fd, [buffer[: end - offset]], offset)
            if not count:
                raise EOFError(f"the file ends {end - offset} bytes early")
            offset += self.pwrite(buffer[:count], offset)

    def overwrite(self, data: bytes, offset: int) -> None:
        """Replace existing bytes in place."""
        rest = memoryview(data)
        while rest:
            written = self.pwrite(rest, offset)
            offset, rest = offset + written, rest[written:]

    def sync(self) -> None:
        """Flush data and length; fdatasync includes a changed length."""
        began_s = time.perf_counter()
        os.fdatasync(self._fd)
        if self._syncs is not None:
            self._syncs.observe(time.perf_counter() - began_s)

    def close(self) -> None:
        """Close the descriptor and forget its number, which another file will soon get."""
        fd, self._fd = self._fd, _NO_FD
        os.close(fd)


# Do not follow links, and do not wait for the writer of a pipe that has a log's name.
OPEN_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class OsDisk:
    """The file system of the operating system."""

    _syncs: Latencies | None = None

    def __init__(self, syncs: Latencies | None = None) -> None:
        """Record in `syncs`, if given, how long the files' syncs take."""
        self._syncs = syncs

    def open(self, path: str, *, create: bool = False) -> OsFile:
        """Open for reading and appending.

        With `create`, the directory is synced even if the file exists: its creator may have died
        before syncing the name.
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
        """Return the names in a directory; empty if it does not exist."""
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        """Create the directory and its missing parents from the top, syncing each."""
        parent = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path):
            sync_directory(parent)  # its creator may have died before syncing it
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
        """Give a file a second name in the same directory, and sync that directory."""
        os.link(source, target, follow_symlinks=False)
        sync_directory(os.path.dirname(target))

    def remove(self, path: str) -> None:
        """Remove a file, or a directory and its contents, as far as possible; not synced."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                os.unlink(path)


def make_private_directory(path: str) -> None:
    """Create a directory and its missing parents for this user only; keep existing ones."""
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
    """Return the first bytes of a file; `OSError` if the path is a link, pipe or device."""
    with closing(OsDisk().open_read(path)) as file:
        return file.pread(bytes_max, 0)


def read_or_rotten(disk: Disk, path: str, bytes_max: int) -> bytes:
    """Return the first bytes of a checksummed file; empty if the disk lost a sector of it.

    Raises:
        OSError: the file is missing, or cannot be read for another reason.
    """
    try:
        with closing(disk.open_read(path)) as file:
            return file.pread(bytes_max, 0)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return b""


def replace_small(path: str, draft: str, data: bytes) -> None:
    """Replace a small file by a rename, so that readers never see part of it; not synced.

    Args:
        path: the file.
        draft: path of a temporary file in the same directory.
        data: the new contents.
    """
    fd = open_small(draft)
    try:
        os.ftruncate(fd, 0)
        os.write(fd, data)
    finally:
        os.close(fd)
    os.replace(draft, path)


def write_whole(disk: Disk, path: str, name: str, parts: list[bytes]) -> None:
    """Durably create or replace the file `name` in the directory `path`, by one rename."""
    file = disk.open(f"{path}/{name}.tmp", create=True)
    try:
        file.truncate(0)  # a process that died here may have left something
        file.append(parts)
        file.sync()
    finally:
        file.close()
    disk.replace(f"{path}/{name}.tmp", f"{path}/{name}")


def open_small(path: str) -> int:
    """Open a private file for overwriting from its start, creating it if missing.

    Nothing is truncated. `OSError` if the path is a link, pipe or device: another user of the
    directory must not choose which of our files is overwritten, or make us wait.

    Returns:
        The descriptor.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | OPEN_FLAGS, FILE_MODE)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", path)


def set_aside(disk: Disk, path: str) -> str:
    """Rename a damaged file or directory to `quarantine.<name>.<number>`; return the new name.

    No program reads it again; it is kept for inspection. Of files with the same name, only the
    first and the last are kept, so that a disk that fails repeatedly does not fill up.
    """
    kept, last = _aside(disk, path, SET_ASIDE), _last_aside(path)
    if last in disk.names(os.path.dirname(path)):
        disk.remove(os.path.join(os.path.dirname(path), last))
        kept = last
    disk.replace(path, os.path.join(os.path.dirname(path), kept))
    return kept


def put_in_place(disk: Disk, fresh: str, path: str) -> str:
    """Replace a damaged file by a whole copy, so that its path always names one of the two files.

    Args:
        disk: The disk that holds both files.
        fresh: Path of the copy, synced and checked.
        path: Path of the damaged file, which may be missing.

    Returns:
        The name under which the damaged file is kept. "" if it is not kept, because there are
        enough such files or the disk refuses; nothing is lost, since the copy is whole.
    """
    parent = os.path.dirname(path)
    if sum(name.startswith(_REPLACED) for name in disk.names(parent)) >= _REPLACED_MAX:
        disk.replace(fresh, path)
        return ""
    kept = _aside(disk, path, _REPLACED)
    try:
        disk.link(path, os.path.join(parent, kept))
    except OSError:  # missing file, full disk, or no links on this file system
        kept = ""
    disk.replace(fresh, path)
    return kept


def _last_aside(path: str) -> str:
    return f"{SET_ASIDE}{os.path.basename(path)}.{_ASIDE_MAX - 1}"


def _aside(disk: Disk, path: str, prefix: str) -> str:
    """Return an unused name, in the directory of `path`, for a file that no program reads."""
    parent, name = os.path.split(path)
    there = set(disk.names(parent))
    number = 0
    while (kept := f"{prefix}{name}.{number}") in there:
        number += 1
    return kept


def sync_directory(path: str) -> None:
    """Return once the directory's names are on stable storage."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
