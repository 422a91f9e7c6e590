"""PullConnection: serves the merged log to one connection that pulls it."""

import logging
import time
from collections.abc import Callable
from typing import Final

from replicator.host import Bell, Feed
from replicator.source.channel import SourceChannel
from replicator.source.connection import SourceConnection
from replicator.wire.link import Link
from replicator.wire.messages import PASSING
from rt.amounts import duration_text
from rt.errors import CorruptLog, Refused
from rt.limits import MIB
from rt.log.files.directory import LogDirectory
from rt.log.notify.watch import Wake
from rt.net.loop.turns import LoopTurns
from rt.position import START, Position
from rt.traffic import Traffic

_log: Final = logging.getLogger(__name__)
# Time for a peer to say where its copy ends, after reading the copy. A peer that is silent for 15 s
# counts as dead anyway.
BEGIN_S: Final = 30.0
CATCHING_UP_BYTES: Final = 4 * MIB  # more than a peer that keeps up lacks during a flood
_POLL_S: Final = 1.0  # how often to check the log without the bell


class PullConnection:
    """Sends a merged log to one peer as the log grows.

    A few new bytes are sent by `set` itself, if the loop's own thread calls it and the peer accepts
    them at once. So a lone message need not wait for the connection's next turn.

    Threads: an event loop calls all methods except `set`, which any thread may call. `set` does not
    send while `is_lent` is true: during a turn, and while another thread does a turn or `close`.
    """

    def __init__(
        self,
        link: Link,
        wake: Wake,
        feed: Callable[[Bell], Feed],
        damaged: Callable[[CorruptLog, bool], None],
        traffic: Traffic | None = None,
        *,
        loop: LoopTurns | None = None,
        heard: Callable[[str], None] = lambda _text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve to the peer at the other end of `link` the log of the feed that `feed` returns.

        Both sides must have greeted. `wake` has the loop call `turn`. `loop` calls the methods; if
        it is None, `set` may send in any thread. `damaged` is as in `replicator.host.Host`, `heard`
        as in `SourceConnection`; `traffic` counts what is sent.

        Raises:
            Refused: the host does not serve now.
        """
        self._link = link
        self._wake = wake
        self._damaged = damaged
        self._clock = clock
        self._begin_by_s = float("inf")
        self._loop = loop
        self.is_lent = False
        self._refused: list[Refused] = []
        self._side = SourceConnection(
            link, refused=lambda _channel, why: self._refused.append(why), damaged=self._report,
            traffic=traffic, heard=heard,
        )  # fmt: skip
        self._channel: SourceChannel | None = None
        self._ends = (START, START)  # what was sent and confirmed, once the channel has ended
        self._feed = feed(self)
        self._log = LogDirectory(self._feed.directory, damaged=self._feed.damaged)

    @property
    def position(self) -> Position:
        """The end of what was sent; `START` before that is known. Any thread may ask."""
        channel = self._channel  # read once: the connection's thread may end it
        return self._ends[0] if channel is None else channel.position

    @property
    def acked(self) -> Position:
        """The end that the peer has confirmed; it confirms every second. Any thread may ask."""
        channel = self._channel
        return self._ends[1] if channel is None else channel.acked

    def set(self) -> None:
        """Announce that the log has grown (`replicator.host.Bell`)."""
        channel = self._channel
        if channel is not None and not channel.has_begun:
            return  # it looks when it begins; until then no one is there to send to
        may_send = not self.is_lent and (self._loop is None or self._loop.is_own_thread)
        if channel is None or not may_send or not self._side.send_now(channel):
            self._wake.set()

    @property
    def is_catching_up(self) -> bool:
        """Whether the next turn may wait for the disk, because the peer is far behind."""
        channel = self._channel
        if channel is None or not channel.has_begun:
            return True
        try:
            return self._feed.end() - channel.position > CATCHING_UP_BYTES
        except Refused:
            return False  # the turn learns why

    @property
    def is_over(self) -> bool:
        """Whether the channel has ended."""
        return bool(self._refused)

    def turn(self) -> float:
        """Handle what has arrived and send what is new; return in how many seconds to call again.

        Raises:
            PeerError: the peer broke the protocol, or has gone.
            Refused: the manifest is damaged, or the peer does not say where its copy ends.
        """
        self.is_lent = True
        try:
            self._look()
            self._side.turn()
            return 0.0 if self._side.busy else _POLL_S
        finally:
            self.is_lent = False

    def beat(self) -> None:
        """Send a heartbeat if one is due, between two turns that are far apart.

        Raises:
            PeerError: the peer has gone.
        """
        self._link.beat()

    def close(self) -> None:
        """Release the merged log; report in the program's log why the channel has ended."""
        for why in self._refused:
            level = logging.INFO if why.code in PASSING else logging.WARNING
            _log.log(level, "%s: %s", self._link.name, why)
        self._feed.release()
        self._ends = self.position, self.acked
        self._channel = None
        self._side.close()
        self._log.close()

    def _look(self) -> None:
        """Check the log for growth; open the channel once the log exists."""
        if self._channel is not None:
            self._demand_begun(self._channel)
            self._side.mark(self._channel)
        elif self._is_there():
            self._channel = self._side.open(
                self._log, self._feed.end, is_whole=self._feed.is_whole, recent=self._feed.recent
            )  # fmt: skip
            self._begin_by_s = self._clock() + BEGIN_S

    def _demand_begun(self, channel: SourceChannel) -> None:
        """Refuse a peer that was offered the log and does not say where to begin."""
        if not channel.has_begun and self._clock() > self._begin_by_s:
            words = f"it did not say within {duration_text(BEGIN_S)} where its copy of the log ends"
            raise Refused("protocol", words)

    def _is_there(self) -> bool:
        try:
            self._log.refresh()
        except CorruptLog as error:
            raise Refused("corrupt", str(error)) from error
        return self._log.is_there

    def _report(self, error: CorruptLog) -> None:
        self._damaged(error, error.position.file not in self._log.manifest.rolled)
