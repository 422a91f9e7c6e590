"""Pace: how long small news are gathered before they are sent, by how long the last took."""

import time
from typing import Final

from rt.position import Position

_GAP_MAX_S: Final = 0.004
_WEIGHT: Final = 0.125  # of one measurement
_LOST_S: Final = 1.0  # what takes longer is not waited for: it may never be merged


class GatherWindow:
    """Measures the time from sending to merged, and makes a gap between sendings of it.

    A message after a pause is sent at once. Where messages come faster than they are merged each
    would cost all nodes as much as a hundred do, and wait for those before it all the same.
    """

    def __init__(self, nodes: int) -> None:
        """Gather for so many nodes; for one alone nothing is gathered."""
        self._gathers = nodes > 1
        self._merged_in_s = 0.0
        self._probe: tuple[str, Position, float] | None = None  # what is being measured

    @property
    def gap_s(self) -> float:
        """How far apart sendings shall be."""
        return min(self._merged_in_s, _GAP_MAX_S) if self._gathers else 0.0

    def sent(self, session: str, end: Position) -> None:
        """A session was sent up to `end`."""
        now_s, probe = time.monotonic(), self._probe  # read once: another thread ends it
        if probe is None or now_s - probe[2] > _LOST_S:
            self._probe = (session, end, now_s)

    def merged(self, session: str, end: Position) -> None:
        """A node has merged a session up to `end`."""
        probe = self._probe
        if probe is not None and probe[0] == session and probe[1] <= end:
            self._probe = None
            self._merged_in_s += _WEIGHT * (time.monotonic() - probe[2] - self._merged_in_s)
