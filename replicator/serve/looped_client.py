"""LoopedClient: a pusher or puller whose connection an event loop serves."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from replicator.serve.pull_connection import PullConnection
from replicator.sink.connection import SinkConnection
from replicator.wire.link import Link
from rt.errors import RtError
from rt.limits import KIB
from rt.log.notify.watch import Wake
from rt.net.loop.deadlines import NEVER_S
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.poller import READABLE, WRITABLE
from rt.net.loop.turns import ContextParty

_log: Final = logging.getLogger(__name__)
_LOOK_S: Final = 0.5  # between two looks at a connection that is held back
_PAUSE_LEAST_S: Final = 0.001  # so that nothing that is due keeps the loop from waiting
# Smaller amounts are charged later, together with what follows, since charging costs six Python
# calls. At the smallest budget, 1 MiB a second, these bytes are worth 16 ms.
_METERED_BYTES: Final = 16 * KIB
_METERED_MESSAGES: Final = 8


class Hold(NamedTuple):
    """Hold: how long to pause a connection.

    Attributes:
        seconds: how long; 0 for not at all.
        is_over: returns True to end the pause early, when the peer's quota was changed.
    """

    seconds: float
    is_over: Callable[[], bool] = lambda: False


class Endable(Protocol):
    """Endable: the connection as its server knows it."""

    is_ended: bool  # whether this side has ended it; any thread may set it, and then the wake


@dataclass(frozen=True, slots=True, eq=False)
class LoopedConnection:
    """What an event loop needs to serve a connection: either `fills` or `feeds`, never both.

    Attributes:
        link: sends without blocking.
        wake: set by any thread when the connection has something to do.
        fills: receives what a pusher sends.
        feeds: sends the merged log to a puller.
        held: charges for the traffic and returns the pause; called when enough traffic has passed.
        known: the server's record of the connection, which says whether this side has ended it.
        left: records that the client has left. Called once.
    """

    link: Link
    wake: Wake
    fills: SinkConnection | None
    feeds: PullConnection | None
    held: Callable[[], Hold]
    known: Endable
    left: Callable[[], None]

    def close(self) -> None:
        """Release the logs, after the host has settled what was appended last."""
        if self.fills is not None:
            self.fills.close()
        if self.feeds is not None:
            self.feeds.close()


Over = Callable[[Exception | None], None]  # takes why a connection has ended; may wait for the peer


class LoopedClient(ContextParty):
    """Serves one client in the turns of a loop: receives what it sends, and sends it new bytes.

    Work that may wait for a disk is done by the pool: opening a copy, ending a file, and reading
    old parts of a log for a puller. Until it is done, the socket is not watched.

    Threads: `begin` may be called by any thread, and makes the loop call the rest.
    """

    def __init__(self, loop: EventLoop, served: LoopedConnection, over: Over) -> None:
        """Take over a connection; call `begin` to start.

        When the connection has ended, a separate thread calls `over` with the error, or with None.
        """
        super().__init__()
        self._loop = loop
        self._served = served
        self._over = over
        self._link = served.link
        self._fd = served.link.fileno()
        self._watched = 0  # which events of the socket
        self._is_away = self._is_over = False
        self._has_closed = False  # set by the thread that ends the connection
        self._is_woken = False  # woken while another thread did its work
        self._woken = _Woken(served.wake, self)
        self._pause_s = 0.0  # what the last turn of a puller said
        self._hold: Hold | None = None
        self._held_to_s = 0.0
        self._due_s = NEVER_S  # deadline of the next turn while the connection rests

    def begin(self) -> None:
        """Have the loop serve the connection; if the loop has ended, end the connection at once."""
        if not self._loop.post(self.acting(self._begin)):
            self._close(None)

    def _fail(self, error: Exception) -> None:
        _log.error("internal error while a connection was served; it ends", exc_info=error)
        self._end(None)

    def _begin(self) -> None:
        self._loop.watch(self._served.wake.fileno(), self._woken)
        self._loop.mark(self)

    def _turn(self) -> None:
        if self._is_away or self._is_over:
            self._is_woken = True
            return
        served = self._served
        if served.known.is_ended:
            self._end(None)
            return
        try:
            if self._hold is not None and self._is_held(self._hold):
                self._beat()
                return
            # A call before the deadline means that something has arrived. If something arrives just
            # at the deadline, there is a second call.
            if self._loop.clock() < self._due_s:
                self._link.has_more = True
            if (fills := served.fills) is not None:
                fills.turn()
                if fills.aside is not None:
                    self._go_away(fills.take_aside)
                else:
                    self._rest(fills.pause_s, is_reading=True)
            elif served.feeds is not None:
                self._serve(served.feeds)
        except (RtError, OSError) as error:
            self._end(error)

    def _serve(self, feeds: PullConnection) -> None:
        link = self._link
        if link.has_left:
            feeds.beat()  # sends what is left
        if link.has_left:
            self._rest(_LOOK_S, is_reading=False)  # the peer must take this before more is sent
        elif feeds.is_catching_up:
            self._go_away(self._feed)
        else:
            self._feed()
            self._fed()

    def _feed(self) -> None:
        if self._served.feeds is not None:
            self._pause_s = self._served.feeds.turn()

    def _fed(self) -> None:
        if self._served.feeds is not None and self._served.feeds.is_over:
            self._end(None)
            return
        if self._link.has_left:
            self._rest(_LOOK_S, is_reading=False)
            return
        if not self._pause_s:
            self._loop.mark(self)
        self._rest(self._pause_s, is_reading=True)

    def _rest(self, pause_s: float, *, is_reading: bool) -> None:
        """Wait until data arrives, the socket has room to send, or the time is up."""
        link, passed = self._link, self._link.passed
        if passed.bytes >= _METERED_BYTES or passed.messages >= _METERED_MESSAGES:
            self._hold_back(self._served.held())
        if self._hold is not None:
            return
        if is_reading and link.has_more:
            self._loop.mark(self)
        events = READABLE * is_reading | WRITABLE * link.has_left
        if events != self._watched:
            self._watch(events)
        now_s = self._loop.clock()
        self._due_s = max(now_s + _PAUSE_LEAST_S, min(now_s + pause_s, link.beat_by_s))
        self._loop.deadlines.set(self, self._due_s)

    # A connection that has had its share

    def _hold_back(self, hold: Hold) -> None:
        if hold.seconds > 0:
            self._hold, self._due_s = hold, NEVER_S
            self._held_to_s = self._loop.clock() + hold.seconds
            self._watch(0)
            self._look_later()

    def _is_held(self, hold: Hold) -> bool:
        if self._loop.clock() >= self._held_to_s or hold.is_over():
            self._hold = None
        return self._hold is not None

    def _beat(self) -> None:
        if self._served.fills is not None:
            self._served.fills.beat()
        elif self._served.feeds is not None:
            self._served.feeds.beat()
        self._look_later()

    def _look_later(self) -> None:
        now_s = self._loop.clock()
        self._loop.deadlines.set(self, min(self._held_to_s, now_s + _LOOK_S))

    # A turn that waits for the disk

    def _go_away(self, work: Callable[[], None]) -> None:
        self._is_away, self._is_woken = True, False
        self._lend()
        self._watch(0)
        self._due_s = NEVER_S
        self._loop.deadlines.clear(self)
        self._loop.away(lambda: None if self._is_over else work(), self._back)

    def _lend(self) -> None:
        for each in (self._served.fills, self._served.feeds):
            if each is not None:
                each.is_lent = True

    def _back(self, error: Exception | None) -> None:
        self.acting(self._come_back, error)()

    def _come_back(self, error: Exception | None) -> None:
        self._is_away = False
        if error is not None and not isinstance(error, RtError | OSError):
            self._fail(error)
        elif error is not None:
            self._end(error)
        else:
            if self._served.feeds is not None:
                self._fed()
            else:
                self._hold_back(self._served.held())  # such turns may follow without a rest
            if self._hold is None and (self._served.feeds is None or self._is_woken):
                self._loop.mark(self)  # not here, where an error would end the loop

    def _watch(self, events: int) -> None:
        """Watch the socket for these events; with none, do not even notice that it is closed."""
        if events == self._watched:
            return
        self._watched = events
        if events:
            self._loop.watch(self._fd, self, events)
        else:
            self._loop.ignore(self._fd)

    def _end(self, error: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._lend()
        self._watch(0)
        self._loop.ignore(self._served.wake.fileno())
        self._loop.forget(self._woken)  # it may be marked in this very turn
        self._loop.forget(self)

        end = partial(self._close, error)

        def back(_error: Exception | None) -> None:
            if not self._has_closed:  # no thread is left: the pool does it, in its turn
                self._loop.queue(end)

        self._loop.ask(end, back)

    def _close(self, error: Exception | None) -> None:
        """Release the logs, then call `over`, which may wait; never in the loop's thread."""
        self._has_closed = True
        try:
            self._served.close()
        finally:
            self._over(error)


class _Woken:
    """The party that the loop calls when any thread has set a connection's wake."""

    is_urgent = False

    def __init__(self, wake: Wake, client: LoopedClient) -> None:
        self._wake = wake
        self._client = client

    def ready(self) -> None:
        """Have the connection take a turn."""
        self._wake.clear()
        self._client.ready()

    def failed(self, error: Exception) -> bool:
        """End the connection because of an error in its turn; see `LoopedClient.failed`."""
        return self._client.failed(error)
