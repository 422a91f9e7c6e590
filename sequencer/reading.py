"""LatestReads: reads that a majority must confirm before this node may answer them."""

from collections.abc import Iterable
from itertools import count

from sequencer.raft.consensus import Read
from sequencer.raft.engine import Raft


class LatestReads:
    """LatestReads: has a majority confirm the reads of other threads; a ticket identifies each.

    A leader that is cut off may not notice for an election timeout, and another leader may decide
    something meanwhile. So after a read is requested, a majority confirms that the leader still
    leads. Then any node that has executed up to the leader's commit index may answer the read. A
    follower asks the leader for this index and reads its own state.

    Threads: The thread that drives the engine calls `ask` and `record`, and sets the index of a
        read; any thread may call the rest. Each change of `_tickets` and `waiting` is a single
        operation on one ticket, and only one reader uses a ticket.

    Attributes:
        waiting: the reads that may be waiting for other nodes, by ticket.
    """

    def __init__(self, engine: Raft, first: int = 0) -> None:
        """Start without reads.

        Args:
            engine: the consensus engine, which confirms reads.
            first: tickets count up from this number. It must be far from the tickets of this node's
                other starts, since a leader may still answer a request from an earlier start.
        """
        self._engine = engine
        self._tickets = count(first + 1)
        self.waiting: dict[int, _Waiting] = {}

    def open(self) -> int:
        """Return the ticket of a new read; the caller must `forget` it in any case."""
        ticket = next(self._tickets)
        self.waiting[ticket] = _Waiting()
        return ticket

    def ask(self, ticket: int) -> None:
        """Ask for a read to be confirmed, if a leader is known; a forgotten read is ignored.

        Raises:
            Refused: `busy`, too many reads are waiting.
        """
        if self._engine.leader and ticket in self.waiting:
            self._engine.read_index(ticket)

    def record(self, reads: Iterable[Read]) -> None:
        """Record the confirmed reads of a `Ready`."""
        for read in reads:
            if (waiting := self.waiting.get(read.ticket)) is not None:
                waiting.index = read.index

    def is_answered(self, ticket: int, executed: int) -> bool:
        """Whether a node that has executed up to `executed` may answer this read."""
        waiting = self.waiting.get(ticket)
        index = None if waiting is None else waiting.index
        return index is not None and index <= executed

    def forget(self, ticket: int) -> None:
        """Forget a read; a later confirmation is ignored."""
        self.waiting.pop(ticket, None)


class _Waiting:
    """A read, and the index to execute before answering it; None until a majority confirmed it."""

    __slots__ = ("index",)

    def __init__(self) -> None:
        self.index: int | None = None
