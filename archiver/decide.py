"""Decide: which rolled files go, by which rule; a function of the manifest and some numbers."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from archiver.lease import Lease
from archiver.policy import MINUTE_NS, Policy
from rt.position import Position

TIME: Final = "time"
LIMIT: Final = "limit"
DISK: Final = "disk"


class RolledFile(NamedTuple):
    """A rolled file that still has its bytes."""

    start: Position
    bytes: int
    rolled_ns: int


class DiskReport(NamedTuple):
    """What a node said of the file system its merged log is on."""

    node: str
    total: int  # bytes that can be had by us at most
    used: int
    pending: int = 0  # of `used`: of files that are archived already and about to be emptied

    @property
    def percent(self) -> float:
        """How much of it is used, as `df` shows it."""
        return 100 * self.used / self.total if self.total else 0.0

    def excess(self, percent: int) -> int:
        """Return the bytes that have to go until `percent` is met; 0 or less if it is."""
        return self.used - self.pending - self.total * percent // 100


class Decision(NamedTuple):
    """A file is to be archived, and why."""

    start: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Demands:
    """How many of the oldest files each rule wants gone, and how many the leases leave to it."""

    time: int
    limit: int
    disk: int
    leased_from: int  # files before this one are held by nobody
    holders: str

    @property
    def count(self) -> int:
        """How many of the oldest files go."""
        return max(min(max(self.time, self.limit), self.leased_from), self.disk)

    def reason(self, place: int) -> str:
        """Return why the file at `place` goes: the first rule that asks for it."""
        free = place < self.leased_from
        if free and place < self.time:
            return TIME
        if free and place < self.limit:
            return LIMIT
        return DISK if free else f"{DISK}, over the lease of {self.holders}"


def decide(
    policy: Policy,
    files: Sequence[RolledFile],
    active_bytes: int,
    disks: Sequence[DiskReport] = (),
    *,
    now_ns: int,
    leases: Sequence[Lease] = (),
) -> list[Decision]:
    """Return what is to be archived now: the oldest files, no more than some rule asks for.

    Args:
        policy: the rules.
        files: the rolled files that have their bytes, oldest first.
        active_bytes: of the file that still grows; it counts for the limit and never goes.
        disks: of every node that lives; the fullest decides.
        now_ns: the time.
        leases: of readers, which hold files against time and limit, not against the disk rule.
    """
    wants = wanted(policy, files, active_bytes, disks, now_ns=now_ns, leases=leases)
    return [
        Decision(file.start, wants.reason(place)) for place, file in enumerate(files[: wants.count])
    ]


def wanted(
    policy: Policy,
    files: Sequence[RolledFile],
    active_bytes: int,
    disks: Sequence[DiskReport],
    *,
    now_ns: int,
    leases: Sequence[Lease] = (),
) -> Demands:
    """Return how many of the oldest files each rule asks for; arguments as for `decide`."""
    freed = [0, *accumulate(file.bytes for file in files)]  # by the oldest n files
    over = 0 if policy.limit is None else freed[-1] + active_bytes - policy.limit
    excess = max((disk.excess(policy.disk) for disk in disks), default=0)
    held = [(lease, lease.first_held(files, now_ns)) for lease in leases]
    first = min((place for _, place in held), default=len(files))
    return Demands(
        time=_aged(policy, files, now_ns),
        limit=_least(freed, over),
        disk=_least(freed, excess),
        leased_from=first,
        holders=", ".join(sorted(lease.holder for lease, place in held if place < len(files))),
    )


def _aged(policy: Policy, files: Sequence[RolledFile], now_ns: int) -> int:
    if not policy.time:
        return 0
    return bisect_right(files, now_ns - policy.time * MINUTE_NS, key=lambda file: file.rolled_ns)


def _least(freed: Sequence[int], needed: int) -> int:
    """Return how many of the oldest files free `needed` bytes, all of them if they do not."""
    if needed <= 0:
        return 0
    count = next((n for n, total in enumerate(freed) if total >= needed), len(freed) - 1)
    return count if freed[count] else 0
