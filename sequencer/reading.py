"""LatestReads: reads that a majority has to confirm before this node may answer them."""

import threading
from collections.abc import Iterable

from sequencer.raft.consensus import Consensus, Read


class LatestReads:
    """Has the reads of other threads confirmed, each by its ticket.

    A leader that is cut off does not know it for an election timeout, and another one may have
    decided something by then. So a majority confirms, after a read was asked for, that the leader
    still leads; what has been executed by that place in the log is then the latest. A follower asks
    the leader for that place, and reads it from its own state.

    Threads:
        _lock: guards `_next` and `_indexes`; held for a look or a change only.
        _engine: only `ask` uses it. The thread that drives the engine calls that, and `take`; any
            thread may call the rest.
    """

    def __init__(self, engine: Consensus, first: int = 0) -> None:
        """Begin without reads.

        Args:
            engine: has them confirmed.
            first: no other start of this node has tickets close to it: a leader may still answer
                what that one asked for.
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
        """Return the ticket of a new read, which has to be forgotten whatever comes of it."""
        with self._lock:
            self._next += 1
            self._indexes[self._next] = None
            return self._next

    def ask(self, ticket: int) -> None:
        """Have a read confirmed, if a leader is known; a read that was forgotten is not asked for.

        Raises:
            Refused: `busy`, too many reads wait already.
        """
        if self._engine.leader and ticket in self._indexes:
            self._engine.read_index(ticket)

    def take(self, reads: Iterable[Read]) -> None:
        """Take what was confirmed, from a `Ready`."""
        for read in reads:
            with self._lock:
                if read.ticket in self._indexes:
                    self._indexes[read.ticket] = read.index

    def is_answered(self, ticket: int, executed: int) -> bool:
        """Whether a node that has executed so much may answer this read."""
        with self._lock:
            index = self._indexes.get(ticket)
        return index is not None and index <= executed

    def forget(self, ticket: int) -> None:
        """Forget a read; what comes of it later is dropped."""
        with self._lock:
            self._indexes.pop(ticket, None)
