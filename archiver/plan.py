"""Plan: shows which files of a merged log would be archived, when and by which rule."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from archiver.decide import Decision, DiskReport, decide
from archiver.lease import Lease, RolledFile
from archiver.policy import MINUTE_NS, Policy
from rt.format.manifest import Manifest
from rt.position import Position


class Planned(NamedTuple):
    """A rolled file that is not archived, and what a plan says of it."""

    file: str
    bytes: int
    messages: int
    rolled_ns: int
    goes: bool  # whether it would be archived at the time of the plan
    reason: str  # why it would be archived; "" if it would not
    expires_ns: int | None  # when the rule time would archive it; None if that rule is off


def rolled_files(
    manifest: Manifest, archived_to: Position, end: Position | None = None
) -> Sequence[RolledFile]:
    """Return the rolled files that are not archived, oldest first.

    Args:
        manifest: the merged log's manifest.
        archived_to: all files before this one are archived.
        end: the active file, if there is one; files from it on are left out.
    """
    order = manifest.order[bisect_left(manifest.order, archived_to) :]
    lines = (manifest.rolled[file] for file in order if end is None or file < end)
    return [RolledFile(line.file, line.end, line.at_ns, line.messages) for line in lines]


def archived_to(manifest: Manifest) -> Position:
    """Return the start of the first file that is not archived."""
    return max(manifest.archived).next_file() if manifest.archived else Position(0)


class Prospect(NamedTuple):
    """Prospect: what a plan is made from, as of one moment.

    Attributes:
        now_ns: the time that retention used at that moment.
        policy: the rules.
        files: the rolled files that are not archived, oldest first, with ages corrected by `Ages`.
        kept: the files that a plan lists, with the dates that the manifest gives.
        active_bytes, disks, leases, nodes, active_messages: as in `archiver.decide.decide`.
    """

    now_ns: int
    policy: Policy
    files: Sequence[RolledFile]
    kept: Sequence[RolledFile]
    active_bytes: int
    disks: Sequence[DiskReport]
    leases: Sequence[Lease]
    nodes: int
    active_messages: int = 0

    def decisions(self, at_ns: int) -> list[Decision]:
        """Return what retention would archive at a given time."""
        return decide(
            self.policy, self.files, self.active_bytes, self.disks, now_ns=at_ns,
            leases=self.leases, nodes=self.nodes, active_messages=self.active_messages,
        )  # fmt: skip

    def plan(self, at_ns: int) -> list[Planned]:
        """Return what would happen to each listed file at a given time."""
        return planned(self.policy, self.kept, self.decisions(at_ns))


def kept_files(manifest: Manifest) -> Sequence[RolledFile]:
    """Return the files that are not archived, oldest first."""
    return rolled_files(manifest, archived_to(manifest))


def active_messages(manifest: Manifest, number: int) -> int:
    """Return how many messages the active file of a merged log has.

    Args:
        manifest: the log's manifest.
        number: the number that the log's next message will have.
    """
    return number - manifest.rolled[manifest.order[-1]].next if manifest.order else number


def planned(
    policy: Policy, kept: Sequence[RolledFile], decisions: Sequence[Decision]
) -> list[Planned]:
    """Return for each kept file whether and why `decisions` archive it, and when it expires."""
    reasons = {each.start: each.reason for each in decisions}
    age_ns = policy.time * MINUTE_NS
    return [
        Planned(
            start.file_name, size, messages, rolled_ns,
            start in reasons, reasons.get(start, ""), rolled_ns + age_ns if age_ns else None,
        )
        for start, size, rolled_ns, messages in kept
    ]  # fmt: skip
