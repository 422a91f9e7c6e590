"""Proof: the running digest of a merged log at one of its boundaries."""

from bisect import bisect_right
from contextlib import closing
from typing import NamedTuple

from rt.format.scan import next_header
from rt.log.files.directory import LogDirectory
from rt.position import START, Position


class Proof(NamedTuple):
    """Proof: two logs with equal proofs at a position are equal up to there.

    Attributes:
        number: the number of the next message.
        digest: the running digest, 16 bytes.
    """

    number: int
    digest: bytes


def proof_at(log: LogDirectory, end: Position) -> Proof | None:
    """Return the proof of a merged log at the end of a range; None if it has no such place here.

    Args:
        log: the log, already refreshed.
        end: where a range ends, or where the file after it begins.

    Raises:
        FrameError: the file is damaged.
    """
    order = log.manifest.order
    before = order[bisect_right(order, end) - 1] if order and order[0] <= end else None
    if before is not None:
        line = log.manifest.rolled[before]
        if end in (before + line.end, before.next_file()):
            if line.digest:
                return Proof(line.next, bytes.fromhex(line.digest))
            end = Position(before + line.end)
    if end == START or log.is_gone(end.file) or not log.has_file(end.file):
        return None
    with closing(log.open_file(end.file)) as file:
        walk = log.walk_before(file, end.file, lambda entry: entry.offset >= end.offset)
        while walk.position < end and next_header(file.pread, walk, file.size()):
            done = walk.range
            if walk.at_boundary and walk.position == end and done is not None:
                return Proof(done.number + done.messages, done.digest)
    return None
