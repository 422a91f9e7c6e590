"""Files: replaces whole files atomically, one process at a time, readable by their owner only."""

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from rt.errors import Misuse
from rt.log.files.disk import FILE_MODE

_GROUP_READS: Final = 0o040


def read_file(path: str, bytes_max: int) -> bytes:
    """Return the contents of a file.

    Raises:
        Misuse: the file is longer than `bytes_max`, or not a regular file, for example a pipe.
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Misuse(f"{path}: not a regular file")
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise Misuse(f"{path}: longer than {bytes_max} bytes")
    return data


def write_file(path: str, content: bytes, *, force: bool, heir: str = "") -> None:
    """Create or replace a whole file; a reader sees the old or the new one, never a part.

    With `force`, an existing file is replaced, and the new file keeps the old one's group and that
    group's permission to read; otherwise an existing file is a `Misuse`. If the caller will
    rename `path` to another file, `heir` names that file, whose group is kept.
    """
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with os.fdopen(fd, "wb") as file:
            if force:
                _take_group(fd, heir or path)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if force:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, a link never replaces a file
            os.unlink(temporary)
    except OSError as error:
        os.unlink(temporary)
        if error.errno == errno.EEXIST:
            raise Misuse(f"{path} exists already: another issue ran beside this one") from error
        raise


def _take_group(fd: int, path: str) -> None:
    """Let the group that may read the file at `path` read its replacement."""
    try:
        before = os.stat(path)
    except FileNotFoundError:
        return
    if before.st_gid != os.fstat(fd).st_gid:
        with suppress(PermissionError):  # works only for members of that group and for root
            os.fchown(fd, -1, before.st_gid)
    os.fchmod(fd, FILE_MODE | (before.st_mode & _GROUP_READS))


@contextmanager
def alone(directory: str) -> Iterator[None]:
    """Hold the lock of a directory: only one process at a time changes files in it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
