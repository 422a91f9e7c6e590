"""Execution: executes committed entries in order, each once this node has the bytes it merges."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from rt.errors import Misuse, PeerError
from rt.limits import MIB
from rt.position import Position
from sequencer.execution.copies import Copies
from sequencer.execution.executor import Executor
from sequencer.ledger.digests import Digests
from sequencer.ledger.instruction import Instruction, Merge, Slice, lives_of
from sequencer.ledger.ledger import Ledger, MergedEnds, decode_ledger
from sequencer.planning.holdings import Holdings
from sequencer.raft.consensus import Entry, Snapshot

# Instructions executed per step, in some 20 ms. A node that was away, or has copied the merged log,
# may have hundreds of thousands to execute, and must answer heartbeats meanwhile.
SLICE: Final = 100
SLICE_BYTES: Final = 8 * MIB  # merged per step, in some 20 ms; the step ends at either limit
# Instructions queued while the merged log is copied: at 740 bytes of memory each, 37 MB. Beyond
# this, a node adopts another node's state and drops the instructions that this state includes.
WAITING_MAX: Final = 50_000
WAITING_BYTES_MAX: Final = 64 * MIB  # total size of their commands, limited as well


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """SnapshotPlan: a state to save as a snapshot once the merged log is durable up to `end`.

    A state adopted from another node is saved even before the merged log is complete here, so that
    a restart resumes copying that log. Then `has_log` is false.
    """

    index: int
    data: bytes
    end: Position
    merged: MergedEnds
    has_log: bool = True


class Committed(NamedTuple):
    """Committed: a committed entry and its instruction; None for the engine's own entries."""

    entry: Entry
    instruction: Instruction | None


class Readers(NamedTuple):
    """Readers: the readers of the merged log on this node.

    Attributes:
        notify: call this when the log has grown, so that the readers are served at once.
        are_there: returns whether there are any readers now.
    """

    notify: Callable[[], None]
    are_there: Callable[[], bool]


NO_READERS: Final = Readers(lambda: None, lambda: False)


class Execution:
    """Execution: executes committed entries in order; pauses while the merged log is copied."""

    def __init__(
        self,
        executor: Executor,
        holdings: Holdings,
        readers: Readers = NO_READERS,
    ) -> None:
        """Start with an empty queue.

        Args:
            executor: started from the latest snapshot.
            holdings: how much of each session this node holds.
            readers: readers of the merged log on this node.
        """
        executor.held = holdings.own
        self.executor = executor
        self.copies = Copies(executor, holdings)
        self.digests = Digests()
        self.carried = set[str]()  # the sessions whose bytes the last merge carried
        self.suspended = False  # while the merged log is copied from another node
        self.queue: deque[Committed] = deque()
        self._lacked: Slice | None = None  # of the first entry: the missing slice last found
        self.waiting_max = WAITING_MAX  # entries; with more, another node's state is adopted
        self.done_index = executor.ledger.index  # the last entry that was executed
        self.readers = readers
        self._sessions: list[str] = []  # merged further since the last `take_sessions`
        # One less than the ledger's index, so that this state is saved again after the next sync.
        # Only then is the merged log known to be durable up to that index.
        self.saved_index = executor.ledger.index - 1
        self._committed_index = executor.ledger.index  # the last entry that was queued
        self._adopted_index = 0  # the adopted state includes entries up to this one

    @property
    def missing(self) -> tuple[str, Position] | None:
        """A session whose bytes this node lacks for the next instruction, and the end it needs.

        None if no bytes are missing, or while the merged log itself is incomplete here.
        """
        if not self.queue or self.executor.lacks_log:
            return None
        merge = self.queue[0].instruction
        each = self._lacking(merge) if isinstance(merge, Merge) else None
        return None if each is None else (each.session, each.end)

    @property
    def needs_state(self) -> bool:
        """Whether to adopt another node's state, to continue at all or to shorten the queue."""
        return bool(self.queue) and (self.executor.is_stranded or self._is_overfull)

    @property
    def _is_overfull(self) -> bool:
        if not self.suspended:
            return False
        waiting_bytes = sum(len(each.entry.command) for each in self.queue)
        return len(self.queue) > self.waiting_max or waiting_bytes > WAITING_BYTES_MAX

    @property
    def can_continue(self) -> bool:
        """Whether the next entry can be executed now."""
        if not self.queue or not self._is_ready():
            return False
        merge = self.queue[0].instruction
        if not isinstance(merge, Merge):
            return True
        return self._lacking(merge) is None

    def append(self, committed: Iterable[Committed]) -> None:
        """Queue entries in the order in which they were committed."""
        for each in committed:
            self.queue.append(each)
            self._committed_index = each.entry.index

    def run(self) -> None:
        """Execute queued entries in order, until this node lacks bytes or the step's limit is hit.

        After a disk was slow, executing the whole queue could take longer than an election timeout,
        and the thread cannot answer the other nodes meanwhile.

        Raises:
            OSError, CorruptLog: as for `Executor.execute` and `Executor.check_end`.
        """
        executor = self.executor
        known, left = len(self._sessions), SLICE
        end_bytes = executor.traffic.bytes + SLICE_BYTES
        while left and executor.traffic.bytes < end_bytes and self._is_ready():
            entry, instruction = self.queue[0]
            if isinstance(instruction, Merge) and self._lacking(instruction) is not None:
                executor.check_end(instruction)
                break
            left -= 1
            self._execute(entry, instruction)
            self.queue.popleft()
            self._lacked = None
            self.digests.remember(executor.ledger)
        if len(self._sessions) > known:
            self.readers.notify()

    def take_sessions(self) -> list[str]:
        """Return the sessions that were merged further, or passed a check, since the last call.

        Raises:
            SessionDiverged: as for `Copies.check`.
        """
        copies = self.copies
        if self.executor.logs.records.unchecked:
            copies.check()
        if not (self._sessions or copies.passed):
            return []
        sessions, self._sessions, copies.passed = self._sessions + copies.passed, [], []
        return sessions

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from the leader's snapshot, because the leader lacks entries that it covers."""
        if snapshot.index > self.executor.ledger.index:  # else a later state was adopted already
            self._restore(decode_ledger(snapshot.data))
        self._sessions += self.executor.ledger.sessions
        self.queue.clear()
        self._lacked = None
        self.digests = Digests()
        self.done_index = self._committed_index = snapshot.index
        self.saved_index = snapshot.index - 1  # saved again once the merged log is complete here

    def state(self) -> bytes | None:
        """Return the state for another node to adopt; None if this node cannot give it now.

        It cannot while its merged log is incomplete or an instruction is half executed.
        """
        executor = self.executor
        if self.suspended or executor.lacks_log or executor.is_half_done:
            return None
        return executor.ledger.encode()

    def adopt(self, data: bytes) -> None:
        """Continue from another node's state, if one is still needed and this one is newer.

        Raises:
            PeerError: the bytes are not a state.
        """
        try:
            ledger = decode_ledger(data)
        except Misuse as error:
            raise PeerError(f"unreadable state: {error}") from None
        if not (self.executor.is_stranded or self._is_overfull):
            return
        if ledger.index > self.executor.ledger.index:
            self._restore(ledger)
            self._adopted_index = ledger.index
            self.digests = Digests()
            if self.suspended:
                self._pass_adopted()

    def _pass_adopted(self) -> None:
        """Drop the queued entries that the adopted state includes."""
        while self.queue and self.queue[0].entry.index <= self._adopted_index:
            self.done_index = self.queue.popleft().entry.index
            self._lacked = None
        self._sessions += self.executor.ledger.sessions

    def plan_snapshot(self) -> SnapshotPlan | None:
        """Return the state to snapshot, if anything was executed since the last snapshot."""
        executor, ledger = self.executor, self.executor.ledger
        if self.suspended:
            return self._plan_adopted()
        is_repeating = executor.appender.next_place > ledger.end  # as after a crash
        if is_repeating or executor.lacks_log or executor.is_half_done:
            return None
        if not self.saved_index < ledger.index <= self._committed_index:
            return None
        # This is the appender's end. After a roll, the ledger's end is already in the next file.
        end = executor.appender.end
        return SnapshotPlan(ledger.index, ledger.encode(), end, ledger.merged_ends)

    def _plan_adopted(self) -> SnapshotPlan | None:
        """Return a plan to save an adopted state while the merged log is still being copied.

        None if no state was adopted, if it was already saved, or if this node does not know yet
        that the state's last entry is committed.
        """
        ledger = self.executor.ledger
        is_new = self.saved_index < ledger.index - 1 and ledger.index == self._adopted_index
        if not is_new or ledger.index > self._committed_index:
            return None
        ends = ledger.merged_ends
        return SnapshotPlan(ledger.index, ledger.encode(), ledger.end, ends, has_log=False)

    def saved(self, plan: SnapshotPlan) -> None:
        """Record that a plan was saved; one without the whole log is planned again later."""
        self.saved_index = plan.index if plan.has_log else plan.index - 1

    def _restore(self, ledger: Ledger) -> None:
        self.copies.own(self.executor.ledger.opened)
        self.executor.ledger, self.executor.is_half_done = ledger, False
        self.copies.own(ledger.opened)
        for session in ledger.begun:
            self.copies.drop(session)
        self.executor.logs.records.doubt_all(self.executor.held)

    def _is_ready(self) -> bool:
        if not self.queue or self.suspended:  # the usual case, several times in every step
            return False
        return not (self.executor.lacks_log or self.executor.is_stranded)

    def _execute(self, entry: Entry, instruction: Instruction | None) -> None:
        if entry.index > self._adopted_index:
            if instruction is None:
                self.executor.ledger.index = entry.index
            else:
                self.executor.execute(entry.index, entry.term, instruction)
        if isinstance(instruction, Merge):
            self.carried = set()
            for each in instruction.slices:
                self._sessions.append(each.session)
                if each.carried:
                    self.carried.add(each.session)
            self.done_index = entry.index
            return
        for session in dict.fromkeys(life.session for life in lives_of(instruction)):
            self._sessions.append(session)
            self.copies.own([session])
            begun = self.executor.ledger.begun.get(session)
            if begun is not None and begun[0] == entry.index:
                self.copies.drop(session)
        self.done_index = entry.index

    def _lacking(self, merge: Merge) -> Slice | None:
        """Return a slice of the queue's first merge whose bytes this node lacks, or None.

        A merge may have 4,096 slices, and this is called after every message and sync. So the slice
        that was found last time is tested first, as the only slice of a merge. If it is lacking
        there, it is lacking in the whole merge too. The other slices only put its output further
        towards the end of the merged log, so that the log is less likely to hold it already.
        """
        known, executor = self._lacked, self.executor
        if known is None or executor.lacking(Merge(merge.time_ns, (known,))) is None:
            self._lacked = executor.lacking(merge)
        return self._lacked
