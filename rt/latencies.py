"""Latencies: how long something took, counted in buckets."""

import threading
from bisect import bisect_left
from collections import deque
from typing import Final, NamedTuple

_NEW_MAX: Final = 1024  # observations that wait to be sorted into buckets
# 0.1 ms to 3.28 s. A sync on a good disk takes less than 1 ms, and must not vanish in one bucket.
BOUNDS_S: Final = tuple(0.0001 * 2**power for power in range(16))


class LatencyCounts(NamedTuple):
    """What was observed so far.

    Attributes:
        counts: how many observations each bucket holds; the last one has no upper bound.
        sum_s: all of them together.
    """

    counts: tuple[int, ...]
    sum_s: float

    @property
    def total(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def joined(self, other: "LatencyCounts") -> "LatencyCounts":
        """Return what two observed together."""
        counts = map(sum, zip(self.counts, other.counts, strict=True))
        return LatencyCounts(tuple(counts), self.sum_s + other.sum_s)


class Latencies:
    """A histogram; an observation takes a tenth of a microsecond.

    Threads: any thread may call any method. `_new` is appended to without a lock; `_lock` guards
    sorting it into `_counts` and `_sum_s`.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0
        self._new: deque[float] = deque()  # not sorted into buckets yet
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count one observation; a clock that was set back makes it 0."""
        self._new.append(seconds)
        if len(self._new) >= _NEW_MAX:
            self.counted()

    def counted(self) -> LatencyCounts:
        """Return what was observed so far."""
        with self._lock:
            for _ in range(len(self._new)):  # only here they are taken out
                seconds = max(0.0, self._new.popleft())
                self._counts[bisect_left(BOUNDS_S, seconds)] += 1
                self._sum_s += seconds
            return LatencyCounts(tuple(self._counts), self._sum_s)
