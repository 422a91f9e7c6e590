"""Files: whole files put in place at once, by one process at a time, for their owner only."""

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from rt.errors import Misuse
from rt.log.disk import FILE_MODE

_GROUP_READS: Final = 0o040


def read_file(path: str, bytes_max: int) -> bytes:
    """Return a whole file.

    Raises:
        Misuse: it is longer than `bytes_max`, or something else than a file, such as a pipe.
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Misuse(f"{path}: not a regular file")
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise Misuse(f"{path}: longer than {bytes_max} bytes")
    return data


def write_file(path: str, content: bytes, *, force: bool) -> None:
    """Put a whole file in place; a reader sees the old one or the new one, never a part.

    A file that is replaced hands on its group, and that the group may read it.
    """
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with os.fdopen(fd, "wb") as file:
            if force:
                _take_group(fd, path)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if force:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, a link never replaces
            os.unlink(temporary)
    except OSError as error:
        os.unlink(temporary)
        if error.errno == errno.EEXIST:
            raise Misuse(f"{path} exists already: another issue ran beside this one") from error
        raise


def _take_group(fd: int, path: str) -> None:
    """Let the group that reads the file at `path` read the one that replaces it."""
    try:
        before = os.stat(path)
    except FileNotFoundError:
        return
    if before.st_gid != os.fstat(fd).st_gid:
        with suppress(PermissionError):  # a group of which we are no member; root sets it
            os.fchown(fd, -1, before.st_gid)
    os.fchmod(fd, FILE_MODE | (before.st_mode & _GROUP_READS))


@contextmanager
def alone(directory: str) -> Iterator[None]:
    """Let one process at a time read a file of this directory and replace it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
