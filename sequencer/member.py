"""Member: the sequencer of one node, which connects engine, journal, proposals and execution."""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rt.errors import Diverged, PeerError
from rt.position import START, Position
from sequencer.execution.execution import NO_READERS, Execution, Readers, SnapshotPlan
from sequencer.execution.executor import Executor
from sequencer.hand_over import HandOver
from sequencer.journal.journal import Journal
from sequencer.ledger.digests import encode_digest
from sequencer.ledger.instruction import Instruction
from sequencer.membership import Dial, Membership
from sequencer.peers.departed import Departed, RemovalVerdicts
from sequencer.peers.notes import CONSENSUS
from sequencer.peers.restart_check import RestartCheck
from sequencer.planning.holdings import Holdings
from sequencer.planning.planner import Planner
from sequencer.proposals import Proposals
from sequencer.raft.consensus import Entry, Ready, UnheardError
from sequencer.raft.engine import Raft
from sequencer.raft.starts import Reach
from sequencer.reading import LatestReads

_INDEX: Final = struct.Struct("<Q")
_HOLDINGS: Final = b"\x02"
_DIGEST: Final = b"\x03"
_WANT_STATE: Final = b"\x04"
_STATE: Final = b"\x05"
REPORT: Final = b"\x06"  # REPORT and WANT are for `Member.handlers`
WANT: Final = b"\x07"
_HELLO: Final = b"\x08"
_MEMBERS: Final = b"\x09"
DIGEST_TICKS: Final = 5  # as often as a heartbeat
_UNHEARD_MAX: Final = 64  # senders counted individually; the rest are counted together
HAND_OVER_TICKS: Final = 100  # 2 s: a publisher that can reach this node has done so by then
WHOLE_REPORT_TICKS: Final = 20  # reports may be lost, so full ones are sent this often


class Member:
    """Member: does a node's sequencing work when called.

    A member has no thread, clock or socket of its own, so a simulation drives it as a node does.
    Only one thread at a time may call a member, with two exceptions: any thread may call `order`,
    and `LatestReads` says which threads may use `reads`.

    Attributes:
        transmit: sends a message to a member, and may lose the message. It must be set before the
            first call.
    """

    def __init__(
        self,
        name: str,
        members: Sequence[str],
        *,
        engine: Raft,
        journal: Journal,
        restart_check: RestartCheck,
        executor: Executor,
        planner: Planner,
        now_ns: Callable[[], int],
        send: Callable[[str, bytes], None] = lambda _member, _data: None,
        readers: Readers = NO_READERS,
        hand_over_ticks: int = HAND_OVER_TICKS,
        dial: Dial = lambda _addresses: None,
        departed: Departed | None = None,
    ) -> None:
        """Connect the parts; nothing happens before the first call.

        Args:
            name: this node.
            members: all nodes, used until the first call of `run` reads them from the engine's log.
            engine: started from what `journal` recovered.
            journal: makes the engine's state durable.
            restart_check: this node takes no part in the consensus until this check is over.
            executor: started from the same snapshot as `engine`.
            planner: reads this node's copies of sessions.
            now_ns: the clock for merge times.
            send: the initial `transmit`.
            readers: readers of the merged log on this node.
            hand_over_ticks: how long this node keeps leading while a majority holds bytes that this
                node lacks.
            dial: called with the addresses of all other nodes, by name, whenever they change.
            departed: the nodes that were removed; None if none are known.
        """
        self.name = name
        self.engine = engine
        self.reads = LatestReads(engine, restart_check.claim.chain.nonce >> 3)
        self.holdings = Holdings(name, members)
        self.handlers: dict[bytes, Callable[[str, bytes], None]] = {}  # by kind, REPORT or WANT
        self.restart_check, self.executor = restart_check, executor
        self._records = executor.logs.records
        self._journal = journal
        self.transmit = send
        self._has_joined = False  # the restart check is over
        self.execution = Execution(executor, self.holdings, readers)
        self.proposals = Proposals(engine, self.holdings, self.execution, planner, now_ns)
        self.membership = Membership(
            name, engine, self.holdings, restart_check, dial, departed=departed or Departed()
        )
        self._verdicts = RemovalVerdicts()
        self.unheard: dict[str, int] = {}  # number of refused messages by sender
        self._hand_over = HandOver(engine, self.holdings, self.proposals, hand_over_ticks)
        self._leader = ""

    @property
    def is_alone(self) -> bool:
        """Whether there is no other member; safe from any thread."""
        return not self.engine.members.keys() - {self.name}

    def record_durable(self, session: str, end: Position) -> None:
        """Record that this node holds `session` durably up to `end`."""
        self.holdings.record_durable(session, end)
        self._records.grow(session)
        self.proposals.waiting.notice([session])

    def lose(self, session: str) -> None:
        """Record that this node's copy of `session` was set aside as damaged or wrong."""
        self._records.set_aside(session)
        self.record_durable(session, START)

    def hear(self, sender: str, data: bytes) -> None:
        """Handle another node's message.

        Raises:
            PeerError: the message is malformed, and had no effect.
            UnheardError: the sender is not a member, or may not send such a message. The message
                had no effect, but was counted in `unheard`.
            Diverged: the merged log here differs from the leader's.
            WriterFailed: this node runs on an older copy of its own data and must stop.
        """
        kind, body = data[:1], data[1:]
        try:
            if kind != CONSENSUS:
                self._take(kind, sender, body)
            elif self._has_joined or self.restart_check.is_over:
                self._has_joined = True
                self.engine.step(sender, body)
        except UnheardError:
            name = sender if sender in self.unheard or len(self.unheard) < _UNHEARD_MAX else ""
            self.unheard[name] = self.unheard.get(name, 0) + 1
            raise

    def _take(self, kind: bytes, sender: str, body: bytes) -> None:
        self.membership.record_heard(sender)
        if kind == _MEMBERS:
            self.membership.receive(sender, body)
            return
        self.membership.demand(sender)
        if kind == _HOLDINGS:
            self._take_holdings(sender, body)
        elif kind == _HELLO:
            self._take_hello(sender, body)
        elif kind == _DIGEST:
            self._compare_digest(sender, body)
        elif kind == _WANT_STATE:
            self._send_state(sender)
        elif kind == _STATE:
            self._take_state(sender, body)
        elif kind in self.handlers:
            self.handlers[kind](sender, body)
        else:
            raise PeerError(f"a message of an unknown kind from {sender!r}")

    def tick(self) -> None:
        """Let one unit of time pass."""
        self.restart_check.tick()
        self.membership.tick()
        if self.restart_check.is_over:
            self.engine.tick()
        if self.restart_check.ticks % WHOLE_REPORT_TICKS == 0:
            self._report_all()
            self.holdings.round += 1
            self._send_all(_MEMBERS + self.membership.announcement())
            if self.execution.needs_state:  # ask every member, as the leader may not have a state
                self._send_all(_WANT_STATE)
        if self.engine.leads:
            self.proposals.waiting.tick()
            if self.restart_check.ticks % DIGEST_TICKS == 0 and not self.executor.is_half_done:
                self._send_all(_DIGEST + encode_digest(self.executor.ledger))
            self._hand_over.tick()

    def gone(self, member: str) -> None:
        """Record that a member's process ended; if that member led, an election follows soon."""
        if self.restart_check.is_over:
            self.engine.gone(member)

    def take_verdicts(self, verdicts: Mapping[str, bool]) -> None:
        """Handle the answers of the members that this node has dialled since the last call.

        Args:
            verdicts: for each of these members, whether it refuses this node as removed.

        Raises:
            WriterFailed: a majority refuses this node as removed. The journal has recorded this,
                and the node must stop.
        """
        if self._verdicts.convict(verdicts, self.engine, self.name):
            self._journal.persist(Ready(removed=True))

    def order(self, instruction: Instruction, *, first: bool = False) -> None:
        """Queue an instruction for proposal; it may get lost, so check later and order it again.

        Any thread may call this, but only the thread that calls `run` may set `first`.

        Raises:
            Refused: this node does not lead.
        """
        self.proposals.order(instruction, first=first)

    def send(self, member: str, kind: bytes, body: bytes) -> None:
        """Send a message to another member's handler for its kind; it may be lost."""
        self.transmit(member, kind + body)

    def run(self) -> list[str]:
        """Do all pending work.

        Returns:
            The sessions that were merged further, and those whose copies passed a check.

        Raises:
            WriterFailed: the journal's disk failed; this node must stop.
            SessionDiverged: a session's copy differs from what the nodes agreed on.
            CorruptLog: a session's copy or the merged log is damaged.
            OSError: the merged log cannot be written; call again when it can.
        """
        engine, execution, proposals = self.engine, self.execution, self.proposals
        if self._records.unchecked:
            execution.copies.check()
        membership = self.membership
        if engine.members is not membership.followed or not membership.is_settled:
            self._follow()
        if engine.leader != self._leader or (self.holdings.unreported and not engine.leads):
            self._report_changes()
        while True:
            if engine.leads and (
                proposals.waiting.due or proposals.orders or proposals.founding is not None
            ):
                proposals.propose()
            ready = engine.ready()
            if ready is not None:
                self._take_ready(ready)
            if execution.queue:
                self._execute()
            if ready is None:
                break
        if self.restart_check.is_due:
            self._greet()
        return execution.take_sessions()

    def _follow(self) -> None:
        if self.membership.follow():
            self.executor.alone = self.is_alone

    def _take_ready(self, ready: Ready) -> None:
        """Perform the duties in `ready`: send the early messages, persist, then send the rest.

        If readers are connected here, committed entries that need no sync are executed before the
        sync. This delays the node's reply to the leader, but the leader can commit with another
        member's reply.
        """
        if self.engine.members is not self.membership.followed:
            self._follow()  # before anything is sent to a new member
        for message in ready.early:
            self.transmit(message.to, CONSENSUS + message.data)
        settled: Sequence[Entry] = ()
        if ready.committed and self.execution.readers.are_there():
            settled = ready.settled
        try:
            if settled:
                self._take_committed(settled)
                self._execute()
        finally:  # persist, then send, then execute the other committed entries
            if ready.entries or ready.must_persist:
                self._journal.persist(ready)  # nothing is promised yet: a crash here is harmless
            self.engine.persisted(ready)
            for message in ready.messages:
                self.transmit(message.to, CONSENSUS + message.data)
            if ready.snapshot is not None:
                self.execution.restore(ready.snapshot)
            if len(ready.committed) > len(settled):
                self._take_committed(ready.committed[len(settled) :])
        if ready.reads:
            self.reads.record(ready.reads)

    def plan_snapshot(self) -> SnapshotPlan | None:
        """Return the state to snapshot; None if it has not changed, or cannot be saved now."""
        plan = self.execution.plan_snapshot()
        return plan if plan is not None and self.engine.may_compact(plan.index) else None

    def save_snapshot(self, plan: SnapshotPlan) -> None:
        """Save a planned snapshot; call this once the merged log is durable up to `plan.end`."""
        snapshot = self.engine.compact(plan.index, plan.data)
        if snapshot is not None:
            self._journal.save_snapshot(snapshot)
        self.execution.saved(plan)

    def _take_committed(self, entries: Sequence[Entry]) -> None:
        self.execution.append(map(self.proposals.decode, entries))
        if self.proposals.undecided is not None:
            self.proposals.committed(entries[-1].index)

    def _execute(self) -> None:
        try:
            self.execution.run()
        finally:
            if self.proposals.undecided is not None or self.proposals.founding is not None:
                self.proposals.executed(self.execution.done_index)

    # Messages between nodes

    def _greet(self) -> None:
        """Greet all members; the greeting says how far this node's durable state reaches.

        Call this only when everything in the engine is durable, because the other members take the
        term in the greeting as durable here.
        """
        status = self.engine.status()
        self.restart_check.advance(Reach(status.term, min(status.commit, status.durable)))
        for member in self.holdings.others:
            self.transmit(member, _HELLO + self.restart_check.hello(member))

    def _take_hello(self, sender: str, body: bytes) -> None:
        if self.restart_check.receive(sender, body):
            self.transmit(sender, _HELLO + self.restart_check.hello(sender))
        if self.restart_check.finding and not self._took_part():
            self._journal.disown(self.restart_check.finding)

    def _took_part(self) -> bool:
        """Whether this node may have voted or followed a leader since it started.

        A node that took part is not stopped even if it runs on an older copy of its state. A leader
        may have been elected with its vote, so the node belongs to the majority that moved on. What
        the older copy lacks is already lost, and stopping the node could leave no majority.
        """
        status = self.engine.status()
        is_later = status.term > self.restart_check.claim.begun.term
        return self.restart_check.is_over and (is_later or bool(status.leader))

    def _report_changes(self) -> None:
        """Report changed holdings to the leader; if the leader changed, report all to everyone."""
        if self.engine.leader != self._leader:
            self._leader = self.engine.leader
            self.proposals.change_leader()
            self._report_all()
        is_led = self._leader and self._leader != self.name
        for report in self.holdings.changes() if is_led else ():
            self.transmit(self._leader, self._holdings(report))

    def _report_all(self) -> None:
        for report in self.holdings.whole():
            self._send_all(self._holdings(report))

    def _holdings(self, report: bytes) -> bytes:
        """Return a message with a holdings report and the index of the last entry executed here.

        The receiver ignores a session in the report if a later entry dropped the session's copies.
        """
        return _HOLDINGS + _INDEX.pack(self.executor.done_index) + report

    def _take_holdings(self, sender: str, body: bytes) -> None:
        if len(body) < _INDEX.size:
            raise PeerError("a report without its instruction")
        [index] = _INDEX.unpack_from(body)
        outdated = self.executor.ledger.dropped_after(index)
        reported = self.holdings.take_report(sender, body[_INDEX.size :], outdated)
        self.holdings.executes(sender, index)
        self.proposals.waiting.notice_reported(reported)

    def _take_state(self, sender: str, body: bytes) -> None:
        if not self.engine.elects(sender):  # a learner's state comes from a voter
            raise UnheardError(f"{sender!r} does not vote, as far as this node knows")
        self.execution.adopt(body)

    def _send_state(self, member: str) -> None:
        """Send a member this node's state, which is the same on every node."""
        state = self.execution.state()
        if state is not None:
            self.transmit(member, _STATE + state)

    def _compare_digest(self, sender: str, body: bytes) -> None:
        position = self.execution.digests.conflict(body)
        if position is not None and sender == self.engine.leader:
            raise Diverged(
                self.executor.appender.directory,
                position,
                f"the merged log differs from that of {sender} at or before this position",
            )

    def _send_all(self, data: bytes) -> None:
        for member in self.holdings.others:
            self.transmit(member, data)
