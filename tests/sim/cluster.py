"""A simulated cluster: a seed determines its faults; then it heals, and must make progress."""

from collections.abc import Callable, Set
from hashlib import blake2b
from random import Random

from rt.errors import Refused
from sequencer.raft.consensus import EntryKind, Read, Ready, Snapshot
from sequencer.raft.core import Settings
from sequencer.raft.engine import Raft
from sequencer.raft.quorum import majority_of

from .checkers import Checker, Violation
from .clock import Clock
from .machine import Books, Machine, Tape
from .nemesis import Nemesis
from .node import SimNode
from .outsider import STRANGER, Outsider, has_outsider
from .progress import Progress
from .seats import voters_of
from .wire import Wire

FAULT_TICKS = 120
EVENTS_AT_ONCE = 50  # events between two checks whether the run is over
HEAL_TIMEOUTS = 40  # election timeouts after the faults, in which everyone must catch up
SIZES = (3, 3, 3, 5, 5, 5, 3, 7, 1, 3)


class Cluster:
    """A whole cluster of one seed.

    Args:
        seed: determines the cluster, its faults and every random choice.
        new_machine: makes a node's application; by default, odd seeds use the tape and even ones
            the ledger.
        log: called with each line of the trace, for people.
    """

    fault_ticks = FAULT_TICKS
    heal_timeouts = HEAL_TIMEOUTS
    has_fixed_members = True
    may_bury = True  # whether a node may be lost for good
    takes_garbage = False  # whether its nodes execute what they agree on, as real nodes do
    may_have_outsider = True
    founding_name = "sim"  # what all its nodes' journals name
    engine: Callable[..., Raft] = Raft  # makes a node's engine

    def __init__(
        self,
        seed: int,
        new_machine: Callable[[], Machine] | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.seed, self._log = seed, log
        self.new_machine = new_machine or (Tape if seed % 2 else Books)
        self._chance = chance = Random(seed)
        self.clock = self._make_clock()
        self.tick_us = 10_000
        self.names = self.founders = self.draw_names(chance)
        self.majority = majority_of(len(self.names))
        self.settings = self.draw_settings()
        self.compact_every = chance.choice([3, 7, 20, 1000])
        self.cut_bytes = chance.choice([300, 2_000, 1 << 20])
        self.checker = self._make_checker()
        self.points: dict[str, int] = {}
        self.refusals = 0
        self.events = 0
        self.buried = ""  # the node that was lost for good; "" if none
        self._trace = blake2b(digest_size=8)
        self.wire = self._make_wire(Random(chance.getrandbits(32)))
        self.nodes: dict[str, SimNode] = {}
        self.nemesis = self.make_nemesis(Random(chance.getrandbits(32)))
        for name in self.names:
            self.nodes[name] = self._make_node(name, Random(chance.getrandbits(32)))
        self._floors: dict[int, int] = {}
        self._proposed, self._proposals_max = 0, 1 << 30
        self._proposing_us = chance.choice([3_000, 10_000, 30_000])
        self.clock.after(self._proposing_us, self._client)
        self.outsider = Outsider(self) if self.may_have_outsider and has_outsider(seed) else None

    def draw_names(self, chance: Random) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, chance.choice(SIZES) + 1))

    def founded_with(self, node: SimNode) -> Snapshot | None:
        """Return the state that a new node begins with, if any, and give its disk the log."""
        del node
        return None

    def _make_clock(self) -> Clock:
        return Clock()

    def _make_wire(self, chance: Random) -> Wire:
        return Wire(self.clock, chance, self.deliver)

    def _make_checker(self) -> Checker:
        return Checker(self.majority)

    def make_nemesis(self, chance: Random) -> Nemesis:
        return Nemesis(self, chance)

    def _make_node(self, name: str, chance: Random) -> SimNode:
        return SimNode(name, self, chance)

    def draw_settings(self) -> Settings:
        chance = self._chance
        return Settings(
            heartbeat_ticks=chance.choice([1, 1, 2]),
            election_ticks=chance.choice([3, 3, 4, 7]),
            batch_bytes_max=chance.choice([20, 200, 10_000]),
            window_entries_max=chance.choice([2, 8, 100]),
            chunk_bytes=chance.choice([16, 64, 4096]),
            trail_entries=chance.choice([0, 2, 10]),
        )

    # Running

    def run(self) -> str:
        """Run the faults, then demand progress; return the hash of the trace."""
        self.until(self.fault_ticks, self._progress().look)
        self.end_faults()
        self.trace("faults end")
        ticks = self.heal_timeouts * self.settings.election_ticks
        if not self.until(ticks, self.recovered):
            raise Violation(f"no progress after the faults: {self.states()}")
        return self._trace.hexdigest()

    def _progress(self) -> Progress:
        """Return the checker of progress during the faults."""
        return Progress(self)

    def end_faults(self) -> None:
        self.nemesis.end()
        self._proposing_us = 30_000
        self._proposals_max = self._proposed + 3

    def until(self, ticks: int, done: Callable[[], bool]) -> bool:
        end_us = self.clock.now_us + ticks * self.tick_us
        while self.clock.now_us < end_us:
            self.clock.step(EVENTS_AT_ONCE)
            self.events += EVENTS_AT_ONCE
            if done():
                return True
        return False

    def recovered(self) -> bool:
        if self._proposed < self._proposals_max or not self.checker.acknowledged:
            return False
        there = [node for node in self.nodes.values() if node.name != self.buried]
        states = [(node.machine.index, node.settled()) for node in there]
        return all(state == (len(self.checker.decided), True) for state in states)

    def states(self) -> list[str]:
        return [str(node.raft.status()) for node in self.nodes.values()]

    def trace(self, line: str) -> None:
        """Add a line to the trace."""
        self._trace.update(line.encode())
        self._tell(line)

    def _tell(self, line: str) -> None:
        """Log a line for people who replay the run; it is not part of the trace."""
        if self._log is not None:
            self._log(f"{self.clock.now_us / 1000:10.2f} ms  {line}")

    # Reports from nodes

    def deliver(self, source: str, target: str, data: bytes) -> None:
        node = self._addressed(source, target)
        if not node.alive:
            return
        now = self.clock.now_us
        if now < node.paused_until_us:
            self.clock.after(node.paused_until_us - now, self.deliver, source, target, data)
            return
        self._trace.update(data)
        if self._log is not None:
            self._tell(f"{source} -> {target} {self.shown(node, data)}")
        node.guarded(node.receive, source, data)

    def _addressed(self, source: str, target: str) -> SimNode:
        """Return the node that a message is for."""
        if target not in self.nodes:
            raise Violation(f"{source} speaks to {target}, which no log lists")
        return self.nodes[target]

    def shown(self, node: SimNode, data: bytes) -> object:
        """Return what a trace shows of a message."""
        return node.raft.core.outgoing.codec.decode(data)[1]

    def ready(self, node: SimNode, ready: Ready) -> None:
        """Observe that a node has taken its duties."""
        raft = node.raft
        self.checker.knows(node.name, node.life, raft.core.commit)
        if ready.entries and len(self.names) > 1:
            self.checker.logged(ready, raft.core.log.term_at(ready.entries[0].index - 1))
        if raft.leads:
            crowned = self.checker.leads(node.name, raft)
            self.checker.reigns(node.name, raft)
            self.checker.admits(node.name, ready)
            if crowned or any(entry.kind is EntryKind.MEMBER for entry in ready.entries):
                self.nemesis.leader_writes(node)
            if any(entry.kind is EntryKind.MEMBER for entry in ready.committed):
                self.nemesis.admission_commits(node)
        if self._log is not None:
            self._log(f"{'':15}{node.name} {ready}")

    def persisted(self, node: SimNode, ready: Ready) -> None:
        """Observe that a node's duties are durable."""
        if len(self.names) == 1:  # it leads in the term that it is just writing
            self.checker.logged(ready, None)
        self.checker.durable(node.name, ready.entries)
        if ready.ballot is not None:
            self.checker.voted(node.name, node.raft.core.incarnation, ready.ballot)
        if ready.snapshot is not None:
            self.checker.covered(node.name, ready.snapshot.index)
        if node.lost and node.settled():
            node.lost = False

    def acknowledge(self, index: int) -> None:
        """Record that a leader told its clients that everything up to an entry is committed."""
        self.checker.acknowledged = max(self.checker.acknowledged, index)

    def read(self, node: SimNode, read: Read) -> None:
        """Observe that a node may answer a read."""
        self.checker.read(node.name, read.index, self._floors[read.ticket])

    def refused(self, name: str, words: str, source: str) -> None:
        """Fail: a node has refused a message, which honest nodes never cause."""
        if source == STRANGER or source in self.removed():
            return
        raise Violation(f"{name} refuses an honest message: {words}")

    def is_open(self, node: SimNode) -> bool:
        """Whether a node accepts messages from non-members."""
        del node
        return False

    def removed(self) -> Set[str]:
        """Return the names of nodes that were removed and have ended."""
        return frozenset()

    def unheard(self, node: SimNode, source: str, words: str) -> None:
        """Check that a node which ignores another one does not list it as a voter."""
        core = node.raft.core
        if source in voters_of(core, tuple(core.founders), core.log.last):
            self.refused(node.name, words, source)

    # Clients

    def _client(self) -> None:
        self.clock.after(self._proposing_us, self._client)
        live = [
            n for n in self.nodes.values() if n.alive and self.clock.now_us >= n.paused_until_us
        ]
        for node in live:
            if node.raft.leads and self._proposed < self._proposals_max:
                self._proposed += 1
                command = node.machine.command(self._chance, self._proposed)
                node.guarded(node.propose, command)
        if live and self._chance.random() < 0.3:
            ticket = len(self._floors)
            self._floors[ticket] = self.checker.acknowledged
            reader = self._chance.choice(live)
            if reader.alive:
                reader.guarded(reader.ask, ticket)

    def transfer(self, leader: SimNode, to: str) -> None:
        """Ask a leader to hand over."""
        try:
            leader.raft.transfer(to)
        except Refused:
            return
