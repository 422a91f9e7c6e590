"""Simulated time: a heap of coming events; nothing reads a real clock."""

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Simulated microseconds; events due at the same time run in the order scheduled."""

    __slots__ = ("_count", "_heap", "now_us")

    def __init__(self) -> None:
        self.now_us = 0
        self._count = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay_us: int, act: Callable[..., None], *args: Any) -> None:
        """Call `act` after `delay_us`."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._count, act, args))

    def step(self, count: int) -> None:
        """Run the next `count` events; there is always one."""
        heap, pop = self._heap, heapq.heappop
        for _ in range(count):
            self.now_us, _, act, args = pop(heap)
            act(*args)
