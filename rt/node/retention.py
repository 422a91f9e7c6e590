"""Retention: what a node does about retention, a few times a second, beside its sequencing."""

import json
import logging
import os
import struct
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from archiver.ages import Ages
from archiver.clock import SteadyClock, agreed_ns
from archiver.decide import DISK, Decision, DiskReport, agreed_excess, decide
from archiver.lease import Lease, parse_lease
from archiver.plan import Planned, plan, rolled_files
from archiver.policy import Policy, parse_policy
from rt.errors import Misuse, PeerError, Refused
from rt.format.manifest import Manifest
from rt.node.guard import DiskGuard
from rt.node.settings import NodeSettings
from rt.node.sweeper import NodeSweeper
from rt.position import OFFSET_BITS, START, Position
from sequencer.instruction import FILES_MAX, Archive, ArchivedFile, Note, Roll
from sequencer.ledger import Ledger
from sequencer.member import REPORT, Member

_log: Final = logging.getLogger("rt.archiver")
POLICY_NOTE: Final = "policy"
OFFLOAD_NOTE: Final = "offload"  # where copies are, and of what: JSON with url and to
LEASE_NOTE: Final = "lease "  # and the holder
_TURN_S: Final = 0.2  # a decision takes 0.3 ms where there are 1,000 files
_TURN_S_MIN: Final = 0.01  # where files roll fast: what is above a limit is no more than a few
# From looking to empty files: a turn, the instruction, the snapshot behind it. What is merged in
# that time comes on top of what was counted, so the limit counts it beforehand; up to a quarter.
_REACTION_S: Final = 0.3
_COMING_PART: Final = 4
_REPORT_S_MAX: Final = 10.0  # a node that was silent for so long has no say
# total, used and available bytes of the file system, files emptied up to, and up to which
# instruction all is durable: of this node, of a majority as the leader knows; clock
_REPORT: Final = struct.Struct("<QQQQQQq")
_NS: Final = 1_000_000_000
_NEVER_NS: Final = (1 << 63) - 1
_ALL_BYTES: Final = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What a node says of itself."""

    total: int
    used: int
    available: int
    emptied_to: Position  # the archived files before it hold no bytes any more
    durable_index: int  # all up to this instruction is durable in its merged log
    settled_index: int  # the same of a majority, as far as it knows
    clock_ns: int
    heard_s: float = 0.0  # when, by this node's steady clock

    def encode(self) -> bytes:
        """Return it as it goes over the wire."""
        return _REPORT.pack(
            self.total, self.used, self.available, self.emptied_to, self.durable_index,
            self.settled_index, self.clock_ns,
        )  # fmt: skip


def disk_of(path: str) -> tuple[int, int, int]:
    """Return bytes of a file system: all that we could have, used, and available to us."""
    facts = os.statvfs(path)
    used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    available = facts.f_bavail * facts.f_frsize
    return used + available, used, available


@dataclass(frozen=True, slots=True)
class Machine:
    """What is asked of the machine a node runs on."""

    now_ns: Callable[[], int] = time.time_ns
    steady_ns: Callable[[], int] = time.monotonic_ns
    disk_of: Callable[[str], tuple[int, int, int]] = disk_of


class Retention:
    """Reports this node's disk, and decides while it leads. The sequencing thread calls it."""

    def __init__(
        self,
        settings: NodeSettings,
        member: Member,
        sweeper: NodeSweeper,
        guard: DiskGuard,
        machine: Machine = Machine(),
    ) -> None:
        """Stand ready.

        Args:
            settings: of the node.
            member: is asked to propose what is decided.
            sweeper: empties files and archives inputs, by a thread of its own.
            guard: refuses data where archiving does not free enough.
            machine: its clocks and its disk.
        """
        self._settings = settings
        self._member = member
        self._sweeper = sweeper
        self._guard = guard
        self._machine = machine
        self._clock = SteadyClock()
        self._ages = Ages()
        self._active = (START, 0)  # the file seen to grow, and since when, by the steady clock
        self._said: set[str] = set()  # troubles that were logged and last
        self._turned_s = float("-inf")
        self._merged = (float("-inf"), 0)  # when it was looked, and the bytes merged until then
        self._coming = 0  # bytes that are merged while a decision is carried out
        self._turned_at = START  # the active file then
        self._durable_index = sweeper.snapshot_index
        self._settled_index = 0  # what is known of a majority's; it never goes back
        self.now_ns = machine.now_ns()  # the time that retention goes by
        self.reports: dict[str, RetentionReport] = {}
        member.handlers[REPORT] = self.hear

    @property
    def policy(self) -> Policy:
        """The policy of the stream, which is the same on every node."""
        return policy_of_notes(self._ledger.notes)

    @property
    def leases(self) -> list[Lease]:
        """The read leases of the stream, those that have ended too."""
        return leases_of_notes(self._ledger.notes)

    def hear(self, sender: str, body: bytes) -> None:
        """Take another node's report; `PeerError` if it is none."""
        if len(body) != _REPORT.size:
            raise PeerError(f"a report of {len(body)} bytes from {sender!r}")
        total, used, available, emptied_to, durable, settled, clock_ns = _REPORT.unpack(body)
        place = Position(emptied_to & ((1 << 63) - 1))
        self.reports[sender] = RetentionReport(
            total, used, available, place, durable, settled, clock_ns, self._steady_s()
        )
        if sender == self._member.engine.leader:
            self._settle(settled)
        elif self._member.engine.leads and self._majority_durable() > self._settled_index:
            self._turned_s = float("-inf")  # all are waiting to hear of it

    @property
    def settled_index(self) -> int:
        """Up to which instruction a majority has all durably in its merged logs."""
        return self._settled_index

    def has_durable(self, index: int) -> None:
        """Tell the others, with the next turn, that all up to an instruction is durable here."""
        self._durable_index = index
        self._turned_s = float("-inf")
        if not self._member.holdings.others:
            self._settle(index)

    def turn(self, now_s: float) -> None:
        """Report and decide, if it is time: a few times a second, and when a file was rolled.

        Args:
            now_s: by the steady clock.
        """
        active = self._ledger.end.file
        pause_s = _TURN_S if active == self._turned_at else _TURN_S_MIN
        if now_s - self._turned_s < pause_s:
            return
        self._turned_s, self._turned_at = now_s, active
        self._foresee(now_s)
        self._report(now_s)
        self._look_at_clocks(now_s)
        self._look_at_disks(now_s)
        self._sweeper.turn(self._member.executor.appender, self._settled_index)
        member = self._member
        if not member.engine.leads or member.has_orders or member.suspended:
            return
        try:
            self._decide(now_s)
        except Refused:
            return  # another leads now

    def plan(self, at_ns: int) -> list[Planned]:
        """Return what would become of each file at a time, as far as this node knows."""
        decisions = self._decisions(self._living(self._steady_s()), at_ns)
        return plan(self.policy, self._member.executor.appender.manifest, decisions)

    def disks(self) -> list[DiskReport]:
        """Return what is known of the nodes' disks."""
        return self._disks(self._living(self._steady_s()))

    @property
    def _ledger(self) -> Ledger:
        return self._member.executor.ledger

    def _steady_s(self) -> float:
        return self._machine.steady_ns() / _NS

    def _foresee(self, now_s: float) -> None:
        """See how fast the merged log grows, and what comes before a decision has its effect."""
        end, passed_s = self._ledger.end, now_s - self._merged[0]
        if passed_s >= _TURN_S:
            merged = (end >> OFFSET_BITS) * self._ledger.file_bytes_max + end.offset
            self._coming = int((merged - self._merged[1]) * _REACTION_S / passed_s)
            self._merged = (now_s, merged)

    def _report(self, now_s: float) -> None:
        member, sweeper = self._member, self._sweeper
        total, used, available = self._machine.disk_of(member.executor.appender.directory)
        report = RetentionReport(
            total, used, available, sweeper.emptied_to, self._durable_index,
            self._settled_index, self._machine.now_ns(), now_s,
        )  # fmt: skip
        self.reports[member.name] = report
        if member.engine.leads:
            self._settle(self._majority_durable())
        for each in member.holdings.others:
            member.send(each, REPORT, report.encode())

    def _settle(self, index: int) -> None:
        self._settled_index = max(self._settled_index, index)

    def _majority_durable(self) -> int:
        """Return the instruction up to which a majority has all it made of its inputs durably."""
        durable = {name: report.durable_index for name, report in self.reports.items()}
        return self._member.holdings.reached_by_majority(durable)

    def _living(self, now_s: float) -> dict[str, RetentionReport]:
        return {
            name: report
            for name, report in self.reports.copy().items()
            if now_s - report.heard_s < _REPORT_S_MAX
        }

    def _decide(self, now_s: float) -> None:
        policy = self.policy
        self._forget_old_leases()
        settled = self._sweeper.settled_end(self._settled_index).file
        wanted = self._decisions(self._living(now_s), self.now_ns)
        decisions = [each for each in wanted if each.start < settled]
        if pressed := [each for each in decisions if each.reason.startswith(DISK)]:
            _log.warning(
                "archiving %d files: the disks of most nodes are over %d%%",
                len(pressed), policy.disk,
            )  # fmt: skip
        for start in range(0, len(decisions), FILES_MAX):
            part = decisions[start : start + FILES_MAX]
            files = tuple(ArchivedFile(each.start, each.reason) for each in part)
            self._member.order(Archive(self._machine.now_ns(), files))
        age_s = policy.roll_age_s(self._settings.storage.file_age_s)
        if age_s and self._active_age_ns() >= age_s * _NS:
            self._member.order(Roll(self._machine.now_ns()))

    def _active_age_ns(self) -> int:
        """How long messages stand in the active file: at least as long as this node has seen it."""
        ledger, steady_ns = self._ledger, self._machine.steady_ns()
        if not ledger.active_since_ns:
            return 0
        if self._active[0] != ledger.end.file:
            self._active = (ledger.end.file, steady_ns)
        return max(self._machine.now_ns() - ledger.active_since_ns, steady_ns - self._active[1])

    def _look_at_clocks(self, now_s: float) -> None:
        clocks = [report.clock_ns for report in self._living(now_s).values()]
        self.now_ns = self._clock.now_ns(agreed_ns(clocks), self._machine.steady_ns())
        holding = self._clock.is_holding
        if holding and "clock" not in self._said:
            _log.error("the clocks jumped ahead; nothing is archived by that time for an hour")
        (self._said.add if holding else self._said.discard)("clock")

    def _forget_old_leases(self) -> None:
        for lease in self.leases:
            if self.now_ns >= lease.until_ns:
                # Nothing is undecided, so what renews it meanwhile waits still, and comes behind.
                name = LEASE_NOTE + lease.holder
                self._member.order(Note(self._machine.now_ns(), name, ""), first=True)

    def _decisions(self, living: dict[str, RetentionReport], now_ns: int) -> list[Decision]:
        ledger, manifest = self._ledger, self._member.executor.appender.manifest
        files, policy = rolled_files(manifest, ledger.archived_to, ledger.end.file), self.policy
        coming = min(self._coming, (policy.limit or 0) // _COMING_PART)
        return decide(
            policy, self._ages.seen(files, self.now_ns, self._machine.steady_ns()),
            ledger.end.offset + coming, self._disks(living), now_ns=now_ns, leases=self.leases,
            nodes=self._nodes,
        )  # fmt: skip

    @property
    def _nodes(self) -> int:
        return len(self._member.holdings.others) + 1

    def _look_at_disks(self, now_s: float) -> None:
        """Say when this node's disk is over the policy and most others are not."""
        disks, limit = self._disks(self._living(now_s)), self.policy.disk
        own = next(disk for disk in disks if disk.node == self._member.name)
        is_alone_full = own.excess(limit) > 0 >= agreed_excess(disks, limit, self._nodes)
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
    """Return the policy that was agreed on; the default until one was."""
    text = notes.get(POLICY_NOTE)
    try:
        return parse_policy(text) if text else Policy()
    except Misuse as error:
        _log.error("the policy %r is unknown to this version (%s); nothing goes", text, error)
        return Policy(time=0, disk=100)


def leases_of_notes(notes: Mapping[str, str]) -> list[Lease]:
    """Return the leases that were agreed on, those that have ended too."""
    names = sorted(name for name in notes if name.startswith(LEASE_NOTE))
    leases = [parse_lease(notes[name]) for name in names]
    offloaded = notes.get(OFFLOAD_NOTE)
    return [*leases, offload_lease(offloaded)] if offloaded else leases


def offload_lease(text: str) -> Lease:
    """Return what holds the files that were not copied yet; `Misuse` if the note is none."""
    try:
        start = Position.parse(str(json.loads(text)["to"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Misuse(f"a note of copies has a url, and a position to: {error}") from None
    return Lease("offload", start, _NEVER_NS, _ALL_BYTES)


def _bytes(manifest: Manifest, begin: Position, end: Position) -> int:
    """Return what the rolled files from `begin` on and before `end` held."""
    order = manifest.order
    files = order[bisect_left(order, begin) : bisect_left(order, end)]
    return sum(manifest.rolled[file].end for file in files)
