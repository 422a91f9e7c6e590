"""EventLoop: the thread of a process that serves its sockets and does its streams' duties."""

import errno
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final

from rt.about import carried
from rt.amounts import duration_text
from rt.errors import PeerError, RtError
from rt.log.notify.fork_guard import ForkGuard
from rt.net.loop.poller import EpollPoller
from rt.net.loop.turns import Act, LoopTurns

_log: Final = logging.getLogger(__name__)
# Half an election timeout; a leader that is silent for a whole one is replaced.
_LONG_TURN_S: Final = 0.25
_POOL_THREADS: Final = 4  # each waits for the disk: opens, claims, rolls, reads of old files
_STOP_S: Final = 5.0
_ALIVE_S: Final = 0.5  # between two looks whether the thread is there


class EventLoop(LoopTurns):
    """An event loop in a thread of its own, with a pool of threads for work that may block.

    Threads: `call`, `away`, `ask` and `add_failing` may be called by any thread, as may the methods
        that `LoopTurns` lists. Any thread may read `longest_s` and `longest_ran_s`.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, pool_threads: int = _POOL_THREADS
    ) -> None:
        """Start the thread, which waits for work.

        Args:
            clock: a monotonic clock, in seconds.
            pool_threads: how many threads may wait for disks at once; each is started when needed.

        Raises:
            RuntimeError: the system allows no further thread.
        """
        super().__init__(clock, EpollPoller())
        self.pool = ThreadPoolExecutor(pool_threads, "pool")
        self._failing: list[Callable[[Exception], None]] = []
        self._guard = ForkGuard("an event loop", self._abandon)
        self._ident = 0  # of the thread; set by it before anything else
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system allows no further thread
            self._abandon()
            raise

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs in the loop's thread."""
        return threading.get_ident() == self._ident

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended, so that nothing is called any more."""
        return not self._thread.is_alive()

    @property
    def is_lost(self) -> bool:
        """Whether an error has ended the thread."""
        return not self._is_over and self.has_ended

    def call(self, act: Act) -> bool:
        """Call a function in the loop and wait until it returns; its error is raised here.

        Returns:
            False if the loop has ended: the function was not called and never will be.
        """
        if self.is_own_thread:
            act()
            return True
        called = _Called(act)
        if not self.post(partial(self._serve, called)):
            return False
        while not wait([called.done], _ALIVE_S).done:
            if self.has_ended:
                return False
        called.done.result()
        return True

    def add_failing(self, failing: Callable[[Exception], None]) -> None:
        """Register a function to be called if an error ends the loop's thread."""
        self._failing.append(failing)

    def drop_failing(self, failing: Callable[[Exception], None]) -> None:
        """Remove a function that `add_failing` registered."""
        self._failing.remove(failing)

    def away(
        self,
        work: Act,
        back: Callable[[Exception | None], None],
        pool: ThreadPoolExecutor | None = None,
    ) -> Future[None]:
        """Run work that may block on a thread of the pool; then the loop calls `back`.

        Args:
            work: called by a thread of the pool.
            back: called by the loop with the error of `work`, or None.
            pool: the pool to use instead of the loop's own, for work that must not queue after
                other work of the loop.

        Returns:
            A future that is done once `work` has ended; for another thread to wait for.

        Raises:
            RuntimeError: the system allows no further thread; `work` is not done.
        """
        done: Future[None] = Future()

        def report(_done: Future[None]) -> None:
            if done.cancelled():
                return  # the loop has stopped, or no thread was started
            error = done.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            self.post(lambda: back(error))

        done.add_done_callback(report)
        try:
            under_way = (pool or self.pool).submit(carried(partial(_do, work, done)))
        except RuntimeError:
            if done.cancel():  # else one of the pool's threads has just begun it
                raise
        else:
            under_way.add_done_callback(lambda each: each.cancelled() and done.cancel())
        return done

    def queue(self, work: Act) -> None:
        """Have the pool run work in its turn, even if it can begin no thread for it now."""
        with suppress(RuntimeError):  # it is queued all the same
            self.pool.submit(carried(work))

    def ask(
        self, work: Act, back: Callable[[Exception | None], None], late: Act = lambda: None
    ) -> None:
        """Run work that may wait for a peer on a new daemon thread; then the loop calls `back`.

        Such work may take ten seconds, and must neither fill the pool nor keep the process from
        ending.

        Args:
            work: may raise `RtError` and `OSError`.
            back: called by the loop with the error of `work`, or None; an `OSError` if the system
                allows no further thread.
            late: called by that thread instead of `back` if the loop has ended, to close what
                `work` opened.
        """
        run = copy_context().run  # its log lines name the stream

        def report(error: Exception | None) -> None:
            if not self.post(lambda: run(back, error)):
                late()

        def do() -> None:
            error: Exception | None = PeerError("internal error while a peer was waited for")
            try:
                run(work)
                error = None
            except (RtError, OSError) as known:
                error = known.with_traceback(None)  # its frames would keep the certificates
            finally:
                report(error)

        try:
            threading.Thread(target=do, name="peer", daemon=True).start()
        except RuntimeError as error:
            report(OSError(errno.EAGAIN, str(error)))

    def stop(self) -> None:
        """Finish the posted work, end the thread and release everything; idempotent."""
        if self._is_over or self._guard.is_copy:
            return
        self._is_over = True
        self.post(lambda: None)
        self._thread.join(_STOP_S)
        self.pool.shutdown(cancel_futures=True)
        if not self._thread.is_alive():
            words = "the longest turn of the event loop took %s, and ran for %s of it"
            _log.info(words, duration_text(self.longest_s), duration_text(self.longest_ran_s))
            self._release()

    def _abandon(self) -> None:
        """In a forked child: release the descriptors, which the parent still uses."""
        self._is_over = True
        self._release()

    def _release(self) -> None:
        self._takes_none = True
        self._poller.close()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        try:
            self._turns()
        finally:
            if not self._is_over:
                for failing in self._failing.copy():
                    failing(RuntimeError("the event loop of this process has ended"))

    def _note_longest(self) -> None:
        """Log a turn of over 0.25 s, and for how much of that time the thread was running."""
        if self.longest_s > _LONG_TURN_S:
            words = "a turn of the event loop took %s, and ran for %s of it"
            _log.info(words, duration_text(self.longest_s), duration_text(self.longest_ran_s))


def _do(work: Act, done: Future[None]) -> None:
    """Do the work and record how it ended, unless `done` was cancelled."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        work()
    except BaseException as error:
        done.set_exception(error)
        raise
    done.set_result(None)


class _Called:
    """A call that another thread waits for; that thread gets the error, if there is one."""

    is_urgent = False

    def __init__(self, act: Act) -> None:
        self.done: Future[None] = Future()
        self._act = act

    def ready(self) -> None:
        """Make the call."""
        self._act()
        self.done.set_result(None)

    def failed(self, error: Exception) -> bool:
        """Raise the error in the waiting thread; return True, since the process may go on."""
        self.done.set_exception(error)
        return True
