"""Heap: gives back to the system what a process has freed."""

import ctypes
import time
from typing import Final

_ARENA_MAX: Final = -8  # of mallopt(3)
_LOOK_S: Final = 2.0
_IDLE: Final = 0.2  # of a core: a process that uses less has time
_WORK_S: Final = 0.5  # of a core; what less work leaves free is little


class Heap:
    """One heap for all threads of a process, trimmed when work has ended.

    By default the C library gives each thread a heap of its own, which keeps the most that was
    ever allocated in it: of a node that holds 10,000 sessions, 20 MB. Threads that run Python wait
    for each other anyway. Only the main thread uses this; before it starts others, so that they
    find the setting made. Where the C library has no such functions, nothing is done.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        setting = getattr(library, "mallopt", None)
        if setting is not None:
            setting(_ARENA_MAX, 1)
        self._trimmed_s = self._seen_s = 0.0  # of processor time
        self._next_s = 0.0

    def turn(self) -> None:
        """Trim the heap if the process has worked since, and is idle now."""
        now_s = time.monotonic()
        if now_s < self._next_s or self._trim is None:
            return
        worked_s = time.process_time()
        if worked_s - self._seen_s < _IDLE * _LOOK_S and worked_s - self._trimmed_s > _WORK_S:
            self._trim(0)
            self._trimmed_s = worked_s
        self._seen_s, self._next_s = worked_s, now_s + _LOOK_S
