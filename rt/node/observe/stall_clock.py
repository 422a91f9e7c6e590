"""Stalls: how long work has waited, and whether anything moves meanwhile."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

SYNC, MERGE, PULL = "sync", "merge", "pull"  # hops of a node
HOPS: Final = (SYNC, MERGE, PULL)
STALLED_S: Final = 10.0
LIVE_S: Final = 1.0  # between two samples while someone may look at them
QUIET_S: Final = 5.0  # otherwise; enough to notice a stall


class HopProgress(NamedTuple):
    """HopProgress: one hop's progress with one session or puller.

    Attributes:
        reached: any value that changes with progress.
        waits: whether work is left.
    """

    reached: object
    waits: bool


class Waits:
    """Waits: measures how long each item's oldest work has waited; time is an argument.

    >>> waits = Waits()
    >>> [waits.update("jfk", reached=8, end=end, now_s=now_s) for now_s, end in ((0, 9), (3, 12))]
    [0, 3]
    """

    def __init__(self) -> None:
        self._marks: dict[str, tuple[int, float]] = {}  # an awaited end, and since when

    def update(self, name: str, *, reached: int, end: int, now_s: float) -> float:
        """Return how long the work past `reached` has waited, in seconds; 0 if there is none.

        Args:
            name: the item's name.
            reached: how far the item has come; never less than before.
            end: how far the item must come.
            now_s: a monotonic clock, in seconds.
        """
        mark, since_s = self._marks.get(name, (reached, now_s))
        if reached >= mark:
            since_s = now_s
            self._marks[name] = (end, now_s)
        return now_s - since_s if reached < end else 0.0

    def keep(self, names: Collection[str]) -> None:
        """Forget all items but these."""
        self._marks = {name: mark for name, mark in self._marks.items() if name in names}


class Stalls:
    """Stalls: detects hops that have work and do not move; time is an argument.

    >>> stalls = Stalls(stalled_s=10)
    >>> [stalls.update(now_s, {"jfk": HopProgress(8, waits=True)}) for now_s in (0, 9, 10)]
    [{}, {}, {'jfk': 10}]
    """

    def __init__(self, stalled_s: float = STALLED_S) -> None:
        """Set how many seconds without progress count as a stall."""
        self.stalled_s = stalled_s
        self._since: dict[str, tuple[object, float]] = {}  # what was reached, and when

    def update(self, now_s: float, progress: Mapping[str, HopProgress]) -> dict[str, float]:
        """Return how many seconds ago each stalled item last moved, by name.

        Args:
            now_s: a monotonic clock, in seconds.
            progress: the progress of all present items, by name; others are forgotten.
        """
        since: dict[str, tuple[object, float]] = {}
        for name, (reached, waits) in progress.items():
            if waits:
                known = self._since.get(name)
                moved = known is None or known[0] != reached
                since[name] = (reached, now_s) if known is None or moved else known
        self._since = since
        return {
            name: now_s - began_s
            for name, (_, began_s) in since.items()
            if now_s - began_s >= self.stalled_s
        }
