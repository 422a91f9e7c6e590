"""Relay: pushes a node's copies of sessions to another node that requested them."""

import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from replicator.push.connection import PushConnection
from replicator.source.gather_window import GatherWindow
from replicator.wire.backoff import Complaint
from replicator.wire.dialer import Destination
from replicator.wire.messages import PUSH, Ack
from rt.errors import Refused
from rt.log.files.directory import LogDirectory
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import Contexts
from rt.position import Position

_log: Final = logging.getLogger(__name__)
_POLL_S: Final = 0.02
# A served node stops asking, so keep sending for this long after its last acknowledgement.
_IDLE_S: Final = 10.0
_BUSY_RETRY_S: Final = 0.5  # soon, as the node is ending the connection that fills its copy
_RETRY_S: Final = 5.0  # after any other refusal; requests in between are ignored
_STOP_S: Final = 2.0
_DOUBTFUL: Final = frozenset({"corrupt", "diverged"})  # our own copy may be the damaged one


class HeldCopy(NamedTuple):
    """HeldCopy: a node's copy of a session.

    Attributes:
        directory: the copy's directory.
        durable: returns the end of what may be relayed now; `Refused` if the copy was set aside.
        doubted: called when the copy was found damaged, or differs from the other node's copy.
    """

    directory: str
    durable: Callable[[], Position]
    doubted: Callable[[], None]


class RequestedSessions:
    """RequestedSessions: the sessions that another node requested and this node relays to it.

    Only the durable part of this node's copy of a session is relayed.

    Threads: any thread may call any method; each changes one entry of one dictionary at a time.
    """

    look_s: float | None = _POLL_S  # no notification says that a copy became durable

    def __init__(
        self, copy_of: Callable[[str], HeldCopy | None], clock: Callable[[], float]
    ) -> None:
        """Start without a request; `copy_of` returns the copy of a session, or None."""
        self._copy_of, self._clock = copy_of, clock
        self._needed_s: dict[str, float] = {}  # by session, when it was last needed
        self._not_before_s: dict[str, float] = {}  # by refused session, when it may be requested
        self._copies: dict[str, HeldCopy] = {}  # by opened session

    def request(self, session: str) -> bool:
        """Record a request; if the session was refused a moment ago, ignore it and return False."""
        now_s = self._clock()
        if now_s < self._not_before_s.get(session, 0.0):
            return False
        self._needed_s[session] = now_s
        return True

    def is_wanted(self) -> bool:
        """Whether the other node needs any session."""
        return bool(self.names())

    def names(self) -> list[str]:
        """Return the sessions needed now: those requested or acknowledged in the last 10 s."""
        oldest_s = self._clock() - _IDLE_S
        return [each for each, at_s in self._needed_s.copy().items() if at_s > oldest_s]

    def open(self, session: str) -> tuple[LogDirectory, Callable[[], Position] | None] | None:
        """Return the copy of a session; None if the copy was set aside after the request."""
        copy = self._copy_of(session)
        if copy is None:
            return None
        self._copies[session] = copy
        return LogDirectory(copy.directory), copy.durable

    def answered(self, _node: str, _holder: str) -> None:
        """Do nothing: a relay accepts only the certificate of the node that it dials."""

    def begun(self, serial: int) -> None:
        """Do nothing: a relay keeps no confirmations that could be outdated."""

    def acked(self, session: str, _node: str, _ack: Ack, _log: str) -> bool:
        """Keep relaying a session that the other node accepts; return True, since this is news."""
        self._needed_s[session] = self._clock()
        return True

    def save(self, session: str, *, whole: bool) -> None:
        """Write nothing: the publisher gets its confirmations from the node that it pushes to."""

    def rest(self, session: str) -> None:
        """Do nothing: nothing is open."""

    def refused(self, session: str, why: Refused) -> float:
        """Drop the request for a session; return for how many seconds to ignore repeated requests.

        The other node repeats its request while it lacks the session. If our own copy may be the
        damaged one, report that.
        """
        retry_s = _BUSY_RETRY_S if why.code == "busy" else _RETRY_S
        self._needed_s.pop(session, None)
        self._not_before_s[session] = self._clock() + retry_s
        copy = self._copies.get(session)
        if copy is not None and why.code in _DOUBTFUL:
            copy.doubted()
        return retry_s


class Relay:
    """Keeps a connection to one node while that node lacks sessions; stores nothing.

    Threads: one thread at a time calls `want`, and another one calls `stop`. `stop` sets the
    stopping flag before it reads `_loop`, and `want` sets `_loop` before it reads the flag. So at
    least one of them stops a loop that `want` makes meanwhile.
    """

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        contexts: Contexts,
        stream: str,
        copy_of: Callable[[str], HeldCopy | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; the first `want` dials the node.

        The node's certificate must have the name `name`. `copy_of` returns this node's copy of a
        session, or None. `contexts` are made by `rt.net.tls.client_context`.
        """
        self.name = name
        self._requested = RequestedSessions(copy_of, clock)
        destination = Destination([address], contexts, PUSH, stream, member=name)
        self._connection = PushConnection(destination, self._requested, GatherWindow(1))
        self._complaint = Complaint(_log, f"relay to node {name}")
        self._loop: EventLoop | None = None  # made when something is to be relayed first

    def want(self, session: str) -> None:
        """Push this session to the node; call it repeatedly while the node lacks it."""
        dialer = self._connection.dialer
        is_first = self._loop is None and not dialer.stopping
        if self._requested.request(session):
            if is_first:
                try:
                    loop = self._loop = EventLoop(pool_threads=1)
                except RuntimeError as error:  # the system allows no further thread
                    self._complaint.say(str(error))
                    return
                dialer.start(loop)
                if dialer.stopping:
                    loop.stop()
            dialer.set()

    def stop(self) -> None:
        """End the connection."""
        self._connection.dialer.stop()
        self._connection.dialer.join(_STOP_S)
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop()
