"""Decide: which rolled files are archived, and by which rule; a pure function."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from archiver.lease import Lease, RolledFile
from archiver.policy import MINUTE_NS, Policy, show_limit
from rt.errors import Misuse
from rt.position import Position

TIME: Final = "time"
LIMIT: Final = "limit"
DISK: Final = "disk"
MESSAGES: Final = "messages"


class DiskReport(NamedTuple):
    """What a node reported about the file system that holds its merged log."""

    node: str
    total: int  # bytes this process could use if the disk were empty
    used: int
    pending: int = 0  # part of `used`: archived files that are about to be emptied

    @property
    def percent(self) -> float:
        """How much of the file system is used, in percent, as `df` shows it."""
        return 100 * self.used / self.total if self.total else 0.0

    def excess(self, percent: int) -> int:
        """Return how many bytes to free so that `percent` is used; 0 or less if there is room."""
        return self.used - self.pending - self.total * percent // 100


class Decision(NamedTuple):
    """A file to archive, and why."""

    start: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Demands:
    """Demands: how many of the oldest files each rule would archive, and where leases begin.

    Attributes:
        time, limit, disk, messages: how many files each rule would archive, leases aside.
        leased_from: index of the first leased file; the number of files if none is leased.
        holders: the holders of leases that hold a file, for display.
    """

    time: int
    limit: int
    disk: int
    messages: int
    leased_from: int
    holders: str

    @property
    def count(self) -> int:
        """How many of the oldest files to archive; only the rule disk overrides leases."""
        return max(min(max(self.time, self.limit, self.messages), self.leased_from), self.disk)

    def reason(self, place: int) -> str:
        """Return why the file at index `place` is archived: the first rule that archives it."""
        free = place < self.leased_from
        if free and place < self.time:
            return TIME
        if free and place < self.limit:
            return LIMIT
        if free and place < self.messages:
            return MESSAGES
        return DISK if free else f"{DISK}, over the lease of {self.holders}"


def decide(
    policy: Policy,
    files: Sequence[RolledFile],
    active_bytes: int,
    disks: Sequence[DiskReport] = (),
    *,
    now_ns: int,
    leases: Sequence[Lease] = (),
    nodes: int = 1,
    active_messages: int = 0,
) -> list[Decision]:
    """Return what to archive now: as many of the oldest files as the most demanding rule needs.

    Args:
        policy: the rules.
        files: the rolled files that are not archived, oldest first.
        active_bytes: size of the active file, which counts for the rule limit but is never
            archived.
        disks: recent reports of the nodes' disks.
        now_ns: the current time.
        leases: readers' leases, which protect files from the rules time, limit and messages, but
            not from disk.
        nodes: how many nodes the stream has; the rule disk needs reports from a majority.
        active_messages: how many messages the active file has; they count for the rule messages.
    """
    # at index n: the bytes freed by archiving the oldest n files
    freed = [0, *accumulate(file.bytes for file in files)]
    over = 0 if policy.limit is None else freed[-1] + active_bytes - policy.limit
    counts = [0, *accumulate(file.messages for file in files)]
    surplus = 0 if policy.messages is None else counts[-1] + active_messages - policy.messages
    excess = agreed_excess(disks, policy.disk, nodes)
    held = [(lease, lease.first_held(files, now_ns)) for lease in leases]
    first = min((place for _, place in held), default=len(files))
    wants = Demands(
        time=_aged(policy, files, now_ns),
        limit=_least(freed, over),
        disk=_least(freed, excess),
        messages=_least(counts, surplus),
        leased_from=first,
        holders=", ".join(sorted(lease.holder for lease, place in held if place < len(files))),
    )
    return [
        Decision(file.start, wants.reason(place)) for place, file in enumerate(files[: wants.count])
    ]


def agreed_excess(disks: Sequence[DiskReport], percent: int, nodes: int) -> int:
    """Return how many bytes to free until most nodes have room; 0 or less if they have it now.

    That is the smallest excess among the majority of nodes with the fullest disks; it is 0 if fewer
    than a majority have reported.

    A file is archived on every node. So if something else fills the disk of one node, the others
    must not lose files for it; that node stops accepting data until there is room.

    >>> full, empty = DiskReport("a", 100, 95), DiskReport("b", 100, 5)
    >>> agreed_excess([full, empty, empty], 90, 3), agreed_excess([full, full, empty], 90, 3)
    (-85, 5)
    """
    excess = sorted((disk.excess(percent) for disk in disks), reverse=True)
    majority = nodes // 2 + 1
    return excess[majority - 1] if len(excess) >= majority else 0


def demand_disks(policy: Policy, disks: Sequence[DiskReport]) -> None:
    """Refuse a limit larger than some node's disk, since the rule disk would always act first.

    Args:
        policy: the new policy.
        disks: what the nodes have reported so far.

    Raises:
        Misuse: the limit is too large; the error names the node with the smallest disk.
    """
    least = min(disks, key=lambda each: each.total, default=None)
    if policy.limit is not None and least is not None and policy.limit > least.total:
        raise Misuse(
            f"limit is {show_limit(policy.limit)}, and the disk of node {least.node} has "
            f"{least.total:,} bytes; use less"
        )


def _aged(policy: Policy, files: Sequence[RolledFile], now_ns: int) -> int:
    if not policy.time:
        return 0
    return bisect_right(files, now_ns - policy.time * MINUTE_NS, key=lambda file: file.rolled_ns)


def _least(freed: Sequence[int], needed: int) -> int:
    """Return how many of the oldest files to archive to free `needed`.

    Return the number of all files if they do not suffice, but 0 if they would free nothing.

    Args:
        freed: at index n, how much archiving the oldest n files frees.
        needed: how much to free; nothing if it is 0 or less.
    """
    if needed <= 0:
        return 0
    count = next((n for n, total in enumerate(freed) if total >= needed), len(freed) - 1)
    return count if freed[count] else 0
