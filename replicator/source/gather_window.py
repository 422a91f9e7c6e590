"""GatherWindow: how long small updates are gathered before they are sent."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from rt.position import Position

_GAP_MAX_S: Final = 0.004
_WEIGHT: Final = 0.125  # of one measurement in the moving average
_LOST_S: Final = 1.0  # an update that takes longer may never be merged
# With so many updates in flight, the next one waits. The nodes agree on one of them, and meanwhile
# receive and sync the other.
_FLIGHTS: Final = 2
_FLIGHTS_MAX: Final = 16  # updates tracked


class _Update(NamedTuple):
    """A small update that was sent and is not known to be merged."""

    session: str
    end: Position
    sent_s: float


class GatherWindow:
    """GatherWindow: spaces out small sends when the nodes cannot keep up.

    While fewer than two updates are in flight, the next one is sent at once. Otherwise the time
    between two sends is the average time in which an update is merged, 4 ms at most. An update that
    is sent earlier would only wait for the updates before it. And a single update costs every node
    as much as a hundred that are sent together.

    Attributes:
        leader: the node that was the first to confirm the last merged update, which is usually the
            leader, since it confirms at once; "" if none has.

    Threads: only the loop uses it.
    """

    def __init__(self, nodes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Gather for this many nodes, by a monotonic clock; a single node needs no gathering."""
        self._gathers, self._clock = nodes > 1, clock
        self.leader = ""
        self._merged_in_s = 0.0
        self._flights: list[_Update] = []  # the oldest first

    def follow(self, nodes: int) -> None:
        """Gather for this many nodes from now on."""
        self._gathers = nodes > 1

    @property
    def keeps_up(self) -> bool:
        """Whether fewer than two updates are on their way, so that the nodes keep up."""
        if len(self._flights) >= _FLIGHTS:
            self._drop_lost()
        return len(self._flights) < _FLIGHTS

    @property
    def gap_s(self) -> float:
        """The minimum time between two sends."""
        if not self._gathers or len(self._flights) < _FLIGHTS or self.keeps_up:
            return 0.0
        return min(self._merged_in_s, _GAP_MAX_S)

    def sent(self, session: str, end: Position) -> None:
        """Record that a session was sent up to `end`, to one of the nodes."""
        flights = self._flights
        if flights and flights[-1].end == end and flights[-1].session == session:
            return  # another connection has sent it
        if len(flights) >= _FLIGHTS_MAX:
            return
        for each in flights:
            if each.end == end and each.session == session:
                return
        flights.append(_Update(session, end, self._clock()))

    def merged(self, session: str, end: Position, node: str) -> None:
        """Record that this node has merged a session up to `end`."""
        if not self._flights:  # another node reported it first
            return
        flying, sent_s = list[_Update](), None
        for each in self._flights:
            if each.session == session and each.end <= end:
                sent_s = each.sent_s
            else:
                flying.append(each)
        if sent_s is not None:
            self._flights, self.leader = flying, node
            self._measure(self._clock() - sent_s)

    def _measure(self, took_s: float) -> None:
        self._merged_in_s += _WEIGHT * (took_s - self._merged_in_s)

    def _drop_lost(self) -> None:
        lost_s = self._clock() - _LOST_S
        while self._flights and self._flights[0].sent_s <= lost_s:
            del self._flights[0]
            self._measure(_LOST_S)
