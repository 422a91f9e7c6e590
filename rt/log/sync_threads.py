"""SyncThreads: the few threads of a process that sync all its sessions, each when it is due."""

import os
import threading
import time
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Protocol

_INFINITE: Final = float("inf")
# For each disk: one commit of a file system serves all syncs that wait for it, so a few at once
# take less time than one after the other; more than this gain nothing.
_THREADS_MAX: Final = 8
# What a thread waits for comes before what has been due for less than this.
_HEAD_START_S: Final = 1.0
_STALE_MAX: Final = 64  # plans that others took the place of, beyond as many as there are sessions


class SyncJob(Protocol):
    """What a session has to do now and then; one thread at a time calls it."""

    def turn(self) -> float | None:
        """Do what is due; return after how many seconds to be called again, None if not at all."""


class SyncThreads:
    """Calls the jobs of the sessions on one disk when they are due.

    A thread for each session would wake twice for each of its syncs. These sleep until the next one
    is due, and a thousand sessions that write in turn wake none. A disk that hangs holds up no
    other disk. The first thread starts with the first session, more as they are needed, and all end
    with the last session.

    Threads:
        `_changed` and `_ended` share a lock, which guards all fields and is not held during a turn.
        Idle threads wait for the first, `leave` for the second. `_heap` may name a job again that
        was planned for earlier since: `_due_s` decides.
    """

    def __init__(self) -> None:
        """Begin without a session, and without a thread."""
        lock = threading.RLock()  # a signal handler may publish, too
        self._changed = threading.Condition(lock)
        self._ended = threading.Condition(lock)
        self._due_s: dict[SyncJob, float | None] = {}  # by job; None if nothing is planned
        self._running: set[SyncJob] = set()
        self._heap: list[tuple[float, int, SyncJob]] = []  # what is planned, the earliest first
        self._order = count()
        self._threads = self._idle = 0
        self._alarm_s = _INFINITE  # until when one of the idle threads waits

    def join(self, job: SyncJob) -> None:
        """Take a job up, with nothing planned; `RuntimeError` if no thread can be started."""
        with self._changed:
            if not self._threads:
                self._start_thread()
            self._due_s[job] = None

    def leave(self, job: SyncJob) -> None:
        """Plan nothing more of a job, and wait for the turn that it may be in."""
        with self._changed:
            self._due_s.pop(job, None)
            if not self._due_s:
                self._changed.notify_all()
            self._ended.wait_for(lambda: job not in self._running)

    def ask(self, job: SyncJob, within_s: float = -_HEAD_START_S) -> None:
        """Have a job called after so many seconds, if not earlier; at once by default."""
        with self._changed:
            self._plan(job, time.monotonic() + within_s)

    def _plan(self, job: SyncJob, due_s: float) -> None:
        planned_s = self._due_s.get(job, -_INFINITE)  # one that has left is not called again
        if planned_s is not None and planned_s <= due_s:
            return
        self._due_s[job] = due_s
        if job not in self._running:  # else it is planned once its turn has ended
            self._push(job, due_s)

    def _push(self, job: SyncJob, due_s: float) -> None:
        if len(self._heap) > _STALE_MAX + 2 * len(self._due_s):
            self._heap = [each for each in self._heap if self._is_planned(each)]
            heapify(self._heap)
        heappush(self._heap, (due_s, next(self._order), job))
        if due_s < self._alarm_s:
            self._call_thread()

    def _call_thread(self) -> None:
        """See to it that a thread waits for what is due first."""
        if self._idle:
            self._changed.notify()
        elif self._threads < _THREADS_MAX:
            with suppress(RuntimeError):  # no more threads: the others do it
                self._start_thread()

    def _start_thread(self) -> None:
        name = f"sync sessions {self._threads}"
        threading.Thread(target=self._run, name=name, daemon=True).start()
        self._threads += 1

    def _run(self) -> None:
        with self._changed:
            try:
                while (job := self._take()) is not None:
                    self._call(job)
            finally:
                self._threads -= 1
                self._pass_alarm()

    def _pass_alarm(self) -> None:
        """Have another thread wait for the next job: this one is busy for as long as its turn."""
        if self._next_s() < self._alarm_s:
            self._call_thread()

    def _call(self, job: SyncJob) -> None:
        """Call a job, without the lock; a fault in it ends this thread, and no other."""
        self._running.add(job)
        self._changed.release()
        rest_s: float | None = None
        try:
            rest_s = job.turn()
        finally:
            self._changed.acquire()
            self._running.discard(job)
            self._plan_next(job, rest_s)

    def _plan_next(self, job: SyncJob, rest_s: float | None) -> None:
        """Plan what a job wants next, or what was asked for during its turn."""
        if job not in self._due_s:
            self._ended.notify_all()
            return
        asked_s = self._due_s[job]
        wanted_s = _INFINITE if rest_s is None else time.monotonic() + rest_s
        due_s = wanted_s if asked_s is None else min(asked_s, wanted_s)
        self._due_s[job] = None if due_s == _INFINITE else due_s
        if due_s < _INFINITE:
            self._push(job, due_s)

    def _take(self) -> SyncJob | None:
        """Wait for a job that is due; None once no session is left."""
        while self._due_s:
            next_s = self._next_s()
            left_s = next_s - time.monotonic()
            if left_s <= 0:
                _, _, job = heappop(self._heap)
                self._due_s[job] = None
                self._pass_alarm()
                return job
            self._wait(next_s, left_s)
        return None

    def _next_s(self) -> float:
        """When the first job is due; drop what was planned for earlier since, or has left."""
        while self._heap:
            if self._is_planned(self._heap[0]):
                return self._heap[0][0]
            heappop(self._heap)
        return _INFINITE

    def _is_planned(self, entry: tuple[float, int, SyncJob]) -> bool:
        due_s, _, job = entry
        return self._due_s.get(job) == due_s and job not in self._running

    def _wait(self, next_s: float, left_s: float) -> None:
        """Wait to be called, and one of the idle threads for the time of the first job."""
        has_alarm = next_s < self._alarm_s
        if has_alarm:
            self._alarm_s = next_s
        self._idle += 1
        self._changed.wait(min(left_s, threading.TIMEOUT_MAX) if has_alarm else None)
        self._idle -= 1
        if has_alarm and self._alarm_s == next_s:
            self._alarm_s = _INFINITE


_by_disk: Final[dict[int, SyncThreads]] = {}


def sync_threads(directory: str) -> SyncThreads:
    """Return the threads for the disk that a directory is on."""
    return _by_disk.setdefault(os.stat(directory).st_dev, SyncThreads())


os.register_at_fork(after_in_child=_by_disk.clear)  # a child has none of the threads
