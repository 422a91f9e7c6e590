"""LatestReads: reads that a majority must confirm before this node may answer them."""

import threading
from collections.abc import Iterable

from sequencer.raft.consensus import Read
from sequencer.raft.engine import Raft


class LatestReads:
    """LatestReads: has reads of other threads confirmed; a ticket identifies each.

    A leader that is cut off does not notice for an election timeout, and another leader may decide
    something by then. So after a read is requested, a majority confirms that the leader still
    leads; a state that has executed up to the leader's commit index is then the latest. A follower
    asks the leader for that index and reads its own state.

    Threads:
        _lock: guards `_next` and `_indexes`; held only to read or change them.
        _engine: only `ask` uses it. The thread that drives the engine calls `ask` and `take`; any
            thread may call the rest.
    """

    def __init__(self, engine: Raft, first: int = 0) -> None:
        """Start without reads.

        Args:
            engine: has reads confirmed.
            first: the first ticket, far from those of this node's other starts: a leader may still
                answer what an earlier start asked.
        """
        self._engine = engine
        self._lock = threading.Lock()
        self._next = first
        self._indexes: dict[int, int | None] = {}  # by ticket; None until a majority has confirmed

    @property
    def is_waiting(self) -> bool:
        """Whether a read may be waiting for other nodes."""
        return bool(self._indexes)

    def open(self) -> int:
        """Return the ticket of a new read; the caller must `forget` it in any case."""
        with self._lock:
            self._next += 1
            self._indexes[self._next] = None
            return self._next

    def ask(self, ticket: int) -> None:
        """Have a read confirmed if a leader is known; a forgotten read is ignored.

        Raises:
            Refused: `busy`, too many reads are waiting.
        """
        if self._engine.leader and ticket in self._indexes:
            self._engine.read_index(ticket)

    def take(self, reads: Iterable[Read]) -> None:
        """Record the confirmed reads of a `Ready`."""
        for read in reads:
            with self._lock:
                if read.ticket in self._indexes:
                    self._indexes[read.ticket] = read.index

    def is_answered(self, ticket: int, executed: int) -> bool:
        """Whether a node that has executed up to `executed` may answer this read."""
        with self._lock:
            index = self._indexes.get(ticket)
        return index is not None and index <= executed

    def forget(self, ticket: int) -> None:
        """Forget a read; a later confirmation is ignored."""
        with self._lock:
            self._indexes.pop(ticket, None)
