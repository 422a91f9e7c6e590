"""Deadlines: a heap of deadlines, one for each name."""

import heapq
from itertools import count
from typing import Final, Generic, TypeVar

Name = TypeVar("Name")
NEVER_S: Final = float("inf")
_SPARE_ENTRIES: Final = 16  # so that a heap of few names is not made again and again


class Deadlines(Generic[Name]):
    """A deadline for each name, which may be moved at any time.

    Usually a deadline is moved further away before it is reached, at every message. So the heap
    keeps the old entry, and the current deadline is looked up when the entry is reached. A
    deadline that is moved nearer gets another entry; when most entries are outdated, the heap is
    rebuilt.

    Example:
        >>> deadlines = Deadlines[str]()
        >>> deadlines.set("beat", 5.0)
        >>> deadlines.set("step", 1.0)
        >>> deadlines.set("beat", 9.0)
        >>> deadlines.pop_due(5.0), deadlines.next_s
        (['step'], 9.0)
    """

    def __init__(self) -> None:
        self._at_s: dict[Name, float] = {}
        self._queued_s: dict[Name, float] = {}  # of the earliest entry of each name in the heap
        self._heap: list[tuple[float, int, Name]] = []
        self._numbers = count()  # of the entries, so that names are not compared

    def __len__(self) -> int:
        return len(self._at_s)

    @property
    def entries(self) -> int:
        """The number of heap entries; at most about twice the most names set at one time."""
        return len(self._heap)

    def set(self, name: Name, at_s: float) -> None:
        """Set the deadline of `name`, replacing an earlier one."""
        self._at_s[name] = at_s
        if at_s < self._queued_s.get(name, NEVER_S):
            self._queue(name, at_s)

    def clear(self, name: Name) -> None:
        """Remove the deadline of `name`."""
        self._at_s.pop(name, None)

    @property
    def next_s(self) -> float:
        """The earliest deadline; infinite if there is none."""
        while self._heap:
            queued_s, _, name = self._heap[0]
            at_s = self._at_s.get(name)
            if at_s == queued_s:
                return queued_s
            self._drop_first()
            if at_s is not None and at_s < self._queued_s.get(name, NEVER_S):
                self._queue(name, at_s)
        return NEVER_S

    def pop_due(self, now_s: float) -> list[Name]:
        """Return the names that are due, the earliest first, and remove their deadlines."""
        due: list[Name] = []
        if not self._heap or self._heap[0][0] > now_s:
            return due  # the usual case; an entry may be early, and never late
        while self.next_s <= now_s:
            _, _, name = self._heap[0]
            self._drop_first()
            del self._at_s[name]
            due.append(name)
        return due

    def _queue(self, name: Name, at_s: float) -> None:
        if len(self._heap) > 2 * len(self._at_s) + _SPARE_ENTRIES:
            self._queued_s = self._at_s.copy()
            self._heap = [(due_s, next(self._numbers), each) for each, due_s in self._at_s.items()]
            heapq.heapify(self._heap)
            return
        self._queued_s[name] = at_s
        heapq.heappush(self._heap, (at_s, next(self._numbers), name))

    def _drop_first(self) -> None:
        queued_s, _, name = heapq.heappop(self._heap)
        if self._queued_s.get(name) == queued_s:
            del self._queued_s[name]
