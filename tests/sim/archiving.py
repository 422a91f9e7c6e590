"""Archiving on a simulated node: the real archiver and sweeper, on its clocks and its disk."""

import errno
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from typing import TYPE_CHECKING, Any, cast

from rt.errors import DiskFailed
from rt.log.write.appender import Appender, Durable
from rt.node.retain.retention import Machine, Retention
from rt.node.retain.snapshots import NodeSnapshots
from rt.node.retain.sweep import Sweep
from rt.node.retain.sweeper import NodeSweeper
from rt.node.settings.node import NodeSettings
from rt.node.settings.storage import StorageSettings
from rt.position import Position
from sequencer.execution.execution import SnapshotPlan
from sequencer.journal.journal import Journal
from sequencer.ledger.instruction import Instruction, Roll
from sequencer.ledger.ledger import MergedEnds, decode_ledger
from sequencer.member import Member

from .checkers import Violation
from .stream import BEGIN_NS

if TYPE_CHECKING:
    from .merge_node import MergeNode

DISK_BYTES = 20_000
BOOT_NS = 40 * 24 * 3600 * 10**9  # a machine has run for so long when a world begins
ROLL_AGE_NS = 60 * 10**9  # no setting and no policy rolls a younger file
STEPS_A_TICK = 3  # a run is short, so snapshots are as frequent as if each step might begin one


class SimSweep(Sweep):
    """Reports to the world which inputs are archived."""

    def __init__(self, node: "MergeNode") -> None:
        super().__init__(node.disk, node.inboxes, fold_s=0, now_ns=lambda: paced_ns(node))
        self._node = node

    def _archive_input(self, log: Appender, merged_to: Position, swept: Position) -> None:
        self._node.world.stream.gives_up(self._node.name, log.identity.name, merged_to)
        super()._archive_input(log, merged_to, swept)


class SimSweeper(NodeSweeper):
    """Sweeps at times that the world chooses, without a thread."""

    def __init__(self, node: "MergeNode") -> None:
        super().__init__(SimSweep(node))
        self._node = node
        self._is_awake = False

    def saved(self, ends: MergedEnds) -> None:
        """Note that a snapshot was saved: there may be something to archive."""
        super().saved(ends)
        self._wake()

    def turn(self, merged: Appender, settled_index: int) -> None:
        """Schedule another sweep soon."""
        super().turn(merged, settled_index)
        self._wake()

    def _wake(self) -> None:
        """Schedule the turn that a real sweeper's thread would take."""
        if self._last is not None and not self._is_awake:
            self._is_awake = True
            self._node.soon(10.0, self._run_once)

    def _run_once(self) -> None:
        """Do one turn of the thread's work."""
        self._is_awake = False
        if self._last is None:
            return
        try:
            self.sweep(*self._last)
        except DiskFailed:
            raise  # the node dies
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOSPC):
                raise


class SimSnapshots(NodeSnapshots):
    """Takes snapshots at random times."""

    def __init__(self, node: "MergeNode", journal: Journal, chance: Random) -> None:
        super().__init__(
            node.member,
            journal,
            node.sweeper,
            node.archiver,
            flush=node.inboxes.flush,
            pool=node.inboxes.syncer.pool,
            pause_s=0,
        )
        self._node, self._chance = node, chance

    def _is_time(self, now_s: float) -> bool:
        return self._chance.random() < self._node.world.snapshot_chance * STEPS_A_TICK

    def _sync(self) -> Future[Durable]:
        return _Sync(self._sync_all, self._chance)

    def _take_synced(self, plan: SnapshotPlan, durable: Durable) -> None:
        if durable >= plan.end:
            node = self._node
            ledger = decode_ledger(plan.data)
            node.world.stream.has(node.name, node.disk, ledger, node.rotten_files)
        super()._take_synced(plan, durable)


class _Sync(Future[Durable]):
    """A sync that completes after a while, as on another thread, or when it is waited for."""

    def __init__(self, sync: Callable[[], Durable], chance: Random) -> None:
        super().__init__()
        self._sync, self._chance = sync, chance

    def done(self) -> bool:
        """Whether the bytes are durable."""
        if self._chance.random() < 0.5:
            self._finish()
        return super().done()

    def result(self, timeout: float | None = None) -> Durable:
        """Wait until the bytes are durable."""
        self._finish()
        return super().result(timeout)

    def _finish(self) -> None:
        if not super().done():
            self.set_result(self._sync())


class _CheckedRolls:
    """A node's member, which no file may be rolled through before its time."""

    def __init__(self, node: "MergeNode") -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node.member, name)

    def order(self, instruction: Instruction, *, first: bool = False) -> None:
        """Order an instruction; a `Roll` must be due by one of the node's two clocks."""
        node = self._node
        since_ns = node.member.executor.ledger.active_since_ns
        age_ns = max(paced_ns(node) - since_ns, steady_ns(node) - BOOT_NS)
        if isinstance(instruction, Roll) and (not since_ns or age_ns < ROLL_AGE_NS):
            raise Violation(f"{node.name} rolls a file that is {age_ns / 1e9:.1f} s old")
        node.member.order(instruction, first=first)


class SimRetention(Retention):
    """Uses a clock that runs faster than the node's, since a run is short."""

    node: "MergeNode"

    def turn(self, now_s: float) -> None:
        """Report and decide, when due."""
        super().turn(steady_ns(self.node) / 1e9)


def make_archiver(node: "MergeNode", sweeper: SimSweeper) -> Retention:
    """Return the real archiver of a node; its time runs faster, since a run is short."""
    world = node.world
    machine = Machine(
        now_ns=lambda: paced_ns(node),
        steady_ns=lambda: steady_ns(node),
        disk_of=lambda _path: _disk_of(node),
    )
    settings = NodeSettings(name=node.name, storage=StorageSettings(file_age_s=world.file_age_s))
    retention = SimRetention(settings, cast("Member", _CheckedRolls(node)), sweeper, machine)
    retention.node = node
    return retention


def paced_ns(node: "MergeNode") -> int:
    """Return the wall clock that retention uses."""
    return BEGIN_NS + node.offset_ns + int((steady_ns(node) - BOOT_NS) * node.rate)


def steady_ns(node: "MergeNode") -> int:
    """Return a clock that is never set back, and that began when the machine was started."""
    return BOOT_NS + node.world.clock.now_us * 1000 * node.world.pace


def _disk_of(node: "MergeNode") -> tuple[int, int, int]:
    node.has_been_full |= node.is_full
    used = DISK_BYTES * 19 // 20 if node.is_full else DISK_BYTES // 20
    return DISK_BYTES, used, DISK_BYTES - used
