"""One simulated node: real engine, real journal, simulated disk, and the loop between them."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from rt.errors import PeerError, Refused, WriterFailed
from sequencer.journal.journal import Opened, found, open_journal
from sequencer.raft.consensus import EngineRole, Ready, UnheardError
from sequencer.raft.engine import Raft

from .checkers import Violation
from .disk import PowerCut, SimDisk
from .machine import Machine

if TYPE_CHECKING:
    from .cluster import Cluster

PATH = "state"


class SimNode:
    """A node that may die at any of its named points and come back from its disk."""

    cleans_failed_pages = True  # its kernel forgets pages that a sync failed to write

    def __init__(self, name: str, cluster: "Cluster", chance: Random) -> None:
        self.name, self.cluster, self._chance = name, cluster, chance
        self.disk = self._make_disk(Random(chance.getrandbits(32)))
        self.lacks_state = False  # new or disowned, and no start has succeeded since
        self._found(chance.getrandbits(60) + 1)
        self.disk.settle_all()
        self.life = 0  # events of an earlier life of the process are void
        self.alive = False
        self.paused_until_us = 0
        self.rate = 1.0
        self.lost = False  # its state is gone until the others have admitted it again
        self.disk_delay_us = 500
        self.start()

    def _make_disk(self, chance: Random) -> SimDisk:
        return SimDisk(chance, cleans_failed_pages=self.cleans_failed_pages)

    def _found(self, directory: int) -> None:
        cluster = self.cluster
        found(
            self.disk, PATH, cluster=cluster.founding_name, node=self.name, directory=directory,
            snapshot=cluster.founded_with(self),
        )  # fmt: skip

    # Life and death

    def start(self) -> None:
        """Start the process from its disk."""
        self.life += 1
        try:
            opened = self._open()
        except PowerCut:
            self.die("inside recovery", power=True)
            self.cluster.nemesis.restart_later(self)
            return
        except OSError:
            self.die("at a failed sync", power=False)
            self.cluster.nemesis.restart_later(self)
            return
        self.make_engine(opened)
        state = opened.state
        self.machine: Machine = self.cluster.new_machine()
        if state.snapshot is not None:
            self._load(state.snapshot.index, state.snapshot.data)
        self.alive, self._busy = True, False
        self.cluster.clock.after(self._tick_us(), self._tick, self.life)
        self.pump()

    def make_engine(self, opened: Opened) -> None:
        self.journal, state = opened.journal, opened.state
        if opened.damage and not (self.lost or self.lacks_state):
            raise Violation(f"{self.name} lost its state by itself: {opened.damage}")
        self.lacks_state = False
        self.lost = self.lost or bool(opened.damage)
        self.cluster.checker.durable(self.name, state.entries)
        self.cluster.checker.covered(self.name, state.snapshot.index if state.snapshot else 0)
        self.cluster.trace(f"{self.name} starts {len(state.entries)} {opened.damage}")
        self.raft: Raft = self.cluster.engine(
            self.name,
            self.cluster.names,
            cluster=self.cluster.founding_name,
            chance=Random(self._chance.getrandbits(32)),
            state=state,
            settings=self.cluster.settings,
        )

    def _open(self) -> Opened:
        self.disk.fault = self.cluster.nemesis.disk_fault(self)
        opened = self._open_journal()
        self.disk.fault = None
        return opened

    def _open_journal(self) -> Opened:
        return open_journal(
            self.disk,
            PATH,
            cluster=self.cluster.founding_name,
            node=self.name,
            fresh=self._chance.getrandbits(60) + 1,
            boot=f"boot {self.disk.boots}",
            cut_bytes=self.cluster.cut_bytes,
        )

    def die(self, point: str, *, power: bool) -> None:
        """End the process; with `power`, also lose what was not synced."""
        self.cluster.trace(f"{self.name} dies {point} {power}")
        self.cluster.points[point] = self.cluster.points.get(point, 0) + 1
        self.alive = False
        self.life += 1
        if power:
            self.disk.cut_power()
        else:
            self.disk.kill()

    def _dies_at(self, point: str) -> bool:
        if self.alive and self.cluster.nemesis.strikes(point):
            self.die(point, power=self._chance.random() < 0.7)
            self.cluster.nemesis.restart_later(self)
        return not self.alive

    # Events

    def guarded(self, act: Callable[..., None], *args: object) -> None:
        """Run an event of the running process, then its duties."""
        try:
            act(*args)
            self.pump()
        except PowerCut:
            self.die("inside a disk operation", power=True)
            self.cluster.nemesis.restart_later(self)
        except WriterFailed:
            self.die("at a failed sync", power=False)
            self.cluster.nemesis.restart_later(self)

    def receive(self, source: str, data: bytes) -> None:
        """Handle a message."""
        try:
            self.raft.step(source, data)
        except UnheardError as error:
            self.cluster.unheard(self, source, str(error))
        except PeerError as error:
            self.cluster.refused(self.name, str(error), source)

    def _tick_us(self) -> int:
        return int(self.cluster.tick_us / self.rate)

    def _tick(self, life: int) -> None:
        if life != self.life:
            return
        now = self.cluster.clock.now_us
        if now < self.paused_until_us:
            self.cluster.clock.after(self.paused_until_us - now, self._tick, life)
            return
        self.cluster.clock.after(self._tick_us(), self._tick, life)
        self.guarded(self.advance)

    def advance(self) -> None:
        """Advance a tick."""
        self.raft.tick()

    def propose(self, command: bytes) -> None:
        """Propose a client's command, if it leads."""
        try:
            self.raft.propose(command)
        except Refused:
            return

    def ask(self, ticket: int) -> None:
        """Take a client's read, if a leader is known."""
        try:
            self.raft.read_index(ticket)
        except Refused:
            return

    # Duties

    def pump(self) -> None:
        """Take what is ready; persisting it takes the disk's time."""
        cluster = self.cluster
        while self.alive and not self._busy:
            ready = self.raft.ready()
            if ready is None:
                return
            cluster.ready(self, ready)
            for message in ready.early:
                cluster.wire.send(self.name, message.to, message.data)
            if ready.early and self._dies_at("after speaking early"):
                return
            if not ready.must_persist:
                self._finish(ready)
                continue
            self._busy = True
            delay = int(self.disk_delay_us * (0.2 + self._chance.random()))
            cluster.clock.after(delay, self._persist, self.life, ready)

    def _persist(self, life: int, ready: Ready) -> None:
        if life != self.life:
            return
        now = self.cluster.clock.now_us
        if now < self.paused_until_us:
            self.cluster.clock.after(self.paused_until_us - now, self._persist, life, ready)
            return
        self.guarded(self._persist_now, ready)

    def _persist_now(self, ready: Ready) -> None:
        if self._dies_at("before persisting"):
            return
        self.disk.fault = self.cluster.nemesis.disk_fault(self)
        self.journal.persist(ready)
        self.disk.fault = None
        self.cluster.persisted(self, ready)
        self._busy = False
        if not self._dies_at("between persisting and speaking"):
            self._finish(ready)

    def _finish(self, ready: Ready) -> None:
        self.raft.persisted(ready)
        for message in ready.messages:
            self.cluster.wire.send(self.name, message.to, message.data)
        if ready.messages and self._dies_at("after speaking"):
            return
        if ready.snapshot is not None:
            self._load(ready.snapshot.index, ready.snapshot.data)
        self._apply(ready)
        for read in ready.reads:
            self.cluster.read(self, read)
        if ready.committed and not self._dies_at("after applying"):
            self._compact()

    def _load(self, index: int, data: bytes) -> None:
        self.machine.load(index, data)
        self.cluster.checker.applied(self.name, index, index, self.machine.digest())

    def _apply(self, ready: Ready) -> None:
        machine, checker = self.machine, self.cluster.checker
        for entry in ready.committed:
            checker.decides(self.name, entry, self.raft.core.term)
            expected = machine.index + 1
            machine.apply(entry)
            checker.applied(self.name, entry.index, expected, machine.digest())
        if ready.committed and self.raft.leads:
            self.cluster.acknowledge(machine.index)

    def _compact(self) -> None:
        if self.machine.index % self.cluster.compact_every:
            return
        snapshot = self.raft.compact(self.machine.index, self.machine.save())
        if snapshot is None:
            return
        self.disk.fault = self.cluster.nemesis.disk_fault(self)
        self.journal.save_snapshot(snapshot)
        self.disk.fault = None

    @property
    def incarnation(self) -> int:
        """Return which copy of its state runs; -1 if it is dead."""
        return self.raft.core.incarnation if self.alive else -1

    def may_decide(self) -> bool:
        """Whether it takes part in consensus."""
        return not self.lost and self.raft.core.is_voter

    def is_idle(self) -> bool:
        """Whether it leads and has nothing to commit."""
        return False

    def settled(self) -> bool:
        """Whether this node's own durable log says that its admission is committed."""
        status = self.raft.status()
        decided = status.commit >= self.raft.core.roster.changed_at
        return decided and status.role is not EngineRole.LEARNER and status.durable == status.last
