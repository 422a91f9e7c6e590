"""Proposals: what a leader proposes next, and the outcome of its last proposal."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from rt.errors import Misuse, PeerError, Refused
from rt.latencies import Latencies
from rt.position import START, Position
from sequencer.execution.execution import Committed, Execution
from sequencer.ledger.instruction import (
    Instruction,
    Merge,
    decode_instruction,
    demand_readable,
)
from sequencer.ledger.seal import SEALED_NOTE, may_follow
from sequencer.planning.holdings import Holdings
from sequencer.planning.planner import Planner
from sequencer.planning.session_records import Stuck
from sequencer.planning.waiting import WaitingSessions
from sequencer.raft.consensus import Entry, EntryKind
from sequencer.raft.engine import Raft

_log: Final = logging.getLogger("rt.node")
_TIMES_KEPT: Final = 1000  # for `rt status`


class Proposals:
    """Proposals: makes one proposal at a time; whatever arrives meanwhile goes into the next.

    Orders (instructions that an operator or the archiver asked for) and merges take turns, so that
    neither delays the other.
    """

    def __init__(
        self,
        engine: Raft,
        holdings: Holdings,
        execution: Execution,
        planner: Planner,
        now_ns: Callable[[], int],
    ) -> None:
        """Start with nothing proposed.

        Args:
            engine: takes the proposals.
            holdings: how much of each session every member holds.
            execution: executes entries; the next instruction is planned from the resulting state.
            planner: plans an instruction from what a majority holds.
            now_ns: the clock for merge times.
        """
        self.agreed_ns: deque[int] = deque(maxlen=_TIMES_KEPT)  # ns from proposal to commit
        self.agreement = Latencies()  # all such times
        self.unreadable = 0  # committed entries that could not be decoded, since the start
        self._engine = engine
        self._holdings = holdings
        self._execution = execution
        self._planner = planner
        self._now_ns = now_ns
        self.waiting = WaitingSessions(holdings)
        # Whether a session of which nothing is merged yet may be merged; `SessionWatch` decides.
        self.may_begin: Callable[[str], bool] = lambda _session: True
        # Returns the first instruction of a new cluster; None once an instruction was executed.
        self.founding: Callable[[], Instruction] | None = None
        self.orders: deque[Instruction] = deque()
        self._order_was_last = False
        self.undecided: tuple[Entry, Instruction] | None = None  # proposed, not executed here yet
        self._proposed_ns = 0

    @property
    def has_orders(self) -> bool:
        """Whether any order waits to be proposed, or to be executed here."""
        is_order = self.undecided is not None and not isinstance(self.undecided[1], Merge)
        return bool(self.orders) or is_order

    def is_under_way(self, order: Instruction | None) -> bool:
        """Whether `order` (the same object) still waits to be proposed, or to be executed here."""
        proposed = None if self.undecided is None else self.undecided[1]
        return order is not None and any(each is order for each in (proposed, *self.orders))

    @property
    def carries(self) -> bool:
        """Whether instructions carry small updates, which are then merged before they are synced.

        On a leader, this is so if every member can read such instructions. On a follower, it is so
        if the last merge carried any.
        """
        return (
            self._planner.carrier.is_allowed()
            if self._engine.leads
            else bool(self._execution.carried)
        )

    @property
    def stuck(self) -> Mapping[str, Stuck]:
        """The sessions that this node cannot merge, and why; empty unless this node leads."""
        return self._planner.records.stuck if self._engine.leads else {}

    def order(self, instruction: Instruction, *, first: bool = False) -> None:
        """Queue an instruction to be proposed; `first` puts it before all others.

        In a sealed cluster only the seal can be changed; any other instruction is dropped.

        Raises:
            Refused: this node does not lead.
        """
        if not self._engine.leads:
            leader = self._engine.leader
            raise Refused(
                "not-leader",
                f"{leader} leads the stream; ask it" if leader else "no node leads now",
            )
        if not may_follow(self._execution.executor.ledger.notes, instruction):
            return
        if first:
            self.orders.appendleft(instruction)
        else:
            self.orders.append(instruction)

    def change_leader(self) -> None:
        """Start over, because the leader has changed."""
        self.undecided = None  # if it is committed after all, execution checks its slices
        self._planner.records.stuck.clear()
        if self._engine.leads:
            self._planner.ready_index = self._engine.status().last
            self.waiting.wake()
        else:
            self.orders.clear()

    def propose(self) -> None:
        """Propose the next instruction, if this node leads and nothing is under way."""
        if self.undecided is not None or not self._engine.leads or self._execution.queue:
            return
        if self._execution.done_index < self._planner.ready_index:
            return  # entries from before its election may drop copies that it would plan from
        ledger, exhausted = self._execution.executor.ledger, list[str]()
        if self.founding is not None and ledger.is_new:
            instruction: Instruction | None = self.founding()
        else:  # orders and merges alternate, so that neither delays the other
            merge = None
            if not self.orders or self._order_was_last:
                merge, exhausted = self._next_merge()
            self._order_was_last = merge is None and bool(self.orders)
            instruction = self.orders.popleft() if self._order_was_last else merge
        notes = ledger.notes
        if instruction is None or (SEALED_NOTE in notes and not may_follow(notes, instruction)):
            return
        try:
            command = demand_readable(instruction)
        except Misuse as error:
            _log.error("an instruction is dropped before it is proposed: %s", error)
            return
        if self._put_forward(instruction, command):
            for session in exhausted:  # bytes that come later are noticed when they come
                self.waiting.due.pop(session, None)
        elif self._order_was_last:
            self.orders.appendleft(instruction)  # needed if leadership stays here after all

    def _put_forward(self, instruction: Instruction, command: bytes) -> bool:
        """Propose an instruction; return whether the engine accepted it.

        The engine refuses while leadership moves; the next leader then plans its own instructions.
        """
        try:
            entry = self._engine.propose(command)
        except Refused:
            return False
        self.undecided, self._proposed_ns = (entry, instruction), self._now_ns()
        return True

    def decode(self, entry: Entry) -> Committed:
        """Return a committed entry with its instruction.

        An instruction that this node itself proposed is not decoded again. All nodes execute an
        unreadable entry as a no-op; leaders no longer propose unreadable entries.
        """
        if self.undecided is not None and self.undecided[0] is entry:
            return Committed(*self.undecided)
        if entry.kind is not EntryKind.COMMAND:
            return Committed(entry, None)
        try:
            return Committed(entry, decode_instruction(entry.command))
        except PeerError as error:
            self.unreadable += 1
            words = "entry %d of term %d cannot be read, and is executed as nothing: %s"
            _log.error(words, entry.index, entry.term, error)
            return Committed(entry, None)

    def committed(self, index: int) -> None:
        """Record that everything up to `index` is committed."""
        if self._proposed_ns and self.undecided and self.undecided[0].index <= index:
            self.agreed_ns.append(self._now_ns() - self._proposed_ns)
            self.agreement.observe(self.agreed_ns[-1] / 1e9)
            self._proposed_ns = 0  # the time is counted once, however long the execution takes

    def executed(self, index: int) -> None:
        """Record that everything up to `index` was executed here."""
        if self.founding is not None and not self._execution.executor.ledger.is_new:
            self.founding = None
        if self.undecided is not None and self.undecided[0].index <= index:
            instruction, self.undecided = self.undecided[1], None
            sessions = self._execution.executor.ledger.sessions
            for each in instruction.slices if isinstance(instruction, Merge) else ():
                if sessions.get(each.session, START) < each.end:  # another entry replaced it
                    self.waiting.notice([each.session])

    def short_sessions(self) -> list[str]:
        """Return the sessions of which a majority holds unmerged bytes that this node lacks."""
        short = self._holdings.short(self.waiting.due)
        return [each for each in short if self._holdings.agreed(each) > self.merged_to(each)]

    def merged_to(self, session: str) -> Position:
        """Return the end up to which this node has merged a session."""
        return self._execution.executor.ledger.merged_to(session)

    def place(self, session: str) -> tuple[Position, int]:
        """Return a session's merged end here, and the index of the last entry to drop its copies.

        The index is 0 if no entry did.
        """
        return self.merged_to(session), self._execution.executor.ledger.begun.get(session, (0, ""))[
            0
        ]

    def _next_merge(self) -> tuple[Merge | None, list[str]]:
        """Return the next merge, and the sessions of which it merges everything that is due."""
        ledger, planner, own = self._execution.executor.ledger, self._planner, self._holdings.own
        agreed = dict[str, Position]()
        for session in self.waiting.due:
            agreed[session] = self._holdings.agreed(session)
        carried = planner.carrier.ends(agreed, own, ledger.sessions)
        due, unopened = dict[str, Position](), list[str]()
        for session, held in agreed.items():
            end, merged = carried.get(session, held), ledger.sessions.get(session, START)
            if end > merged:
                due[session] = end
                if not merged and not self.may_begin(session):
                    unopened.append(session)  # it must be opened before its first slice
            elif planner.records.stuck:
                planner.records.stuck.pop(session, None)
        self.waiting.keep([*planner.carrier.left_over, *due])
        if not due:
            return None, []
        # The planner reads headers, so it plans only bytes that are here. Carried bytes always are.
        mine = planner.readable(due, own) if len(carried) < len(due) else due
        for session in unopened:
            mine.pop(session, None)
        merge = planner.plan(ledger, mine, self._now_ns())
        # An idle session is put to rest, unless this node's copy has yet to grow to the due end.
        if planner.idle:
            self.waiting.rest(each for each in planner.idle if mine[each] >= due[each])
        if merge is None:
            return None, []
        return planner.carrier.fill(merge, agreed), _exhausted(merge, due)


def _exhausted(merge: Merge, due: Mapping[str, Position]) -> list[str]:
    found = list[str]()
    for each in merge.slices:
        if each.end >= due[each.session]:
            found.append(each.session)
    return found
