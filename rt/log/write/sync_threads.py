"""SyncThreads: a few threads that sync all sessions of a process when they are due."""

import os
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Protocol

_INFINITE: Final = float("inf")
# Threads for each disk. One file system commit serves all waiting syncs, so a few concurrent syncs
# take less time than the same syncs in sequence; more threads gain nothing.
THREADS_MAX: Final = 8
# A job that a thread waits for runs before jobs that have been due for less than this.
HEAD_START_S: Final = 1.0
_STALE_MAX: Final = 64  # superseded plans allowed in the heap, on top of one for each session


class SyncJob(Protocol):
    """A session's periodic work; called by one thread at a time."""

    def turn(self) -> float | None:
        """Do what is due; return the seconds until the next call, None if none is needed."""


class SyncThreads:
    """Calls the jobs of the sessions on one disk when they are due.

    A thread for each session would wake twice for each of its syncs. These threads sleep until the
    next sync is due, however many sessions write meanwhile. A hanging disk delays no other disk.
    The first thread starts with the first session, more start as needed, and all end with the last
    session.

    Threads: `_changed` guards all fields, and is not held during a turn. Idle threads wait on it;
        `await_turn` waits for a future. `_heap` may hold outdated entries of a job that was since
        planned for an earlier time; `_due_s` has the valid time.
    """

    def __init__(self, verb: str = "sync", most: int = THREADS_MAX) -> None:
        """Start without sessions; there are up to `most` threads, whose names begin with `verb`."""
        self._verb, self._most = verb, most
        self._changed = threading.Condition()  # reentrant: a signal handler may publish
        self._due_s: dict[SyncJob, float | None] = {}  # by job; None if nothing is planned
        self._running: set[SyncJob] = set()
        self._awaited: dict[SyncJob, Future[None]] = {}  # done when a turn that is waited for ends
        self._heap: list[tuple[float, int, SyncJob]] = []  # planned calls, earliest first
        self._order = count()
        self._threads = self._idle = 0
        self._alarm_s = _INFINITE  # when the one idle thread with a timeout wakes

    def join(self, job: SyncJob) -> None:
        """Add a job, with nothing planned; `RuntimeError` if no thread can be started."""
        with self._changed:
            if not self._threads:
                self._start_thread()
            self._due_s[job] = None

    def leave(self, job: SyncJob) -> None:
        """Remove a job, and wait until its current turn, if any, has ended."""
        with self._changed:
            self._due_s.pop(job, None)
            if not self._due_s:
                self._changed.notify_all()
        self.await_turn(job)

    def await_turn(self, job: SyncJob) -> None:
        """Wait until a job's current turn, if any, has ended."""
        with self._changed:
            is_running = job in self._running
            ended = self._awaited.setdefault(job, Future()) if is_running else None
        if ended is not None:
            ended.result()

    def ask(self, job: SyncJob, within_s: float = -HEAD_START_S) -> None:
        """Call a job within this many seconds; as soon as possible by default."""
        with self._changed:
            self._plan(job, time.monotonic() + within_s)

    def _plan(self, job: SyncJob, due_s: float) -> None:
        planned_s = self._due_s.get(job, -_INFINITE)  # a job that has left is not called again
        if planned_s is not None and planned_s <= due_s:
            return
        self._due_s[job] = due_s
        if job not in self._running:  # otherwise it is planned when its turn ends
            self._push(job, due_s)

    def _push(self, job: SyncJob, due_s: float) -> None:
        if len(self._heap) > _STALE_MAX + 2 * len(self._due_s):
            self._heap = [each for each in self._heap if self._is_planned(each)]
            heapify(self._heap)
        heappush(self._heap, (due_s, next(self._order), job))
        if due_s < self._alarm_s:
            self._call_thread()

    def _call_thread(self) -> None:
        """Make sure that a thread waits for the job that is due first."""
        if self._idle:
            self._changed.notify()
        elif self._threads < self._most:
            with suppress(RuntimeError):  # no more threads available: the existing ones do it
                self._start_thread()

    def _start_thread(self) -> None:
        name = f"{self._verb} sessions {self._threads}"
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
        """Let another thread wait for the next job, because this one is busy with a turn."""
        if self._next_s() < self._alarm_s:
            self._call_thread()

    def _call(self, job: SyncJob) -> None:
        """Call a job without the lock; an exception in it ends only this thread."""
        self._running.add(job)
        self._changed.release()
        rest_s: float | None = None
        try:
            rest_s = job.turn()
        finally:
            self._changed.acquire()
            self._running.remove(job)
            if (ended := self._awaited.pop(job, None)) is not None:
                ended.set_result(None)
            self._plan_next(job, rest_s)

    def _plan_next(self, job: SyncJob, rest_s: float | None) -> None:
        """Plan a job's next call: `rest_s` after its turn, or earlier if `ask` said so."""
        if job not in self._due_s:
            return
        asked_s = self._due_s[job]
        wanted_s = _INFINITE if rest_s is None else time.monotonic() + rest_s
        due_s = wanted_s if asked_s is None else min(asked_s, wanted_s)
        self._due_s[job] = None if due_s == _INFINITE else due_s
        if due_s < _INFINITE:
            self._push(job, due_s)

    def _take(self) -> SyncJob | None:
        """Wait until a job is due, and return it; None if no session is left."""
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
        """Return when the first job is due, removing outdated entries; inf if there is none."""
        while self._heap:
            if self._is_planned(self._heap[0]):
                return self._heap[0][0]
            heappop(self._heap)
        return _INFINITE

    def _is_planned(self, entry: tuple[float, int, SyncJob]) -> bool:
        due_s, _, job = entry
        return self._due_s.get(job) == due_s and job not in self._running

    def _wait(self, next_s: float, left_s: float) -> None:
        """Wait to be woken; at most `left_s` seconds, unless another thread wakes by `next_s`."""
        has_alarm = next_s < self._alarm_s
        if has_alarm:
            self._alarm_s = next_s
        self._idle += 1
        self._changed.wait(min(left_s, threading.TIMEOUT_MAX) if has_alarm else None)
        self._idle -= 1
        if has_alarm and self._alarm_s == next_s:
            self._alarm_s = _INFINITE


_by_disk: Final[dict[tuple[int, str], SyncThreads]] = {}  # and by what they do


def sync_threads(directory: str) -> SyncThreads:
    """Return the threads for the disk that holds a directory."""
    return _threads(directory, "sync")


def batch_threads(directory: str) -> SyncThreads:
    """Return the threads that write batches to the disk that holds a directory.

    The disk's syncs have threads of their own, so that a batch never waits for a sync.
    """
    return _threads(directory, "batch")


def _threads(directory: str, verb: str) -> SyncThreads:
    return _by_disk.setdefault((os.stat(directory).st_dev, verb), SyncThreads(verb))


os.register_at_fork(after_in_child=_by_disk.clear)  # a child has none of its parent's threads
