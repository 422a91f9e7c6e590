"""Sending: records, in a session's directory, which log files may have been sent in part.

Only a session that drops its oldest messages has this record. The record is locked while a log file
is dropped, and while a pusher begins to send a log file, so that no file is dropped if a node may
have any of it. The record is valid only in the directory where it was written: a backup does not
know what was sent later.
"""

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Final

from rt.format.checksum import crc32
from rt.format.dropped_notice import NOTICE_BYTES, DroppedSpan, parse_notice
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import FILE_MODE, sync_directory
from rt.log.files.lock import LOCK_NAME
from rt.position import Position

FILE_NAME: Final = "sending"
_BODY: Final = struct.Struct("<QQQ")
_MAGIC: Final = b"RTS\x02"
_BYTES: Final = 8 + _BODY.size
_ALL: Final = 1 << 63  # assumed if the file is unreadable: everything may have been sent
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class Sending:
    """The record of which files of a session may have been sent; valid while it is locked.

    Attributes:
        bound: files that start before this position may have been sent, in part or whole.
        limit: bytes that the session's files may hold.
        place: identifies the directory that the record is valid for; a copy of the directory has a
            different `place`.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        data = os.pread(fd, _BYTES, 0)
        is_whole = len(data) == _BYTES and data[:8] == _sealed(data[8:])
        self.bound, self.limit, self.place = _BODY.unpack(data[8:]) if is_whole else (_ALL, 0, 0)

    def write(self, bound: int, limit: int) -> None:
        """Durably replace bound and limit."""
        body = _BODY.pack(bound, limit, self.place)
        os.pwrite(self._fd, _sealed(body) + body, 0)
        os.fsync(self._fd)
        self.bound, self.limit = bound, limit


@contextmanager
def sending(directory: str, *, create: bool = False) -> Iterator[Sending | None]:
    """Lock and read a session's record; yields None if it has no record and `create` is false.

    The lock is never held longer than a few syncs take.
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
    """Make a session's record valid for its directory, and write the limit to it.

    If the record is new or from another directory, all existing log files count as sent.

    Args:
        directory: the directory of the session, whose lock the caller holds.
        newest: returns the session's newest file, None if there is none. Called after the record
            exists, because a pusher looks for the record before it begins to send a log file.
        limit: bytes that the session's files may hold.
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
    """Return the change time of the session's lock file, in ns; it differs in a copied directory.

    The lock file is never written. A change of its owner or mode also changes the time; existing
    log files then count as sent.
    """
    return os.stat(os.path.join(directory, LOCK_NAME)).st_ctime_ns


def notice_of(log: LogDirectory, file: Position) -> DroppedSpan | None:
    """Return the dropped span in a file's notice; None if it has no notice."""
    try:
        with closing(log.open_file(file)) as opened:
            found = parse_notice(opened.pread(NOTICE_BYTES, 0))
    except FileNotFoundError:
        return None
    return None if found is None else found[1]


def _sealed(body: bytes) -> bytes:
    return _MAGIC + crc32(body).to_bytes(4, "little")
