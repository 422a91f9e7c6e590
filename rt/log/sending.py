"""Sending: up to which file of a session a pusher may have begun to send, in a file beside its log.

Only a session that drops its oldest messages has one. Its lock is held to drop a file, and to begin
to send one, so that a file of which a node may have a byte is never dropped. It holds for the
directory where it was written: a backup that is put back may be older than what was sent since.
"""

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rt.format.checksum import crc32
from rt.format.dropped_notice import NOTICE_BYTES, DroppedSpan, parse_notice
from rt.log.directory import LogDirectory
from rt.log.disk import FILE_MODE, sync_directory
from rt.log.lock import LOCK_NAME
from rt.position import Position

FILE_NAME: Final = "sending"
_BODY: Final = struct.Struct("<QQQ")
_MAGIC: Final = b"RTS\x02"
_BYTES: Final = 8 + _BODY.size
_ALL: Final = 1 << 63  # what cannot be read may say that everything was sent
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class Sending:
    """The file while its lock is held.

    Attributes:
        bound: files that start before it may have been sent, in part or whole.
        limit: bytes that the session's files may hold.
        place: of the directory that it holds for; a copy has another.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        data = os.pread(fd, _BYTES, 0)
        is_whole = len(data) == _BYTES and data[:8] == _sealed(data[8:])
        self.bound, self.limit, self.place = _BODY.unpack(data[8:]) if is_whole else (_ALL, 0, 0)

    def write(self, bound: int, limit: int) -> None:
        """Replace bound and limit, durably."""
        body = _BODY.pack(bound, limit, self.place)
        os.pwrite(self._fd, _sealed(body) + body, 0)
        os.fsync(self._fd)
        self.bound, self.limit = bound, limit


@contextmanager
def sending(directory: str, *, create: bool = False) -> Iterator[Sending | None]:
    """Hold the lock of a session's file; None if it has none and is not to get one.

    The lock is never held for longer than a few syncs.
    """
    try:
        fd = os.open(
            os.path.join(directory, FILE_NAME), _FLAGS | (os.O_CREAT if create else 0), FILE_MODE
        )
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield Sending(fd)
    finally:
        os.close(fd)


def begin_sending(directory: str, newest: Callable[[], Position | None], limit: int) -> None:
    """Make the file if need be, and note the limit; what is there already may have been sent.

    Args:
        directory: of the session, whose lock the caller has.
        newest: returns its newest file, None if there is none; asked once the file is there, which
            a pusher looks for whenever it begins with a file.
        limit: bytes that its files may hold.
    """
    with sending(directory, create=True) as mark:
        if mark is None:
            return
        known, place = mark.bound, _place(directory)
        if mark.place != place:
            last, mark.place = newest(), place
            known = 0 if last is None else last + 1
        mark.write(known, limit)
    sync_directory(directory)


def _place(directory: str) -> int:
    """Return when the lock file was made: it is never written, and no copy can have that time.

    A new owner or mode changes it, too; then what is there counts as sent.
    """
    return os.stat(os.path.join(directory, LOCK_NAME)).st_ctime_ns


def notice_of(log: LogDirectory, file: Position) -> DroppedSpan | None:
    """Return what a file's first frame says was dropped before it; None if it is not a notice."""
    try:
        opened = log.open_file(file)
    except FileNotFoundError:
        return None
    try:
        found = parse_notice(opened.pread(NOTICE_BYTES, 0))
    finally:
        opened.close()
    return None if found is None else found[1]


def _sealed(body: bytes) -> bytes:
    return _MAGIC + crc32(body).to_bytes(4, "little")
