"""Divergence: where two merged logs begin to differ, and what only the first one has.

After `rt standby promote --now`, a new cluster continues from a copy. Messages that the lost
cluster had merged beyond the end of the copy may have come again from their publishers, in another
order, or be missing.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from rt.errors import Misuse
from rt.events import Gap
from rt.format.message import Batch
from rt.log.files.directory import LogDirectory
from rt.log.read.proof import NOTHING, Proof, boundaries
from rt.log.read.reader import Reader
from rt.position import START, Position

Spans = list[tuple[int, int]]  # of sequence numbers: first, and the one after the last


@dataclass(frozen=True, slots=True)
class Divergence:
    """Divergence: the difference between two merged logs.

    Attributes:
        cut: both logs are equal up to this position.
        proof: the number of the first message after the cut, and the running digest there.
        beyond: how many messages the first log has after the cut.
        missing: the messages among these that the second log lacks after the cut, as spans of
            sequence numbers by session, or by group.
    """

    cut: Position
    proof: Proof
    beyond: int
    missing: Mapping[str, Spans]

    @property
    def lost(self) -> int:
        """The number of messages that only the first log has."""
        return count_messages(self.missing)


def divergence(
    first: LogDirectory, second: LogDirectory, groups: Mapping[str, str] | None = None
) -> Divergence:
    """Compare two merged logs; files are read only from where the logs begin to differ.

    Args:
        first: the log of the cluster that was given up; no node may write it.
        second: a copy of the log that continues.
        groups: the group of redundant publishers that each session belongs to, by session; a
            message is not missing if any session of its group has it. A session that was reset
            after the cut is compared by its numbers only.

    Raises:
        Misuse: the logs have nothing in common, or a file that has to be read was archived.
        CorruptLog: one of them is damaged.
    """
    cut, proof = _last_equal(first, second)
    if cut == START:
        raise Misuse(f"{first.path} and {second.path} do not begin alike: no common beginning")
    ours, theirs = messages_after(first, cut, groups), messages_after(second, cut, groups)
    missing = {name: _without(spans, theirs.get(name, [])) for name, spans in ours.items()}
    return Divergence(
        cut, proof, count_messages(ours),
        {name: spans for name, spans in sorted(missing.items()) if spans},
    )  # fmt: skip


def _last_equal(first: LogDirectory, second: LogDirectory) -> tuple[Position, Proof]:
    """Return the last boundary up to which both logs are equal, by their digests."""
    at, proof = START, NOTHING
    for start in first.manifest.order:
        one, other = first.manifest.rolled[start], second.manifest.rolled.get(start)
        if other is None or not one.digest or (one.digest, one.next) != (other.digest, other.next):
            at = start
            break
        at, proof = start.next_file(), Proof(one.next, bytes.fromhex(one.digest))
    for log in (first, second):
        if log.is_gone(at):
            raise _archived(log, at)
    for mine, theirs in zip(boundaries(first, at), boundaries(second, at), strict=False):
        if mine != theirs:
            break
        at, proof = mine
    return at, proof


def messages_after(
    log: LogDirectory, cut: Position, groups: Mapping[str, str] | None = None
) -> dict[str, Spans]:
    """Return the sequence numbers of the messages after a position, by session or group.

    Raises:
        Misuse: a file that has to be read was archived.
        CorruptLog: the log is damaged.
    """
    found: dict[str, Spans] = {}
    groups = groups or {}
    with closing(Reader(log, cut)) as reader:
        while (item := reader.poll()) is not None:
            if isinstance(item, Gap):
                raise _archived(log, cut)
            if isinstance(item, Batch):
                begin = item.header.sequence + item.first
                name = groups.get(item.session, item.session)
                found.setdefault(name, []).append((begin, begin + len(item)))
    return {name: _joined(spans) for name, spans in found.items()}


def count_messages(found: Mapping[str, Spans]) -> int:
    """Return how many sequence numbers the spans cover."""
    return sum(end - first for spans in found.values() for first, end in spans)


def _archived(log: LogDirectory, position: Position) -> Misuse:
    return Misuse(f"{log.path}: what follows {position} was archived; restore it first")


def _joined(spans: Spans) -> Spans:
    """Sort spans, and join those that touch or overlap.

    >>> _joined([(5, 7), (1, 3), (3, 5), (9, 10)])
    [(1, 7), (9, 10)]
    """
    found: Spans = []
    for first, end in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found


def _without(spans: Spans, others: Spans) -> Spans:
    """Return the parts of `spans` that `others` do not cover; call it with joined spans.

    >>> _without([(1, 10), (20, 30)], [(0, 2), (4, 6), (25, 40)])
    [(2, 4), (6, 10), (20, 25)]
    """
    found: Spans = []
    for first, end in spans:
        for other, other_end in others:
            if other < end and other_end > first:
                if other > first:
                    found.append((first, other))
                first = max(first, other_end)
        if first < end:
            found.append((first, end))
    return found
