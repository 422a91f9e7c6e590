"""Proof: the running digest of a merged log at one of its boundaries."""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple

from rt.format.ranges import EMPTY_DIGEST
from rt.format.scan import next_header
from rt.format.walk import Walk
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


NOTHING: Final = Proof(0, EMPTY_DIGEST)  # of an empty log


def proof_at(log: LogDirectory, end: Position) -> Proof | None:
    """Return the proof of a merged log at the end of a range; None if no range ends there.

    Args:
        log: the log, already refreshed.
        end: where a range ends, or where the file after it begins.

    Raises:
        FrameError: the file is damaged.
    """
    if end == START:
        return NOTHING
    order = log.manifest.order
    before = order[bisect_left(order, end) - 1] if order and order[0] < end else None
    if before is not None:
        line = log.manifest.rolled[before]
        if end in (before + line.end, before.next_file()):
            if line.digest:
                return Proof(line.next, bytes.fromhex(line.digest))
            end = Position(before + line.end)
    if log.is_gone(end.file) or not log.has_file(end.file):
        return None
    with closing(log.open_file(end.file)) as file:
        walk = log.walk_before(file, end.file, lambda entry: entry.offset >= end.offset)
        while walk.position < end and next_header(file.pread, walk, file.size()):
            done = walk.range
            if walk.at_boundary and walk.position == end and done is not None:
                return Proof(done.number + done.messages, done.digest)
    return None


def last_proof(log: LogDirectory) -> tuple[Position, Proof]:
    """Return where the last whole range of a merged log ends, and the proof there.

    Args:
        log: the log, already refreshed.

    Raises:
        FrameError: the last file is damaged.
    """
    at, proof, order = START, NOTHING, log.manifest.order
    if order:
        line = log.manifest.rolled[order[-1]]
        at, proof = order[-1].next_file(), Proof(line.next, bytes.fromhex(line.digest))
    for found in boundaries(log, at):
        at, proof = found
    return at, proof


def boundaries(log: LogDirectory, start: Position) -> Iterator[tuple[Position, Proof]]:
    """Yield where each range of a file ends, and the proof there; nothing if there is no file."""
    if not log.has_file(start):
        return
    with closing(log.open_file(start)) as file:
        walk = Walk(start, merged=True)
        while next_header(file.pread, walk, file.size()):
            done = walk.range
            if walk.at_boundary and done is not None:
                yield walk.position, Proof(done.number + done.messages, done.digest)
