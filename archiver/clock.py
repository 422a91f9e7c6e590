"""Clock: the time that retention uses, which a single wrong clock cannot change."""

from collections.abc import Sequence
from typing import Final

JUMP_NS: Final = 60_000_000_000  # more than any step of a well-kept clock
HOLD_NS: Final = 3600 * 1_000_000_000  # enough for an operator to see a log line


def agreed_ns(clocks: Sequence[int]) -> int:
    """Return the median of the clocks; if their number is even, the lower of the middle two.

    >>> agreed_ns([7, 1_000_000, 5]), agreed_ns([3, 9])
    (7, 3)
    """
    return sorted(clocks)[(len(clocks) - 1) // 2]


class SteadyClock:
    """Follows a clock, but accepts a jump into the future only after an hour.

    Files archived because of such a jump are lost for ever, while waiting an hour costs little. A
    jump into the past is accepted at once, since it only makes files younger.
    """

    def __init__(self) -> None:
        self._wall_ns = 0
        self._monotonic_ns = 0
        self._jumped_at_ns: int | None = None

    @property
    def is_holding(self) -> bool:
        """Whether the clock has jumped and the jump is not accepted yet."""
        return self._jumped_at_ns is not None

    @property
    def is_set(self) -> bool:
        """Whether `now_ns` was called yet; before that, there is no time to use."""
        return bool(self._wall_ns)

    def at(self, monotonic_ns: int) -> int:
        """Return the time to use at a `monotonic_ns` after the last `now_ns`, by that clock alone.

        >>> clock = SteadyClock()
        >>> clock.now_ns(wall_ns=1_000, monotonic_ns=5), clock.at(monotonic_ns=25)
        (1000, 1020)
        """
        return self._wall_ns + monotonic_ns - self._monotonic_ns

    def now_ns(self, wall_ns: int, monotonic_ns: int) -> int:
        """Return the time to use: the clock's, except that a jump ahead is held back for an hour.

        Args:
            wall_ns: the clock to follow.
            monotonic_ns: a clock that cannot be set.
        """
        expected = self.at(monotonic_ns)
        if not self._wall_ns or wall_ns - expected <= JUMP_NS:
            self._jumped_at_ns = None
            self._wall_ns = wall_ns
        else:
            if self._jumped_at_ns is None:
                self._jumped_at_ns = monotonic_ns
            is_old = monotonic_ns - self._jumped_at_ns >= HOLD_NS
            self._jumped_at_ns = None if is_old else self._jumped_at_ns
            self._wall_ns = wall_ns if is_old else expected
        self._monotonic_ns = monotonic_ns
        return self._wall_ns
