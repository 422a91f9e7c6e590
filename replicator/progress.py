"""Progress: how far the sessions of a publisher have come on each node, and on all of them."""

import threading
from dataclasses import dataclass

from replicator.wire import Ack
from rt.log.confirmations import Confirmations, ConfirmationsFile
from rt.position import START, Position


def merged_confirmations(known: Confirmations, ack: Ack) -> Confirmations:
    """Return what is known after one more node's word; nothing goes back.

    >>> from rt.position import Position as P
    >>> ack = Ack(0, P(9), P(8), P(8), P(0), P(0))
    >>> merged_confirmations(Confirmations(), ack).received
    Position('0.0.8')
    """
    newer = ack.merged > known.merged
    return Confirmations(
        received=max(known.received, ack.durable),
        replicated=max(known.replicated, ack.replicated),
        merged=ack.merged if newer else known.merged,
        merged_at=ack.merged_at if newer else known.merged_at,
    )


class SessionProgress:
    """One session: what each node said of it, and the file that tells its publisher."""

    def __init__(self, directory: str) -> None:
        self.durable: dict[str, Position] = {}  # by node
        self.merged: dict[str, Position] = {}  # by node
        self._file = ConfirmationsFile(directory)
        self._known = self._noted = self._file.read()
        self._lock = threading.Lock()

    def take(self, node: str, ack: Ack) -> None:
        """Take an acknowledgement of one node."""
        with self._lock:
            self.durable[node] = max(self.durable.get(node, START), ack.durable)
            self.merged[node] = max(self.merged.get(node, START), ack.merged)
            self._known = merged_confirmations(self._known, ack)

    def note(self) -> None:
        """Write down what has not been told; after an `OSError` it is not, and may be repeated."""
        with self._lock:
            if self._known != self._noted:
                self._file.write(self._known)
                self._noted = self._known

    def released(self, nodes: int) -> Position:
        """Return up to where so many nodes have merged; once is enough for a majority's copies."""
        if nodes <= 1:
            return self._known.merged
        ends = sorted(self.merged.copy().values(), reverse=True)
        return ends[nodes - 1] if len(ends) >= nodes else START


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """One session on its way to one node.

    Attributes:
        session: its name.
        node: `host:port`.
        connected: whether there is a connection that carries it.
        position: up to where it was sent.
        durable: up to where the node has synced it.
        lag_bytes: of the current file, not sent yet.
        error: why it is not sent, "" if it is.
    """

    session: str
    node: str
    connected: bool
    position: Position
    durable: Position
    lag_bytes: int
    error: str
