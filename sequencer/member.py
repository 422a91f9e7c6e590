"""Member: one node's sequencer: an engine, its journal, the ledger, and the merge they drive."""

import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from rt.errors import Diverged, Misuse, PeerError, Refused
from rt.position import START, Position
from sequencer.executor import Executor
from sequencer.holdings import Holdings
from sequencer.instruction import Instruction, Merge, decode_instruction, encode_instruction
from sequencer.journal.journal import Journal
from sequencer.ledger import decode_ledger
from sequencer.planner import Planner
from sequencer.raft.consensus import Consensus, Entry, EntryKind, PeerMessage, Snapshot

_CONSENSUS: Final = b"\x01"
_HOLDINGS: Final = b"\x02"
_DIGEST: Final = b"\x03"
_WANT_STATE: Final = b"\x04"
_STATE: Final = b"\x05"
REPORT: Final = b"\x06"  # what nodes tell each other beside sequencing; see `Member.hearers`
WANT: Final = b"\x07"
_DIGEST_BODY: Final = struct.Struct("<QQ16s")  # index, end of the merged log, digest
DIGEST_TICKS: Final = 5  # as often as a heartbeat
HAND_OVER_TICKS: Final = 100  # 2 s: a publisher that reaches us at all has done so by then
_AGREED_KEPT: Final = 1000  # times, for the eyes of operators
_DIGESTS_KEPT: Final = 4096  # instructions back; a member further behind is compared later
WHOLE_REPORT_TICKS: Final = 20  # a report may be lost on the way; all is told again after this


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """A state that may become a snapshot once the merged log is durable up to `end`."""

    index: int
    data: bytes
    end: Position


class Committed(NamedTuple):
    """An entry that is to be executed; the engine's own entries have no instruction."""

    entry: Entry
    instruction: Instruction | None


class Member:
    """Does a node's sequencing duties, each when it is called; one thread calls.

    It has no thread, clock or socket of its own, so that a simulation drives it as a node does.
    """

    def __init__(
        self,
        name: str,
        members: Sequence[str],
        *,
        engine: Consensus,
        journal: Journal,
        executor: Executor,
        planner: Planner,
        send: Callable[[str, bytes], None],
        now_ns: Callable[[], int],
        merged: Callable[[], None] = lambda: None,
        hand_over_ticks: int = HAND_OVER_TICKS,
    ) -> None:
        """Stand ready.

        Args:
            name: this node.
            members: all nodes.
            engine: started from what `journal` gave back.
            journal: where the engine's state is made durable.
            executor: started from the same snapshot.
            planner: reads this node's copies.
            send: takes a message for a member; may lose it.
            now_ns: the clock that merge times are taken from.
            merged: is called as soon as the merged log has grown, so that it is served at once.
            hand_over_ticks: how long this leads on though a majority holds what it does not.
        """
        self.name = name
        self.engine = engine
        self.executor = executor
        self.holdings = Holdings(name, members)
        self._journal = journal
        self._planner = planner
        self._send = send
        self._now_ns = now_ns
        self._merged = merged
        self._untold: list[str] = []  # sessions merged since `run` last returned and did not raise
        self._hand_over_ticks = hand_over_ticks
        # sessions a majority may hold more of than was merged; a dict, for its order
        self._waiting: dict[str, None] = {}
        self._undecided: tuple[Entry, Instruction] | None = None  # our own proposal
        self._proposed_ns = 0
        self.agreed_ns: deque[int] = deque(maxlen=_AGREED_KEPT)  # each from proposed to committed
        self._committed: deque[Committed] = deque()
        # one less: that the merged log is durable so far is not known before it is synced again
        self._snapshot_index = executor.ledger.index - 1
        self._leader = ""
        self._ticks = 0
        self._orders: deque[Instruction] = deque()
        self._order_was_last = False
        self._handed = executor.ledger.index  # the last entry the engine gave to be executed
        self._adopted = 0  # entries up to this one have their effect in another's state
        self.hearers: dict[bytes, Callable[[str, bytes], None]] = {}  # by kind, REPORT or WANT
        self._short_ticks = 0  # how long a majority has held what this leader does not
        self._digests: OrderedDict[int, tuple[Position, bytes]] = OrderedDict()
        self.suspended = False  # while the merged log is copied from another node

    @property
    def missing(self) -> tuple[str, Position] | None:
        """The session, and up to where, that the next instruction needs and this node lacks."""
        return self._lack(self._committed[0]) if self._committed else None

    def hold(self, session: str, end: Position) -> None:
        """This node now holds `session` durably up to `end`."""
        self.holdings.hold(session, end)
        self._waiting[session] = None

    def lose(self, session: str) -> None:
        """This node's copy of `session` was damaged and set aside."""
        self.executor.forget(session)
        self.hold(session, START)

    def hear(self, sender: str, data: bytes) -> None:
        """Take a member's message; `PeerError` if it is none, and then nothing of it was taken."""
        kind, body = data[:1], data[1:]
        if kind == _CONSENSUS:
            self.engine.step(sender, body)
        elif kind == _HOLDINGS:
            self._waiting.update(dict.fromkeys(self.holdings.hear(sender, body)))
        elif kind == _DIGEST and len(body) == _DIGEST_BODY.size:
            self._compare_digest(sender, *_DIGEST_BODY.unpack(body))
        elif kind == _WANT_STATE and sender in self.holdings.others:
            self._tell_state(sender)
        elif kind == _STATE and sender in self.holdings.others:
            self._adopt(body)
        elif kind in self.hearers and sender in self.holdings.others:
            self.hearers[kind](sender, body)
        else:
            raise PeerError(f"a message of an unknown kind from {sender!r}")

    def tick(self) -> None:
        """Let one unit of time pass."""
        self._ticks += 1
        self.engine.tick()
        if self._ticks % WHOLE_REPORT_TICKS == 0:
            self._report_all()
            self._ask_for_state()
        if self.engine.leads:
            if self._ticks % DIGEST_TICKS == 0:
                self._tell_digest()
            self._hand_over_if_short()

    def order(self, instruction: Instruction, *, first: bool = False) -> None:
        """Propose this instruction soon. It may be lost: see whether it came, and order it again.

        Any thread may call it; the one that proposes may have it go `first` of all that wait.

        Raises:
            Refused: another node leads, or none.
        """
        if not self.engine.leads:
            words = f"{self.engine.leader} leads the stream; ask it"
            raise Refused("not-leader", words if self.engine.leader else "no node leads now")
        (self._orders.appendleft if first else self._orders.append)(instruction)

    @property
    def is_executing(self) -> bool:
        """Whether something was proposed or committed that was not executed here yet."""
        return bool(self._committed) or self._undecided is not None

    @property
    def has_orders(self) -> bool:
        """Whether something was ordered that was not proposed yet, or is undecided."""
        decided = self._undecided is None or isinstance(self._undecided[1], Merge)
        return bool(self._orders) or not decided

    def tell(self, member: str, kind: bytes, body: bytes) -> None:
        """Send a message to the hearer of its kind at another member; it may be lost."""
        self._send(member, kind + body)

    def run(self) -> list[str]:
        """Do all that can be done now; return the sessions merged further since it last did.

        Raises:
            WriterFailed: the journal's disk failed; this node has to end.
            CorruptLog: a copy or the merged log is damaged.
            OSError: the merged log cannot be written; call again when it can.
        """
        self._notice_leader()
        self._report_changes()
        while True:
            self._propose()
            ready = self.engine.ready()
            if ready is None:
                break
            self._post(ready.early)
            if ready.must_persist:
                self._journal.persist(ready)  # a crash here repeats; nobody was told
            self.engine.persisted(ready)
            self._post(ready.messages)
            if ready.snapshot is not None:
                self._restore(ready.snapshot)
            self._committed.extend(map(self._decoded, ready.committed))
            if ready.committed:
                self._take_time(ready.committed[-1].index)
            self._execute()
        self._execute()
        merged, self._untold = self._untold, []
        return merged

    def _take_time(self, committed: int) -> None:
        self._handed = committed
        if self._undecided is not None and self._undecided[0].index <= committed:
            self.agreed_ns.append(self._now_ns() - self._proposed_ns)

    def plan_snapshot(self) -> SnapshotPlan | None:
        """Return the state to snapshot, if anything was executed since the last one."""
        executor, ledger = self.executor, self.executor.ledger
        busy = self.suspended or executor.is_repeating or executor.lacks_log
        if busy or executor.is_half_done or not self._snapshot_index < ledger.index <= self._handed:
            return None
        end = executor.appender.end  # after a roll the ledger's is in the next file
        return SnapshotPlan(ledger.index, ledger.encode(), end)

    def save_snapshot(self, plan: SnapshotPlan) -> None:
        """Save a planned snapshot, the merged log being durable up to its end."""
        snapshot = self.engine.compact(plan.index, plan.data)
        if snapshot is not None:
            self._journal.save_snapshot(snapshot)
        self._snapshot_index = plan.index

    def _restore(self, snapshot: Snapshot) -> None:
        """Go on from the leader's state: the commands before it are not to be had any more."""
        if snapshot.index > self.executor.ledger.index:  # else another has told of a later one
            self.executor.restore(decode_ledger(snapshot.data))
        self._untold += self.executor.ledger.sessions
        self._committed.clear()
        self._digests.clear()
        self._handed = snapshot.index
        self._snapshot_index = snapshot.index - 1  # a plan of it says when the log is here as well

    def _ask_for_state(self) -> None:
        """Ask every member, since the one that can tell may not be the one that leads."""
        if self._committed and self.executor.is_stranded:
            for member in self.holdings.others:
                self._send(member, _WANT_STATE)

    def _tell_state(self, member: str) -> None:
        """Tell what was executed here: it was decided, and is the same on every node."""
        executor = self.executor
        if not (self.suspended or executor.lacks_log or executor.is_half_done):
            self._send(member, _STATE + executor.ledger.encode())

    def _adopt(self, data: bytes) -> None:
        """Go on from another's state, since what led to it is not to be had any more."""
        try:
            ledger = decode_ledger(data)
        except Misuse as error:
            raise PeerError(f"a state that cannot be read: {error}") from None
        if self.executor.is_stranded and ledger.index > self.executor.ledger.index:
            self.executor.restore(ledger)
            self._adopted = ledger.index
            self._digests.clear()

    def _remember_digest(self) -> None:
        ledger = self.executor.ledger
        self._digests[ledger.index] = (ledger.end, ledger.digest)
        if len(self._digests) > _DIGESTS_KEPT:
            self._digests.popitem(last=False)

    def _tell_digest(self) -> None:
        ledger = self.executor.ledger
        if self.executor.is_half_done:
            return
        body = _DIGEST_BODY.pack(ledger.index, ledger.end, ledger.digest)
        for member in self.holdings.others:
            self._send(member, _DIGEST + body)

    def _compare_digest(self, sender: str, index: int, end: int, digest: bytes) -> None:
        ours = self._digests.get(index)
        if sender == self.engine.leader and ours is not None and ours != (end, digest):
            raise Diverged(
                self.executor.appender.directory,
                min(ours[0], Position(end)),
                f"the merged log differs from that of {sender} at or before this place",
            )

    def _hand_over_if_short(self) -> None:
        """Let a member lead that holds what this one cannot plan for want of its bytes."""
        holdings, ledger = self.holdings, self.executor.ledger
        short = [
            session
            for session in self._waiting
            if holdings.agreed(session)
            > max(holdings.own.get(session, START), ledger.merged_to(session))
        ]
        self._short_ticks = self._short_ticks + 1 if short else 0
        if self._short_ticks < self._hand_over_ticks:
            return
        self._short_ticks = 0
        self._hand_over(
            max(holdings.others, key=lambda each: holdings.of(each).get(short[0], START))
        )

    def _hand_over(self, to: str) -> None:
        with suppress(Refused):  # it does not lead any more, or is handing over already
            self.engine.transfer(to)

    def _notice_leader(self) -> None:
        if self.engine.leader == self._leader:
            return
        self._leader = self.engine.leader
        self._undecided = None  # whatever became of it, its slices are checked when executed
        if self.engine.leads:
            self._waiting.update(dict.fromkeys(self.holdings.own))
        else:
            self._orders.clear()
        self._report_all()

    def _report_changes(self) -> None:
        is_led = self._leader and self._leader != self.name
        if is_led and (report := self.holdings.changes()) is not None:
            self._send(self._leader, _HOLDINGS + report)

    def _report_all(self) -> None:
        report = _HOLDINGS + self.holdings.whole()
        for member in self.holdings.others:
            self._send(member, report)

    def _post(self, messages: Sequence[PeerMessage]) -> None:
        for message in messages:
            self._send(message.to, _CONSENSUS + message.data)

    def _propose(self) -> None:
        """Propose what a majority holds; one instruction under way carries all that came since."""
        if self._undecided is not None or not self.engine.leads or self._committed:
            return
        instruction = self._next_instruction()
        if instruction is None:
            return
        with suppress(Refused):  # leadership moved or is moving; the next plans the same bytes
            entry = self.engine.propose(encode_instruction(instruction))
            self._undecided, self._proposed_ns = (entry, instruction), self._now_ns()

    def _next_instruction(self) -> Instruction | None:
        """Take what was ordered and what is to be merged in turn, so that neither delays."""
        merge = None if self._orders and not self._order_was_last else self._next_merge()
        self._order_was_last = merge is None and bool(self._orders)
        return self._orders.popleft() if self._order_was_last else merge

    def _next_merge(self) -> Merge | None:
        ledger = self.executor.ledger
        agreed = {session: self.holdings.agreed(session) for session in self._waiting}
        agreed = {each: end for each, end in agreed.items() if end > ledger.merged_to(each)}
        self._waiting = dict.fromkeys(agreed)
        own = self.holdings.own  # a leader plans what it holds itself, since it reads the headers
        mine = {each: min(end, own[each]) for each, end in agreed.items() if each in own}
        return self._planner.plan(ledger, mine, self._now_ns()) if mine else None

    def _execute(self) -> None:
        """Execute what was committed, in order, as far as the bytes are here."""
        known = len(self._untold)
        while self._can_execute():
            entry, instruction = self._committed[0]
            if entry.index > self._adopted and instruction is not None:
                self.executor.execute(entry.index, entry.term, instruction)
            elif entry.index > self._adopted:
                self.executor.ledger.index = entry.index
            if isinstance(instruction, Merge):
                self._untold += [each.session for each in instruction.slices]
            self._committed.popleft()
            self._remember_digest()
            if self._undecided is not None and self._undecided[0].index <= entry.index:
                self._undecided = None
        if len(self._untold) > known:
            self._merged()

    def _can_execute(self) -> bool:
        if self.suspended or not self._committed or self.executor.lacks_log:
            return False
        return not self.executor.is_stranded and not self._lack(self._committed[0])

    def _decoded(self, entry: Entry) -> Committed:
        if self._undecided is not None and self._undecided[0] == entry:
            return Committed(*self._undecided)
        is_command = entry.kind is EntryKind.COMMAND
        return Committed(entry, decode_instruction(entry.command) if is_command else None)

    def _lack(self, committed: Committed) -> tuple[str, Position] | None:
        if not isinstance(committed.instruction, Merge) or self.executor.lacks_log:
            return None
        each = self.executor.lacking(committed.instruction, self.holdings.own)
        return None if each is None else (each.session, each.end)
