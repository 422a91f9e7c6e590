"""EventLoop: the one thread of a process that its sockets and its streams' duties belong to."""

import logging
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import Context, copy_context
from functools import partial
from typing import Final, Protocol

from rt.about import carried
from rt.log.notify.fork_guard import ForkGuard
from rt.net.loop.deadlines import Deadlines
from rt.net.loop.readiness import Readiness

_log: Final = logging.getLogger(__name__)
READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
# How long a turn serves connections before the duties have theirs: less than the 20 ms of a tick. A
# connection that was begun goes on, with at most 2 MiB: another 5 ms.
_SERVE_S: Final = 0.01
# Half an election time; a leader that says nothing for longer is replaced.
_LONG_TURN_S: Final = 0.25
_POOL_THREADS: Final = 4  # each waits for the disk: opens, claims, rolls, reads of old files
_WAIT_S_MAX: Final = 60.0
_STOP_S: Final = 5.0
_ALIVE_S: Final = 0.5  # between two looks whether the thread is there

Act = Callable[[], None]


class Party(Protocol):
    """What the loop calls: a connection, a stream's duties."""

    def ready(self) -> None:
        """Do what there is to do now: something arrived, there is room to send, or it was due."""

    def failed(self, error: Exception) -> bool:
        """End what has met an internal error, and nothing else; False if the process has to end."""


class ContextParty(ABC):
    """A party that acts in the context of the thread that made it: its log lines name the stream.

    Subclasses say what a turn does, and how what has met an internal error ends.
    """

    def __init__(self, about: Context | None = None) -> None:
        """Act in a context; that of this thread if none is given."""
        self._run = (about or copy_context()).run

    def ready(self) -> None:
        """Take a turn."""
        self._run(self._turn)

    def failed(self, error: Exception) -> bool:
        """End what has met an internal error, and nothing else."""
        self._run(self._fail, error)
        return True

    @abstractmethod
    def _turn(self) -> None:
        """Do what there is to do now."""

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """End, or begin again."""


class EventLoop:
    """Waits for sockets, deadlines and posted calls, and acts on all of them from one thread.

    A turn serves first what other nodes sent, then connections for `_SERVE_S`, then what is due,
    and last the duties of the streams that have news, once for all that has arrived.

    Threads: `post`, `rouse`, `call`, `away`, `mark_last` and `add_failing` may be called by any
        thread; all else, and all fields but these, belong to the loop's own.
        _posted: a deque, to which any thread appends.
        _is_rung: set before the bell is written, and cleared after it was read and before `_posted`
            is: a call that was posted later rings again.
        _is_over: set by `stop`, once.
        longest_s, longest_ran_s: read by any thread.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, pool_threads: int = _POOL_THREADS
    ) -> None:
        """Start the thread; it waits for something to do.

        Args:
            clock: a clock that only goes forward.
            pool_threads: how many threads may wait for disks at once; each is started when needed.

        Raises:
            RuntimeError: the system allows no further thread.
        """
        self.longest_s = self.longest_ran_s = 0.0  # the longest turn so far
        self.deadlines: Deadlines[Party] = Deadlines()
        self._pool = ThreadPoolExecutor(pool_threads, "pool")
        self._clock = clock
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[Party, bool]] = {}  # with whether it is urgent
        self._ready: Readiness[Party] = Readiness()
        self._last: dict[Party, None] = {}  # a turn ends with these
        self._failing: list[Callable[[Exception], None]] = []
        self._posted: deque[Act] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_rung = self._is_over = False
        self._epoll.register(self._bell, READABLE)
        self._guard = ForkGuard("an event loop", self._abandon)
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system allows no further thread
            self._abandon()
            raise

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is the loop."""
        return threading.get_ident() == self._thread.ident

    @property
    def has_ended(self) -> bool:
        """Whether the thread is over, so that nothing is called any more."""
        return not self._thread.is_alive()

    def post(self, act: Act) -> None:
        """Have the loop call this soon. Any thread may ask."""
        self._posted.append(act)
        if not self._is_rung:
            self._is_rung = True
            os.eventfd_write(self._bell, 1)

    def call(self, act: Act) -> bool:
        """Call this in the loop and wait until that is done; raises what it raises.

        Returns:
            False once the loop is over: it was not called, and never will be.
        """
        if self.is_own_thread:
            act()
            return True
        called = _Called(act)
        self.post(partial(self._serve, called))
        while not wait([called.done], _ALIVE_S).done:
            if self.has_ended:
                return False
        called.done.result()
        return True

    def rouse(self, party: Party) -> None:
        """Call a party soon. Any thread may ask."""
        if self.is_own_thread:
            self._ready.mark(party)
        else:
            self.post(lambda: self._ready.mark(party))

    def mark_last(self, party: Party) -> None:
        """Call a party at the end of this turn, or of the next one. Any thread may ask."""
        if self.is_own_thread:
            self._last[party] = None
        else:
            self.post(lambda: self._last.setdefault(party))

    def add_failing(self, failing: Callable[[Exception], None]) -> None:
        """Have this called if an error ends the thread. Any thread may ask."""
        self._failing.append(failing)

    def drop_failing(self, failing: Callable[[Exception], None]) -> None:
        """Do not call this any more."""
        self._failing.remove(failing)

    def away(
        self,
        work: Act,
        back: Callable[[Exception | None], None],
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """Do what may wait for a disk or a peer in the pool; the loop learns what came of it.

        Args:
            work: called by a thread of the pool.
            back: called by the loop, with the error that ended `work`, if one did.
            pool: another pool, for what the tasks of this one wait for.

        Raises:
            RuntimeError: the system allows no further thread; `work` may be done later.
        """

        def report(done: Future[None]) -> None:
            if done.cancelled():
                return  # the loop has stopped
            error = done.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            self.post(lambda: back(error))

        (pool or self._pool).submit(carried(work)).add_done_callback(report)

    def watch(self, fd: int, party: Party, events: int = READABLE, *, urgent: bool = False) -> None:
        """Call a party while one of these events is there at a descriptor."""
        if fd in self._watched:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._watched[fd] = party, urgent

    def ignore(self, fd: int) -> None:
        """Watch this descriptor no more; it may be watched again."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def mark(self, party: Party, *, urgent: bool = False) -> None:
        """Call a party soon, without an event."""
        self._ready.mark(party, is_urgent=urgent)

    def forget(self, party: Party) -> None:
        """Call a party no more; its descriptors are ignored already."""
        self._ready.drop(party)
        self.deadlines.clear(party)
        self._last.pop(party, None)

    def stop(self) -> None:
        """End the thread once it has done what was posted, and release everything; idempotent."""
        if self._is_over or self._guard.is_copy:
            return
        self._is_over = True
        self.post(lambda: None)
        self._thread.join(_STOP_S)
        self._pool.shutdown(cancel_futures=True)
        if not self._thread.is_alive():
            words = "the longest turn of the event loop took %.0f ms, and ran for %.0f of them"
            _log.info(words, self.longest_s * 1000, self.longest_ran_s * 1000)
            self._release()

    def _abandon(self) -> None:
        """In a forked child: release the descriptors, which the parent still uses."""
        self._is_over = True
        self._release()

    def _release(self) -> None:
        self._is_rung = True  # whatever is still posted must not write there
        self._epoll.close()
        bell, self._bell = self._bell, -1  # its number may soon be another file's
        if bell >= 0:
            os.close(bell)

    def _run(self) -> None:
        try:
            self._turns()
        finally:
            if not self._is_over:
                for failing in self._failing.copy():
                    failing(RuntimeError("the event loop of this process has ended"))

    def _turns(self) -> None:
        while not self._is_over or self._posted:
            events = self._epoll.poll(self._pause_s())
            began_s, ran_s = self._clock(), time.thread_time()
            for fd, _ in events:
                self._take_event(fd)
            self._turn(began_s)
            took_s = self._clock() - began_s
            if took_s > self.longest_s:
                self._note_longest(took_s, time.thread_time() - ran_s)

    def _note_longest(self, took_s: float, ran_s: float) -> None:
        """Keep the longest turn; the time that it did not run is a disk's, or a busy machine's."""
        self.longest_s, self.longest_ran_s = took_s, ran_s
        if took_s > _LONG_TURN_S:
            words = "a turn of the event loop took %.0f ms, and ran for %.0f of them"
            _log.info(words, took_s * 1000, ran_s * 1000)

    def _pause_s(self) -> float:
        if self._ready or self._last or self._posted:
            return 0.0
        return min(_WAIT_S_MAX, max(0.0, self.deadlines.next_s - self._clock()))

    def _take_event(self, fd: int) -> None:
        if fd == self._bell:
            os.eventfd_read(fd)
            self._is_rung = False
        elif (found := self._watched.get(fd)) is not None:
            party, is_urgent = found
            self._ready.mark(party, is_urgent=is_urgent)

    def _turn(self, began_s: float) -> None:
        for _ in range(len(self._posted)):  # what these post has the next turn
            self._posted.popleft()()
        for party in self._ready.turn(began_s + _SERVE_S, self._clock):
            self._serve(party)
        for party in self.deadlines.take(self._clock()):
            self._serve(party)
        last, self._last = self._last, {}
        for party in last:
            self._serve(party)

    @staticmethod
    def _serve(party: Party) -> None:
        try:
            party.ready()
        except Exception as error:
            if party.failed(error):
                return
            raise


class _Called:
    """What another thread waits for; an error is that thread's, and ends nothing here."""

    def __init__(self, act: Act) -> None:
        self.done: Future[None] = Future()
        self._act = act

    def ready(self) -> None:
        """Do it."""
        self._act()
        self.done.set_result(None)

    def failed(self, error: Exception) -> bool:
        """Have the caller raise it."""
        self.done.set_exception(error)
        return True
