"""Retention: decides, on the leader, which files of the merged log are archived."""

import json
import logging
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from archiver.ages import Ages
from archiver.clock import SteadyClock, agreed_ns
from archiver.decide import DISK, DiskReport, agreed_excess
from archiver.lease import UNREADABLE, Lease, RolledFile, parse_lease
from archiver.plan import Prospect, active_messages, kept_files, rolled_files
from archiver.policy import Policy, parse_policy
from rt.errors import Misuse, Refused
from rt.format.manifest import Manifest
from rt.node.notes.pins import MayLease, Pins, pins_of
from rt.node.notes.readable_notes import readable
from rt.node.notes.reading_group import GROUP_NOTE, parse_reading_group
from rt.node.notes.registered_cursor import CURSOR_NOTE, parse_registered
from rt.node.retain.reports import (
    RetentionReport,
    RetentionReports,
    decode_retention_report,
)
from rt.node.retain.sweeper import NodeSweeper
from rt.node.settings.node import NodeSettings
from rt.position import OFFSET_BITS, START, Position
from rt.text import counted
from sequencer.ledger.instruction import FILES_MAX, Archive, ArchivedFile, Note, Roll, note_digest
from sequencer.ledger.ledger import Ledger
from sequencer.member import REPORT, Member

_log: Final = logging.getLogger("rt.archiver")
POLICY_NOTE: Final = "policy"
OFFLOAD_NOTE: Final = "offload"  # what was copied where: JSON with url and to
LEASE_NOTE: Final = "lease "  # followed by the holder
_TURN_S: Final = 0.2  # a decision takes 0.3 ms with 1,000 files
_STILL_S: Final = 1.0  # while nothing is executed, so only clocks and disks can change
_TURN_S_MIN: Final = 0.01  # while files roll fast, so that a limit is exceeded by only a few
# A limit on bytes also counts what will be merged before a decision takes effect, up to a quarter
# of the limit.
_COMING_PART: Final = 4
_GROWTH_S: Final = 0.2  # between two measurements of the growth
# From a decision until files are empty: a turn of retention, the instruction, the next snapshot.
_REACTION_S: Final = 0.3
_NS: Final = 1_000_000_000
_NEVER_NS: Final = (1 << 63) - 1
_ALL_BYTES: Final = (1 << 62) - 1


def disk_of(path: str) -> tuple[int, int, int]:
    """Return a file system's usable size, its used bytes and its available bytes, in this order."""
    facts = os.statvfs(path)
    used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    available = facts.f_bavail * facts.f_frsize
    return used + available, used, available


@dataclass(frozen=True, slots=True)
class Machine:
    """The clocks and the disk of the machine that a node runs on."""

    now_ns: Callable[[], int] = time.time_ns
    steady_ns: Callable[[], int] = time.monotonic_ns
    disk_of: Callable[[str], tuple[int, int, int]] = disk_of


class MergedGrowth:
    """MergedGrowth: measures how fast the merged log grows, and the age of its active file."""

    def __init__(self) -> None:
        self.coming = 0  # bytes expected to be merged while a decision is carried out
        self._looked_s = float("-inf")
        self._bytes = 0  # merged by then
        # the active file, and when it was first seen, by the monotonic clock; None at first
        self._active: tuple[Position, int] | None = None

    def measure(self, ledger: Ledger, now_s: float) -> None:
        """Measure how much was merged since the last measurement, if 0.2 s have passed."""
        end, passed_s = ledger.end, now_s - self._looked_s
        if passed_s >= _GROWTH_S:
            merged = (end >> OFFSET_BITS) * ledger.file_bytes_max + end.offset
            self.coming = int((merged - self._bytes) * _REACTION_S / passed_s)
            self._looked_s, self._bytes = now_s, merged

    def active_age_ns(self, ledger: Ledger, now_ns: int, steady_ns: int) -> int:
        """Return the age of the active file, in ns; 0 if the file is empty.

        The age counts from the file's first message, or from when this node first saw the file if
        that is longer ago.
        """
        if not ledger.active_since_ns:
            return 0
        if self._active is None or self._active[0] != ledger.end.file:
            self._active = (ledger.end.file, steady_ns)
        return max(now_ns - ledger.active_since_ns, steady_ns - self._active[1])


class Retention:
    """Retention: reports this node's disk, and orders archiving while this node leads.

    Only the sequencing thread uses it.
    """

    def __init__(
        self,
        settings: NodeSettings,
        member: Member,
        sweeper: NodeSweeper,
        machine: Machine = Machine(),
        may_lease: MayLease = lambda _role, _name: True,
    ) -> None:
        """Prepare, and receive the reports that other nodes send to the member.

        Args:
            settings: the node's settings.
            member: this node's member, which proposes the decisions.
            sweeper: frees the space of archived files, in another thread.
            machine: the node's clocks and disk.
            may_lease: returns whether a peer may hold files of the stream now.
        """
        self._pins = Pins(may_lease)
        self._settings = settings
        self._member = member
        self._sweeper = sweeper
        self.machine = machine
        self.clock = SteadyClock()
        self._ages = Ages()
        self._growth = MergedGrowth()
        self._reports = RetentionReports(member, sweeper.snapshot_index)
        self._said: set[str] = set()  # persisting problems that were logged
        self._turned_s = float("-inf")
        self.is_called = False  # whether a turn is due before the next tick
        self._turned_at = -1, -1  # the active file and last instruction at the last turn
        member.handlers[REPORT] = self.hear

    @property
    def now_ns(self) -> int:
        """The time that the nodes last agreed on plus the time since, in ns since the epoch.

        A node at rest compares clocks only every 10 s, but decisions in between need the present
        time. Until the nodes have agreed on a time, this is the machine's.
        """
        if not self.clock.is_set:
            return self.machine.now_ns()
        return self.clock.at(self.machine.steady_ns())

    @property
    def policy(self) -> Policy:
        """The stream's policy, the same on every node."""
        return policy_of_notes(self._ledger.notes)

    @property
    def leases(self) -> list[Lease]:
        """The stream's read leases, including expired ones."""
        return leases_of_notes(self._ledger.notes, self._pins.over)

    def hear(self, sender: str, body: bytes) -> None:
        """Record another node's report.

        Raises:
            PeerError: the report is malformed.
        """
        report = decode_retention_report(body, sender=sender, heard_s=self._steady_s())
        if self._reports.record(sender, report):
            self._turned_s, self.is_called = float("-inf"), True  # the others wait to learn of it

    @property
    def settled_index(self) -> int:
        """The instruction up to which a majority's merged logs are durable."""
        return self._reports.settled_index

    def has_durable(self, index: int) -> None:
        """Record, and report in the next turn, that everything up to an instruction is durable."""
        self._turned_s, self.is_called = float("-inf"), True
        self._reports.has_durable(index)

    def turn(self, now_s: float) -> None:
        """Report and decide if it is time: a few times a second, and after a file was rolled.

        Args:
            now_s: the monotonic clock, in seconds.
        """
        self.is_called = False
        since_s = now_s - self._turned_s
        if since_s < _TURN_S_MIN:
            return
        ledger = self._member.executor.ledger
        active = ledger.end >> OFFSET_BITS
        if since_s < _TURN_S and active == self._turned_at[0]:
            return
        now_at = active, ledger.index
        if since_s < _STILL_S and now_at == self._turned_at:
            return
        self._turned_s, self._turned_at = now_s, now_at
        self._growth.measure(ledger, now_s)
        self._report(now_s)
        living = self._living(now_s)
        self._pins.check(ledger.notes, now_s)
        self._look_at_clocks(living)
        self._look_at_disks(living)
        self._sweeper.turn(self._member.executor.appender, self._reports.settled_index)
        member = self._member
        if not member.engine.leads or member.proposals.has_orders or member.execution.suspended:
            return
        try:
            self._decide(living)
        except Refused:
            return  # another node leads now

    def prospect(self) -> Prospect:
        """Return the input of an archiving plan, as far as this node knows it."""
        kept = kept_files(self._member.executor.appender.manifest)
        return self._prospect(self._living(self._steady_s()), kept)

    def disks(self) -> list[DiskReport]:
        """Return the disks that the nodes have reported."""
        return self._disks(self._living(self._steady_s()))

    @property
    def _ledger(self) -> Ledger:
        return self._member.executor.ledger

    def _steady_s(self) -> float:
        return self.machine.steady_ns() / _NS

    def _report(self, now_s: float) -> None:
        total, used, available = self.machine.disk_of(self._member.executor.appender.directory)
        self._reports.send(
            RetentionReport(
                total, used, available, self._sweeper.emptied_to, self._durable_index,
                self._reports.settled_index, self.machine.now_ns(), now_s,
            )
        )  # fmt: skip

    @property
    def _durable_index(self) -> int:
        """The instruction up to which the merged log is durable and complete here."""
        executor, index = self._member.executor, self._reports.durable_index
        if not executor.lacks_log:
            return index
        return min(index, self._sweeper.durable_index(executor.appender.next_place))

    def durable_at(self, name: str) -> int | None:
        """Return up to which instruction a node's merged log is durable; None if it is silent."""
        report = self._reports.living(self._steady_s()).get(name)
        return None if report is None else report.durable_index

    def _living(self, now_s: float) -> dict[str, RetentionReport]:
        """Return the recent reports of this node and of the voters."""
        counted = {*self._member.holdings.voters, self._member.name}
        living = self._reports.living(now_s)
        return {name: report for name, report in living.items() if name in counted}

    def _decide(self, living: dict[str, RetentionReport]) -> None:
        policy, ledger = self.policy, self._ledger
        for note in ended_leases(ledger.notes, self.now_ns, self.machine.now_ns()):
            self._member.order(note, first=True)
        settled = self._sweeper.settled_end(self._reports.settled_index).file
        wanted = self._prospect(living).decisions(self.now_ns)
        decisions = [each for each in wanted if each.start < settled]
        if pressed := [each for each in decisions if each.reason.startswith(DISK)]:
            _log.warning(
                "archiving %s: the disks of most nodes are over %d%%",
                counted(len(pressed), "file"), policy.disk,
            )  # fmt: skip
        for start in range(0, len(decisions), FILES_MAX):
            part = decisions[start : start + FILES_MAX]
            files = tuple(ArchivedFile(each.start, each.reason) for each in part)
            self._member.order(Archive(self.machine.now_ns(), files))
        manifest = self._member.executor.appender.manifest
        messages = active_messages(manifest, ledger.number)
        age_s = policy.roll_age_s(self._settings.storage.file_age_s, messages)
        now_ns, steady_ns = self.machine.now_ns(), self.machine.steady_ns()
        if age_s and self._growth.active_age_ns(ledger, now_ns, steady_ns) >= age_s * _NS:
            self._member.order(Roll(self.machine.now_ns()))

    def _look_at_clocks(self, living: dict[str, RetentionReport]) -> None:
        clocks = [report.clock_ns for report in living.values()]
        self.clock.now_ns(agreed_ns(clocks), self.machine.steady_ns())
        holding = self.clock.is_holding
        if holding and "clock" not in self._said:
            _log.error("the clocks jumped ahead; nothing is archived by that time for an hour")
        (self._said.add if holding else self._said.discard)("clock")

    def _prospect(
        self,
        living: dict[str, RetentionReport],
        kept: Sequence[RolledFile] = (),
    ) -> Prospect:
        ledger, manifest = self._ledger, self._member.executor.appender.manifest
        files, policy = rolled_files(manifest, ledger.archived_to, ledger.end.file), self.policy
        coming = min(self._growth.coming, (policy.limit or 0) // _COMING_PART)
        return Prospect(
            self.now_ns, policy, self._ages.seen(files, self.now_ns, self.machine.steady_ns()),
            kept, ledger.end.offset + coming, self._disks(living), self.leases,
            len(self._member.holdings.voters), active_messages(manifest, ledger.number),
        )  # fmt: skip

    def _look_at_disks(self, living: dict[str, RetentionReport]) -> None:
        """Log an error when this node's disk exceeds the policy and most others do not."""
        disks, limit, nodes = self._disks(living), self.policy.disk, self._member.holdings.voters
        own = next(disk for disk in disks if disk.node == self._member.name)
        is_alone_full = own.excess(limit) > 0 >= agreed_excess(disks, limit, len(nodes))
        if is_alone_full and "disk" not in self._said:
            _log.error(
                "the disk of this node is %.0f%% full, the policy says %d%%; most other nodes have "
                "room, so nothing is archived for it: free space before it stops taking data",
                own.percent, limit,
            )  # fmt: skip
        (self._said.add if is_alone_full else self._said.discard)("disk")

    def _disks(self, living: dict[str, RetentionReport]) -> list[DiskReport]:
        manifest, to = self._member.executor.appender.manifest, self._ledger.archived_to
        return [
            DiskReport(name, each.total, each.used, _bytes(manifest, each.emptied_to, to))
            for name, each in sorted(living.items())
        ]


def policy_of_notes(notes: Mapping[str, str]) -> Policy:
    """Return the agreed policy, or the default if there is none.

    If this version cannot read the policy, return one that archives nothing.
    """
    text = notes.get(POLICY_NOTE)
    try:
        return parse_policy(text) if text else Policy()
    except Misuse as error:
        _log.error(
            "the policy %r is unknown to this version (%s); nothing is archived", text, error
        )
        return Policy(time=0, disk=100)


def leases_of_notes(notes: Mapping[str, str], over: frozenset[str] = frozenset()) -> list[Lease]:
    """Return the agreed leases, including expired ones, and the pins of cursors and groups.

    If this version cannot read one of them, a lease named `unreadable` holds all files. `over`
    names the notes whose pins no longer hold files.
    """
    leases, strange = readable(notes, LEASE_NOTE, parse_lease)
    _, strange_cursors = readable(notes, CURSOR_NOTE, parse_registered)
    _, strange_groups = readable(notes, GROUP_NOTE, parse_reading_group)
    leases += pins_of(notes, over)
    offloads = {OFFLOAD_NOTE: notes[OFFLOAD_NOTE]} if notes.get(OFFLOAD_NOTE) else {}
    copies, strange_copies = readable(offloads, OFFLOAD_NOTE, offload_lease)
    if strange or strange_cursors or strange_groups or strange_copies:
        leases.append(Lease("unreadable", START, _NEVER_NS, _ALL_BYTES))
    return [*leases, *copies]


def ended_leases(notes: Mapping[str, str], now_ns: int, at_ns: int) -> list[Note]:
    """Return instructions that remove the leases that have ended.

    An instruction has no effect if its lease was renewed by a decision not executed here yet.

    Args:
        notes: the agreed notes.
        now_ns: the time that the nodes agree on.
        at_ns: the time of the instructions.
    """
    ended = (each for each in readable(notes, LEASE_NOTE, parse_lease)[0]
             if now_ns >= each.until_ns)  # fmt: skip
    names = [LEASE_NOTE + each.holder for each in ended]
    return [Note(at_ns, name, "", note_digest(notes.get(name, ""))) for name in names]


def offload_lease(text: str) -> Lease:
    """Return a lease on the files that an offload has not yet copied to another store.

    Raises:
        Misuse: the note is malformed.
    """
    try:
        start = Position.parse(str(json.loads(text)["to"]))
    except UNREADABLE as error:
        raise Misuse(f"a note of copies has a url, and a position to: {error}") from None
    return Lease("offload", start, _NEVER_NS, _ALL_BYTES)


def _bytes(manifest: Manifest, begin: Position, end: Position) -> int:
    """Return the total size of the rolled files from `begin` up to `end`."""
    order = manifest.order
    files = order[bisect_left(order, begin) : bisect_left(order, end)]
    return sum(manifest.rolled[file].end for file in files)
