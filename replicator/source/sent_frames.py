"""Sent frames: checks the bodies of frames that were sent after checking only their headers."""

from typing import Final

from rt.errors import CorruptLog, FrameError
from rt.format.manifest import LogIdentity
from rt.format.scan import Scan
from rt.format.seek import walk_before
from rt.format.walk import Walk
from rt.limits import MIB
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import File
from rt.position import Position

_VERIFY_BYTES: Final = 64 * MIB  # more than is in flight; keeps a sink from having all read


def check_sent(log: LogDirectory, identity: LogIdentity, since: Position, until: Position) -> None:
    """Check every byte of the frames from `since` on, in the file that `since` is in.

    Args:
        log: the log that they are from.
        identity: the log's identity.
        since: the end of what the sink has acknowledged.
        until: the end of what it was sent.

    Raises:
        CorruptLog: one is damaged.
        OSError: it cannot be read.
    """
    file = log.open_file(since.file)
    try:
        end = until.offset if until.file == since.file else file.size()
        walk = walk_to(log, identity, since, file)
        scan = Scan(file.pread, walk)
        last = walk.position.offset + _VERIFY_BYTES
        while walk.position.offset < last and scan.next(end):
            pass
    except FrameError as error:
        raise CorruptLog(log.file_path(since), walk.position, str(error)) from None
    finally:
        file.close()


def walk_to(log: LogDirectory, identity: LogIdentity, at: Position, file: File) -> Walk:
    """Return a walk at the last indexed frame that begins no later than `at`."""
    index, index_file = log.open_index(at.file)
    try:
        return walk_before(
            file.pread, index, at.file, lambda entry: entry.offset > at.offset,
            merged=identity.merged, session=identity.session,
        )  # fmt: skip
    finally:
        if index_file is not None:
            index_file.close()
