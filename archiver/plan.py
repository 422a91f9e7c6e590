"""Plan: what would be archived of a merged log, when, and by which rule; changes nothing."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from archiver.decide import Decision, DiskReport, decide
from archiver.lease import Lease, RolledFile
from archiver.policy import MINUTE_NS, Policy
from rt.format.manifest import Manifest
from rt.position import Position


class Planned(NamedTuple):
    """A rolled file that is not archived."""

    file: str
    bytes: int
    messages: int
    rolled_ns: int
    goes: bool  # whether it would be archived at the time of the plan
    reason: str  # why; "" if it stays
    expires_ns: int | None  # when the rule time will archive it; None if that rule is off


def rolled_files(
    manifest: Manifest, archived_to: Position, end: Position | None = None
) -> Sequence[RolledFile]:
    """Return the rolled files that are not archived, oldest first.

    Args:
        manifest: the merged log's manifest.
        archived_to: all files before this one are archived.
        end: the active file, if there is one; it and everything after it is left out.
    """
    order = manifest.order[bisect_left(manifest.order, archived_to) :]
    lines = (manifest.rolled[file] for file in order if end is None or file < end)
    return [RolledFile(line.file, line.end, line.at_ns) for line in lines]


def archived_to(manifest: Manifest) -> Position:
    """Return the first file that is not archived."""
    return max(manifest.archived).next_file() if manifest.archived else Position(0)


class Prospect(NamedTuple):
    """Prospect: the input of a plan, as of one moment.

    Attributes:
        now_ns: the time that retention used then.
        policy: the rules.
        files: the rolled files that are not archived, oldest first, with ages corrected by `Ages`.
        kept: the files that a plan lists, and how many messages each has.
        active_bytes, disks, leases, nodes: as in `archiver.decide.decide`.
    """

    now_ns: int
    policy: Policy
    files: Sequence[RolledFile]
    kept: Sequence[tuple[RolledFile, int]]
    active_bytes: int
    disks: Sequence[DiskReport]
    leases: Sequence[Lease]
    nodes: int

    def decisions(self, at_ns: int) -> list[Decision]:
        """Return what to archive at a time."""
        return decide(
            self.policy, self.files, self.active_bytes, self.disks, now_ns=at_ns,
            leases=self.leases, nodes=self.nodes,
        )  # fmt: skip

    def plan(self, at_ns: int) -> list[Planned]:
        """Return what would happen to each file at a time."""
        return planned(self.policy, self.kept, self.decisions(at_ns))


def kept_files(manifest: Manifest) -> list[tuple[RolledFile, int]]:
    """Return the files that are not archived, and how many messages each has."""
    files = rolled_files(manifest, archived_to(manifest))
    return [(file, manifest.rolled[file.start].messages) for file in files]


def planned(
    policy: Policy, kept: Sequence[tuple[RolledFile, int]], decisions: Sequence[Decision]
) -> list[Planned]:
    """Return what decisions mean for each file of `kept_files`, by the policy they follow."""
    reasons = {each.start: each.reason for each in decisions}
    age_ns = policy.time * MINUTE_NS
    return [
        Planned(
            start.file_name, size, messages, rolled_ns,
            start in reasons, reasons.get(start, ""), rolled_ns + age_ns if age_ns else None,
        )
        for (start, size, rolled_ns), messages in kept
    ]  # fmt: skip
