"""LoopedConnection: a connection that an event loop serves once both sides have greeted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from replicator.host import Host
from replicator.serve.pull_connection import PullConnection
from replicator.sink.connection import SinkConnection
from replicator.wire.link import Link
from rt.log.notify.watch import Wake


class Hold(NamedTuple):
    """Hold: how long to pause a connection.

    Attributes:
        seconds: how long; 0 for not at all.
        is_over: whether the pause ends early, because the quota was changed.
    """

    seconds: float
    is_over: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True, eq=False)
class LoopedConnection:
    """What an event loop needs of a connection; exactly one of `fills` and `feeds` is given.

    Attributes:
        link: it sends without waiting for the peer.
        wake: set by any thread when the connection has something to do.
        fills: receives what a pusher sends.
        feeds: sends the merged log to a puller.
        held: charges for traffic; to be called when `link.is_metered`.
        is_ended: whether this side has ended it; any thread may ask.
        left: records that the client has left. Called once.
        about: the node that serves the connection.
    """

    link: Link
    wake: Wake
    fills: SinkConnection | None
    feeds: PullConnection | None
    held: Callable[[], Hold]
    is_ended: Callable[[], bool]
    left: Callable[[], None]
    about: Host

    def close(self) -> None:
        """Release the logs; what was appended right before the end is settled."""
        if self.fills is not None:
            self.fills.close()
        if self.feeds is not None:
            self.feeds.close()


Over = Callable[[Exception | None], None]  # takes why a connection has ended; may wait for the peer
