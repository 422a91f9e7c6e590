"""Heap: returns freed memory to the operating system."""

import ctypes
import time
from typing import Final

_ARENA_MAX: Final = -8  # of mallopt(3)
_LOOK_S: Final = 2.0
_IDLE: Final = 0.2  # share of a core; a process that uses less is idle
_WORK_S: Final = 0.5  # processor time; less work frees too little to trim


class Heap:
    """One heap for all threads of a process, trimmed when work has ended.

    By default the C library gives each thread a heap of its own, which keeps its peak size: 20 MB
    for a node that holds 10,000 sessions. Python threads rarely allocate at the same time, so a
    shared heap costs nothing. Create a `Heap` in the main thread before other threads start, so
    that they share the heap. Does nothing if the C library has no `mallopt` or `malloc_trim`.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        setting = getattr(library, "mallopt", None)
        if setting is not None:
            setting(_ARENA_MAX, 1)
        self._trimmed_s = self._seen_s = 0.0  # processor time, in seconds
        self._next_s = 0.0

    def turn(self) -> None:
        """Trim the heap if the process has worked since the last trim and is idle now."""
        now_s = time.monotonic()
        if now_s < self._next_s or self._trim is None:
            return
        worked_s = time.process_time()
        if worked_s - self._seen_s < _IDLE * _LOOK_S and worked_s - self._trimmed_s > _WORK_S:
            self._trim(0)
            self._trimmed_s = worked_s
        self._seen_s, self._next_s = worked_s, now_s + _LOOK_S
