"""MergedGrowth: how fast the merged log grows, and how old its active file is."""

from typing import Final

from rt.position import OFFSET_BITS, START, Position
from sequencer.ledger.ledger import Ledger

_LOOK_S: Final = 0.2
# From a decision to empty files: a turn of retention, the instruction, the next snapshot.
_REACTION_S: Final = 0.3


class MergedGrowth:
    """MergedGrowth: measures the merged log a few times a second, for retention."""

    def __init__(self) -> None:
        self.coming = 0  # bytes expected to be merged while a decision is carried out
        self._looked_s = float("-inf")
        self._bytes = 0  # merged by then
        # the active file, and when it was first seen by the monotonic clock
        self._active: tuple[Position, int] = (START, 0)

    def look(self, ledger: Ledger, now_s: float) -> None:
        """Measure how much was merged since the last measurement, if that is long enough ago."""
        end, passed_s = ledger.end, now_s - self._looked_s
        if passed_s >= _LOOK_S:
            merged = (end >> OFFSET_BITS) * ledger.file_bytes_max + end.offset
            self.coming = int((merged - self._bytes) * _REACTION_S / passed_s)
            self._looked_s, self._bytes = now_s, merged

    def active_age_ns(self, ledger: Ledger, now_ns: int, steady_ns: int) -> int:
        """Return the age of the active file's first message; at least for how long it was seen."""
        if not ledger.active_since_ns:
            return 0
        if self._active[0] != ledger.end.file:
            self._active = (ledger.end.file, steady_ns)
        return max(now_ns - ledger.active_since_ns, steady_ns - self._active[1])
