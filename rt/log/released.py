"""Released: up to where a publisher's own rolled files may be archived, as its pusher says it."""

import os
import struct
import time
from bisect import bisect_left
from typing import Final

from rt.format.checksum import crc32
from rt.format.manifest import Archived
from rt.log.appender import Appender
from rt.log.archived import finish_archiving
from rt.log.disk import Disk
from rt.position import START, Position

FILE_NAME: Final = "released"
MERGED: Final = "merged"  # why such a file is archived
_BODY: Final = struct.Struct("<4sIQ")
_MAGIC: Final = b"RTR\x01"


def read_released(directory: str) -> Position:
    """Return what the file in a session's directory says; the start if there is no whole one."""
    try:
        with open(os.path.join(directory, FILE_NAME), "rb") as file:
            magic, crc, position = _BODY.unpack(file.read(_BODY.size))
    except (FileNotFoundError, struct.error):
        return START
    whole = magic == _MAGIC and crc == crc32(position.to_bytes(8, "little")) and not position >> 63
    return Position(position) if whole else START


def write_released(directory: str, position: Position) -> None:
    """Replace what the file says. It is told again after a restart, so it is not synced."""
    data = _BODY.pack(_MAGIC, crc32(position.to_bytes(8, "little")), position)
    fd = os.open(os.path.join(directory, FILE_NAME), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, data, 0)
    finally:
        os.close(fd)


def archive_released(log: Appender, released: Position) -> int:
    """Archive the rolled files of a session that are released; return how many.

    Whoever holds the session's lock calls it, from any thread.
    """
    known, at_ns = log.manifest, time.time_ns()
    first = bisect_left(known.order, max(known.archived, default=START))
    gone = [
        Archived(file, at_ns, MERGED)
        for file in known.order[first:]
        if file not in known.archived and file + known.rolled[file].end <= released
    ]
    if gone:
        log.archive_all(gone)
    return len(gone)


def finish_released(disk: Disk, log: Appender) -> None:
    """Do what the last life of the log's writer recorded, and may not have come to."""
    finish_archiving(disk, log.directory, log.manifest)
