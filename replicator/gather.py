"""GatherWindow: how long small updates are gathered before they are sent."""

import time
from typing import Final

from rt.position import Position

_GAP_MAX_S: Final = 0.004
_WEIGHT: Final = 0.125  # of one measurement in the moving average
_LOST_S: Final = 1.0  # a slower probe is abandoned: its message may never be merged


class GatherWindow:
    """Spaces out small sends by the time that a message takes from being sent to being merged.

    The first message after a pause is sent at once. When messages arrive faster than they are
    merged, sending each one alone would cost every node as much as sending a hundred, and it would
    still wait for those before it.

    Threads: the watcher reads `gap_s`; `sent` and `merged` are called with a connection's turn
    held. `_probe` is replaced as a whole, so each method reads it once; a lost update costs one
    measurement.
    """

    def __init__(self, nodes: int) -> None:
        """Gather for this many nodes; a single node needs no gathering."""
        self._gathers = nodes > 1
        self._merged_in_s = 0.0
        self._probe: tuple[str, Position, float] | None = None  # what is being measured

    @property
    def gap_s(self) -> float:
        """The least time between two sends."""
        return min(self._merged_in_s, _GAP_MAX_S) if self._gathers else 0.0

    def sent(self, session: str, end: Position) -> None:
        """Record that a session was sent up to `end`."""
        now_s, probe = time.monotonic(), self._probe
        if probe is None or now_s - probe[2] > _LOST_S:
            self._probe = (session, end, now_s)

    def merged(self, session: str, end: Position) -> None:
        """Record that a node has merged a session up to `end`."""
        probe = self._probe
        if probe is not None and probe[0] == session and probe[1] <= end:
            self._probe = None
            self._merged_in_s += _WEIGHT * (time.monotonic() - probe[2] - self._merged_in_s)
