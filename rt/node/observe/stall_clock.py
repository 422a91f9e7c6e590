"""Stalls: how long work has waited, and whether anything moves meanwhile."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

STALLED_S: Final = 10.0


class HopProgress(NamedTuple):
    """How far one hop has come with one thing.

    Attributes:
        reached: anything that changes when the hop makes progress.
        waits: whether there is work left for it.
    """

    reached: object
    waits: bool


class Waits:
    """Measures how long the oldest work of each thing has waited; time is an argument.

    >>> waits = Waits()
    >>> [waits.look("jfk", reached=8, end=end, now_s=now_s) for now_s, end in ((0, 9), (3, 12))]
    [0.0, 3.0]
    """

    def __init__(self) -> None:
        self._marks: dict[str, tuple[int, float]] = {}  # an end that is awaited, since when

    def look(self, name: str, *, reached: int, end: int, now_s: float) -> float:
        """Return how long ago there was more than `reached`; 0 if there is no more now.

        Args:
            name: of the thing.
            reached: how far it has come; more than before, or as much.
            end: how far it has to come.
            now_s: by a clock that only goes forward.
        """
        mark, since_s = self._marks.get(name, (reached, now_s))
        if reached >= mark:
            since_s = now_s
            self._marks[name] = (end, now_s)
        return now_s - since_s if reached < end else 0.0

    def keep(self, names: Collection[str]) -> None:
        """Forget all things but these."""
        self._marks = {name: mark for name, mark in self._marks.items() if name in names}


class Stalls:
    """Notices hops that have work and do not move; time is an argument.

    >>> stalls = Stalls(stalled_s=10)
    >>> [stalls.look(now_s, {"jfk": HopProgress(8, waits=True)}) for now_s in (0, 9, 10)]
    [{}, {}, {'jfk': 10}]
    """

    def __init__(self, stalled_s: float = STALLED_S) -> None:
        """Call something stalled after so many seconds without progress."""
        self._stalled_s = stalled_s
        self._since: dict[str, tuple[object, float]] = {}  # what was reached, and since when

    def look(self, now_s: float, progress: Mapping[str, HopProgress]) -> dict[str, float]:
        """Return for each stalled thing how many seconds ago it last moved.

        Args:
            now_s: by a clock that only goes forward.
            progress: of everything there is now, by name; what is not in it is forgotten.
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
            if now_s - began_s >= self._stalled_s
        }
