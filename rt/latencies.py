"""Latencies: a histogram of durations, and a running mean."""

import threading
from bisect import bisect_left
from collections import deque
from typing import Final, NamedTuple

_NEW_MAX: Final = 1024  # observations that may wait to be sorted into buckets
# 0.1 ms to 3.28 s. A good disk syncs in less than 1 ms, so short times need several buckets.
BOUNDS_S: Final = tuple(0.0001 * 2**power for power in range(16))
_SHARE: Final = 1 / 8  # of a new duration in a running mean


class RunningMean:
    """RunningMean: the mean duration of recent calls; each new one has a weight of 1/8.

    On shared processors, a call sometimes takes long only because something else is running, and
    the next call is quick again. So one slow call should count little. If all calls take ten times
    a limit, the mean exceeds the limit at the first call; if they take twice the limit, at the
    sixth.

    Attributes:
        mean_s: the mean so far, in seconds.
    """

    __slots__ = ("mean_s",)

    def __init__(self) -> None:
        self.mean_s = 0.0

    def observe(self, seconds: float) -> None:
        """Record one duration."""
        self.mean_s += (seconds - self.mean_s) * _SHARE


class LatencyCounts(NamedTuple):
    """The observations so far.

    Attributes:
        counts: number of observations in each bucket; the last one has no upper bound.
        sum_s: sum of all observations.
    """

    counts: tuple[int, ...]
    sum_s: float

    @property
    def total(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def joined(self, other: "LatencyCounts") -> "LatencyCounts":
        """Return the counts of both histograms together."""
        counts = map(sum, zip(self.counts, other.counts, strict=True))
        return LatencyCounts(tuple(counts), self.sum_s + other.sum_s)


class Latencies:
    """A histogram of durations; an observation takes a tenth of a microsecond.

    Threads: any thread may call any method. Threads append to `_new` without a lock; `_lock` guards
    the sorting of `_new` into `_counts` and `_sum_s`.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0
        self._new: deque[float] = deque()  # not yet sorted into buckets
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Record one duration; a negative one, from a clock that was set back, counts as 0."""
        self._new.append(seconds)
        if len(self._new) >= _NEW_MAX:
            self.counted()

    def counted(self) -> LatencyCounts:
        """Return the observations so far."""
        with self._lock:
            for _ in range(len(self._new)):  # no other code removes items
                seconds = max(0.0, self._new.popleft())
                self._counts[bisect_left(BOUNDS_S, seconds)] += 1
                self._sum_s += seconds
            return LatencyCounts(tuple(self._counts), self._sum_s)
