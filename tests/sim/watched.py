"""Observers of one node: its engine, journal, executor and member, as shipped."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rt.errors import PeerError
from rt.events import SessionChange
from sequencer.execution.executor import Executor
from sequencer.journal.journal import Journal
from sequencer.ledger.instruction import Archive, Instruction, lives_of
from sequencer.ledger.ledger import Ledger, decode_ledger
from sequencer.ledger.seal import SEALED_NOTE
from sequencer.member import Member
from sequencer.peers.notes import CONSENSUS
from sequencer.planning.session_log import SessionLogs
from sequencer.raft.consensus import (
    Configuration,
    Fork,
    LastChange,
    Ready,
    Snapshot,
    UnheardError,
)

from .checkers import Violation
from .stream import OUT

if TYPE_CHECKING:
    from .merge_node import MergeNode


class WatchedEngine:
    """The engine, observed, with points at which the node may die."""

    def __init__(self, node: "MergeNode") -> None:
        raft = node.raft
        self._node, self._raft = node, raft
        self._spoke = False
        self.step, self.tick, self.status = raft.step, raft.tick, raft.status
        self.propose, self.transfer, self.hesitate = raft.propose, raft.transfer, raft.hesitate
        self.gone, self.elects, self.announce = raft.gone, raft.elects, raft.announce
        self.may_compact, self.compact = raft.may_compact, raft.compact
        self.read_index, self.vouch = raft.read_index, raft.vouch

    @property
    def leader(self) -> str:
        """Return the leader, as far as known."""
        return self._raft.leader

    @property
    def members(self) -> Configuration:
        """Return the configuration."""
        return self._raft.members

    @property
    def last_change(self) -> LastChange:
        """Return the configuration, and where in the log it was committed."""
        return self._raft.last_change

    @property
    def leads(self) -> bool:
        """Whether this node leads."""
        return self._raft.leads

    quiescence = property(lambda self: self._raft.quiescence)  # whether nothing is left to agree on
    away = property(lambda self: self._raft.away)  # members that a leader does not hear
    changes = property(lambda self: self._raft.changes)  # what changes the members

    @property
    def fork(self) -> Fork | None:
        """Return where this node's committed entries differ from a leader's, if they do."""
        return self._raft.fork

    def ready(self) -> Ready | None:
        """Return what is to be done next."""
        if self._spoke:
            self._spoke = False
            self._node.strike("after speaking")
        ready = self._raft.ready()
        if ready is not None:
            self._node.world.ready(self._node, ready)
        return ready

    def persisted(self, ready: Ready) -> None:
        """Note that the duties are durable."""
        node, raft = self._node, self._raft
        raft.persisted(ready)
        self._spoke = bool(ready.messages)
        for entry in ready.committed:
            node.world.checker.decides(node.name, entry, raft.core.term)
        if ready.committed and raft.leads:
            node.world.acknowledge(ready.committed[-1].index)


class WatchedJournal:
    """The journal, observed, with points at which the node may die."""

    def __init__(self, node: "MergeNode", journal: Journal) -> None:
        self._node, self._journal = node, journal

    def persist(self, ready: Ready) -> None:
        """Make the duties durable."""
        node = self._node
        node.strike("before persisting")
        self._journal.persist(ready)
        node.world.persisted(node, ready)
        node.strike("between persisting and speaking")

    def disown(self, why: str) -> None:
        """Check that only a rolled-back state is disowned."""
        node = self._node
        if not node.is_older_copy:
            raise Violation(f"{node.name} is called an older copy of itself: {why}")
        node.is_older_copy, node.lacks_state = False, True
        self._journal.disown(why)

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Check that a majority, and this node unless it copies, has what a snapshot names."""
        node, ledger = self._node, decode_ledger(snapshot.data)
        if not node.member.execution.suspended:
            node.world.stream.has(node.name, node.disk, ledger)
        node.world.stream.saves(node.name, ledger)
        node.world.stream.knows(node.name, ledger)
        node.strike("before a snapshot")
        self._journal.save_snapshot(snapshot)


class WatchedExecutor(Executor):
    """The executor, observed."""

    def __init__(self, node: "MergeNode", ledger: Ledger, logs: SessionLogs) -> None:
        self._node = node
        self._checked = ledger.end
        alone = len(node.world.names) == 1
        received = node.inboxes.received
        super().__init__(
            node.disk, OUT, node.world.merged_identity, ledger, logs,
            received=received, alone=alone, memory=node.frames,
        )  # fmt: skip

    def execute(self, index: int, term: int, instruction: Instruction) -> None:
        """Execute an instruction."""
        node = self._node
        if isinstance(instruction, Archive):
            node.world.stream.archives(self.ledger, self.appender.manifest, instruction)
            node.world.demand_pressed(instruction)
            node.world.demand_released(self.ledger, instruction)
        with self.observed(index, instruction):
            super().execute(index, term, instruction)

    @contextmanager
    def observed(self, index: int, instruction: Instruction) -> Iterator[None]:
        """Check what the block executes, unless it leaves this to another."""
        node = self._node
        node.world.demand_allowed(self.ledger, instruction)
        seal, before = self.ledger.notes.get(SEALED_NOTE), self._sealed_part()
        try:
            with node.executing():
                yield
        finally:
            node.world.stream.decided(self.ledger)
        if self.done_index != index:
            return
        if seal is not None and before != self._sealed_part():
            raise Violation(f"{node.name} changes a sealed cluster by instruction {index}")
        node.world.stream.executed(
            node.name, node.disk, self.ledger, self._checked, node.rotten_files
        )
        node.knows(self.ledger)
        node.world.trace(f"{node.name} executes {index} {self.ledger.digest.hex()}")
        self._checked = self.ledger.end
        node.demand_little_memory()
        node.strike("after executing")

    def _sealed_part(self) -> tuple[object, ...]:
        """What no instruction may change in a sealed cluster."""
        ledger = self.ledger
        notes = {name: text for name, text in ledger.notes.items() if name != SEALED_NOTE}
        return ledger.end, ledger.digest, ledger.archived_to, notes

    def restore(self, ledger: Ledger) -> None:
        """Continue from another, later state."""
        if ledger.index < self.ledger.index:
            raise Violation(
                f"{self._node.name} goes back from {self.ledger.index} to {ledger.index}"
            )
        super().restore(ledger)
        self._checked = ledger.end
        self._node.knows(ledger)
        self._node.world.stream.knows(self._node.name, ledger)
        self._node.world.trace(f"{self._node.name} restores {ledger.index}")

    def discard(self, path: str) -> None:
        """Set a damaged file aside."""
        self._node.alarm(f"discards {path}")
        super().discard(path)

    def reopen(self) -> None:
        """Open the merged log after it was copied."""
        super().reopen()
        self._node.compare_all()
        self._node.world.trace(f"{self._node.name} reopens at {self.appender.end}")


class WatchedMember(Member):
    """The member, observed: between honest nodes no message is refused."""

    node: "MergeNode"

    def order(self, instruction: Instruction, *, first: bool = False) -> None:
        """Check an order: sessions that are pushed to the leader must not be closed.

        Unless a stranger pushes it who was asked to leave, for example after a takeover of the
        name.
        """
        for life in lives_of(instruction):
            pipe = self.node.pipes.get(life.session)
            is_end = life.change in {SessionChange.CLOSED, SessionChange.EXPIRED}
            is_pushed = pipe is not None and pipe.inbox.is_fed and pipe.inbox.leave is None
            if is_end and is_pushed:
                raise Violation(f"{self.name} leads, and closes {life.session}, which is pushed")
        super().order(instruction, first=first)

    def hear(self, sender: str, data: bytes) -> None:
        """Handle a member's message."""
        world = self.node.world
        try:
            super().hear(sender, data)
        except UnheardError as error:
            # a node may not know yet that another one has joined
            if data[:1] == CONSENSUS or world.has_fixed_members:
                world.unheard(self.node, sender, str(error))
        except PeerError as error:
            world.refused(self.name, str(error), sender)
