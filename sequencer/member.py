"""Member: one node's sequencer: an engine and its journal, proposals, and their execution."""

import struct
from collections.abc import Callable, Sequence
from typing import Final

from rt.errors import Diverged, PeerError
from rt.position import START, Position
from sequencer.departed import Departed
from sequencer.execution.execution import NO_READERS, Execution, Readers, SnapshotPlan
from sequencer.execution.executor import Executor
from sequencer.hand_over import HandOver
from sequencer.journal.journal import Journal
from sequencer.ledger.digests import encode_digest
from sequencer.ledger.instruction import Instruction
from sequencer.membership import Dial, Membership
from sequencer.peers.notes import CONSENSUS
from sequencer.peers.restart_check import RestartCheck
from sequencer.planning.holdings import Holdings
from sequencer.planning.planner import Planner
from sequencer.proposals import Proposals
from sequencer.raft.consensus import Consensus, Entry, PeerMessage, Ready, UnheardError
from sequencer.raft.starts import Reach
from sequencer.reading import LatestReads

_INDEX: Final = struct.Struct("<Q")
_HOLDINGS: Final = b"\x02"
_DIGEST: Final = b"\x03"
_WANT_STATE: Final = b"\x04"
_STATE: Final = b"\x05"
REPORT: Final = b"\x06"  # kinds that others handle; see `Member.handlers`
WANT: Final = b"\x07"
_HELLO: Final = b"\x08"
_MEMBERS: Final = b"\x09"
DIGEST_TICKS: Final = 5  # as often as a heartbeat
_UNHEARD_MAX: Final = 64  # senders that are counted one by one; all others together
HAND_OVER_TICKS: Final = 100  # 2 s: a publisher that can reach this node has done so by then
WHOLE_REPORT_TICKS: Final = 20  # reports may be lost, so everything is repeated this often


class Member:
    """Does a node's sequencing duties, each when it is called.

    It has no thread, clock or socket of its own, so that a simulation drives it as a node does.
    One thread at a time calls it; `order`, `has_orders` and `is_executing` may be called by any,
    and `reads` says itself who may use it.
    """

    def __init__(
        self,
        name: str,
        members: Sequence[str],
        *,
        engine: Consensus,
        journal: Journal,
        greeting: RestartCheck,
        executor: Executor,
        planner: Planner,
        send: Callable[[str, bytes], None],
        now_ns: Callable[[], int],
        readers: Readers = NO_READERS,
        hand_over_ticks: int = HAND_OVER_TICKS,
        dial: Dial = lambda _addresses: None,
        departed: Departed | None = None,
    ) -> None:
        """Put the parts together; nothing happens before the first call.

        Args:
            name: this node.
            members: all nodes, until the first call of `run`; then those of the engine's log.
            engine: started from what `journal` recovered.
            journal: makes the engine's state durable.
            greeting: until it is over, this node takes no part in the consensus.
            executor: started from the same snapshot.
            planner: reads this node's copies of sessions.
            send: takes a message for a member; may lose it.
            now_ns: the clock that merge times are taken from.
            readers: of the merged log here.
            hand_over_ticks: how long this node goes on leading while a majority holds bytes that
                it lacks.
            dial: takes the addresses of all other nodes, by name, whenever they change.
            departed: the nodes that were removed; none that are known if None.
        """
        self.name = name
        self.engine = engine
        self.reads = LatestReads(engine, greeting.claim.chain.nonce >> 3)
        self.holdings = Holdings(name, members)
        self.handlers: dict[bytes, Callable[[str, bytes], None]] = {}  # by kind, REPORT or WANT
        self.greeting, self.executor = greeting, executor
        self._journal = journal
        self._send = send
        self.execution = Execution(executor, self.holdings, readers)
        self.proposals = Proposals(engine, self.holdings, self.execution, planner, now_ns)
        self.membership = Membership(
            name, engine, self.holdings, greeting, dial, departed=departed or Departed()
        )
        self.unheard: dict[str, int] = {}  # by sender, the messages that were refused
        self._hand_over = HandOver(engine, self.holdings, self.proposals, hand_over_ticks)
        self._leader = ""

    @property
    def is_alone(self) -> bool:
        """Whether there is no other member; any thread may ask."""
        return not self.engine.members.keys() - {self.name}

    @property
    def is_executing(self) -> bool:
        """Whether something was proposed or committed that was not executed here yet."""
        return bool(self.execution.queue) or self.proposals.is_undecided

    @property
    def is_behind(self) -> bool:
        """Whether something committed was not executed here yet, or what it made is not here."""
        return bool(self.execution.queue) or self.executor.lacks_log

    def receive(self, session: str) -> None:
        """This node was sent more of `session`, and has not synced it."""
        if self.engine.leads:
            self.proposals.waiting.notice([session])

    def hold(self, session: str, end: Position) -> None:
        """This node now holds `session` durably up to `end`."""
        self.holdings.hold(session, end)
        self.execution.copies.hold(session)
        self.proposals.waiting.notice([session])

    def lose(self, session: str) -> None:
        """This node's copy of `session` was damaged, or differed, and was set aside."""
        self.executor.forget(session)
        self.proposals.forget(session)
        self.execution.copies.lose(session)
        self.hold(session, START)

    def hear(self, sender: str, data: bytes) -> None:
        """Take another node's message; after a `PeerError` nothing of it was taken.

        Raises:
            UnheardError: the sender is no member, or has no say in what it sent; it was counted.
            WriterFailed: this node is an older copy of itself; it has to end.
        """
        kind, body = data[:1], data[1:]
        try:
            if kind != CONSENSUS:
                self._take(kind, sender, body)
            elif self.greeting.is_over:
                self.engine.step(sender, body)
        except UnheardError:
            name = sender if sender in self.unheard or len(self.unheard) < _UNHEARD_MAX else ""
            self.unheard[name] = self.unheard.get(name, 0) + 1
            raise

    def _take(self, kind: bytes, sender: str, body: bytes) -> None:
        self.membership.note(sender)
        if kind == _MEMBERS:
            self.membership.take(sender, body)
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
        self.greeting.tick()
        self.membership.tick()
        if self.greeting.is_over:
            self.engine.tick()
        if self.greeting.ticks % WHOLE_REPORT_TICKS == 0:
            self._report_all()
            self.holdings.round += 1
            self._send_all(_MEMBERS + self.membership.announcement())
            self._request_state()
        if self.engine.leads:
            self.proposals.waiting.tick()
            if self.greeting.ticks % DIGEST_TICKS == 0:
                self._send_digest()
            self._hand_over.tick()

    def gone(self, member: str) -> None:
        """Learn that a member's process has ended; if it led, another is elected soon."""
        if self.greeting.is_over:
            self.engine.gone(member)

    def order(self, instruction: Instruction, *, first: bool = False) -> None:
        """Have an instruction proposed soon; check whether it was executed, and order it again.

        Any thread may call it. The thread that proposes may put it `first`.

        Raises:
            Refused: this node does not lead.
        """
        self.proposals.order(instruction, first=first)

    def send(self, member: str, kind: bytes, body: bytes) -> None:
        """Send a message to the handler of its kind at another member; it may be lost."""
        self._send(member, kind + body)

    def run(self) -> list[str]:
        """Do everything that can be done now; return the sessions merged further, or found right.

        Raises:
            WriterFailed: the journal's disk failed; this node has to end.
            SessionDiverged: a session's copy is not what the nodes agreed on.
            CorruptLog: a session's copy or the merged log is damaged.
            OSError: the merged log cannot be written; call again when it can.
        """
        engine, execution, proposals = self.engine, self.execution, self.proposals
        if execution.copies.unchecked:
            execution.copies.check()
        if self.membership.follow():
            self.executor.alone = self.is_alone
        if engine.leader != self._leader or self.holdings.unreported:
            self._report_changes()
        while True:
            if proposals.waiting.due or proposals.orders:
                proposals.propose()
            ready = engine.ready()
            if ready is not None:
                self._take_ready(ready)
            if execution.queue:
                self._execute()
            if ready is None:
                break
        if self.greeting.is_due:
            self._greet()
        return execution.take_sessions()

    def _take_ready(self, ready: Ready) -> None:
        """Speak early, persist and speak; execute first what a reader here waits for.

        The leader can do with the reply of another member meanwhile.
        """
        if ready.entries or ready.snapshot is not None:
            self.membership.follow()  # before anything is sent to a member that is new
        if ready.early:
            self._post(ready.early)
        settled: Sequence[Entry] = ()
        if ready.committed and self.execution.readers.are_there():
            settled = ready.settled
        try:
            if settled:
                self._take_committed(settled)
                self._execute()
        finally:
            self._perform(ready, len(settled))
        if ready.reads:
            self.reads.take(ready.reads)

    def plan_snapshot(self) -> SnapshotPlan | None:
        """Return the state to snapshot, if anything was executed since the last snapshot."""
        plan = self.execution.plan_snapshot()
        return plan if plan is not None and self.engine.may_compact(plan.index) else None

    def save_snapshot(self, plan: SnapshotPlan) -> None:
        """Save a planned snapshot; the merged log is durable up to its end."""
        snapshot = self.engine.compact(plan.index, plan.data)
        if snapshot is not None:
            self._journal.save_snapshot(snapshot)
        self.execution.saved(plan)

    def _perform(self, ready: Ready, taken: int) -> None:
        """Persist, then speak, then take what was committed, but for the first so many entries."""
        if ready.must_persist:
            self._journal.persist(ready)  # a crash here repeats: nothing was promised yet
        self.engine.persisted(ready)
        if ready.messages:
            self._post(ready.messages)
        if ready.snapshot is not None:
            self.execution.restore(ready.snapshot)
        if len(ready.committed) > taken:
            self._take_committed(ready.committed[taken:])

    def _take_committed(self, entries: Sequence[Entry]) -> None:
        self.execution.append(map(self.proposals.decode, entries))
        self.proposals.committed(entries[-1].index)

    def _execute(self) -> None:
        try:
            self.execution.run()
        finally:
            self.proposals.executed(self.execution.done_index)

    # What nodes send each other

    def _greet(self) -> None:
        """Say how far this node's disk has come; everything the engine holds is durable now."""
        status = self.engine.status()
        self.greeting.advance(Reach(status.term, min(status.commit, status.durable)))
        for member in self.holdings.others:
            self._send(member, _HELLO + self.greeting.hello(member))

    def _take_hello(self, sender: str, body: bytes) -> None:
        if self.greeting.take(sender, body):
            self._send(sender, _HELLO + self.greeting.hello(sender))
        if self.greeting.finding and not self._took_part():
            self._journal.disown(self.greeting.finding)

    def _took_part(self) -> bool:
        """Whether a leader may have been elected or followed with this node since it started.

        An older copy of a node that has done so is part of the majority that moved on. What it
        undid is lost already, and if it left now, there might be no majority at all.
        """
        status = self.engine.status()
        is_later = status.term > self.greeting.claim.begun.term
        return self.greeting.is_over and (is_later or bool(status.leader))

    def _report_changes(self) -> None:
        """Report what is held to the leader; all of it to all members if there is another one."""
        if self.engine.leader != self._leader:
            self._leader = self.engine.leader
            self.proposals.change_leader()
            self._report_all()
        is_led = self._leader and self._leader != self.name
        for report in self.holdings.changes() if is_led else ():
            self._send(self._leader, self._holdings(report))

    def _report_all(self) -> None:
        for report in self.holdings.whole():
            self._send_all(self._holdings(report))

    def _holdings(self, report: bytes) -> bytes:
        """Return a report with the instruction up to which it is true; see `_take_holdings`."""
        return _HOLDINGS + _INDEX.pack(self.executor.done_index) + report

    def _take_holdings(self, sender: str, body: bytes) -> None:
        if len(body) < _INDEX.size:
            raise PeerError("a report without its instruction")
        [index] = _INDEX.unpack_from(body)
        outdated = self.executor.ledger.dropped_after(index)
        reported = self.holdings.take_report(sender, body[_INDEX.size :], outdated)
        self.holdings.executes(sender, index)
        self.proposals.waiting.notice_reported(reported)

    def _request_state(self) -> None:
        """Ask every member: the leader need not be the one that has the state."""
        if self.execution.needs_state:
            self._send_all(_WANT_STATE)

    def _take_state(self, sender: str, body: bytes) -> None:
        if not self.engine.elects(sender):  # a learner has it from those that do
            raise UnheardError(f"{sender!r} does not vote, as far as this node knows")
        self.execution.adopt(body)

    def _send_state(self, member: str) -> None:
        """Send what was executed here: it was decided, and is the same on every node."""
        state = self.execution.state()
        if state is not None:
            self._send(member, _STATE + state)

    def _send_digest(self) -> None:
        if not self.executor.is_half_done:
            self._send_all(_DIGEST + encode_digest(self.executor.ledger))

    def _compare_digest(self, sender: str, body: bytes) -> None:
        position = self.execution.digests.conflict(body)
        if position is not None and sender == self.engine.leader:
            raise Diverged(
                self.executor.appender.directory,
                position,
                f"the merged log differs from that of {sender} at or before this position",
            )

    def _post(self, messages: Sequence[PeerMessage]) -> None:
        for message in messages:
            self._send(message.to, CONSENSUS + message.data)

    def _send_all(self, data: bytes) -> None:
        for member in self.holdings.others:
            self._send(member, data)
