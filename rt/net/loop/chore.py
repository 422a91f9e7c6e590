"""Chore: repeated work that waits for a disk, done by a thread of a loop's pool when it is due."""

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from rt.about import carried
from rt.net.loop.event_loop import EventLoop

_log: Final = logging.getLogger(__name__)
_RETRY_S: Final = 1.0  # until the next try if no thread can be started
# Pauses of `_LONG_S` or more end up to `_TOGETHER_S` early, so that a hundred streams do such work
# in a few turns of the loop, in which only the first one finds the processor's caches cold.
_LONG_S: Final = 4.0
_TOGETHER_S: Final = 0.5


def _log_failure(error: Exception) -> None:
    _log.error("internal error in repeated work, which ends", exc_info=error)


class Chore:
    """Does work soon after `ask`, and again after as many seconds as the work returned.

    Only one turn runs at a time; an `ask` during a turn causes another one. An error ends the
    chore.

    Threads: any thread may call `ask`; a thread other than the loop's calls `stop`. `_is_asked`
        spares the loop all but the first of many calls, and is cleared before the work begins, so
        no call is lost. `_is_over` is set once. `_turn` belongs to the loop, and to `stop` once the
        loop has forgotten the chore.
    """

    is_urgent = False

    def __init__(
        self,
        loop: EventLoop,
        work: Callable[[], float | None],
        failed: Callable[[Exception], None] = _log_failure,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """Prepare; nothing is done before `ask` or `begin`.

        Args:
            loop: the event loop that starts the work when it is due.
            work: called by a thread; returns the seconds until its next turn, or None to wait for
                `ask`.
            failed: called by the loop with the error that ended the work.
            pool: the pool whose threads do the work; the loop's own if None.
        """
        self._loop, self._failed = loop, failed
        self._work = carried(work)
        self._pool = pool or loop.pool
        self._is_asked = self._is_over = False
        self._turn: Future[float | None] | None = None  # the turn under way
        self._number = 0  # of the turn under way

    def begin(self, within_s: float) -> None:
        """Do the work for the first time in `within_s` seconds. Any thread may call this."""
        self._loop.post(lambda: self._plan(within_s))

    def ask(self) -> None:
        """Do the work soon; if it is being done now, do it once more after that."""
        if not self._is_asked:
            self._is_asked = True
            self._loop.rouse(self)

    def stop(self) -> None:
        """Stop doing the work; wait for a turn that is under way. Idempotent."""
        self._is_over = True
        self._loop.call(lambda: self._loop.forget(self))
        if self._turn is not None:
            with suppress(CancelledError):
                self._turn.exception()

    def ready(self) -> None:
        """Start the work in a thread of the pool, unless it is under way already."""
        if self._turn is not None or self._is_over:
            return
        self._is_asked = False
        self._loop.deadlines.clear(self)
        self._number += 1
        try:
            self._turn = self._pool.submit(self._do, self._number)
        except RuntimeError as error:  # there is no further thread, or the process is ending
            _log.info("%s; trying again", error)
            self._number += 1  # so that a thread started later does nothing
            self._plan(_RETRY_S)
        else:
            self._turn.add_done_callback(lambda done: self._loop.post(lambda: self._end(done)))

    def failed(self, error: Exception) -> bool:
        """End the chore because of an error; return True, since the process may go on."""
        self._is_over = True
        self._failed(error)
        return True

    def _do(self, number: int) -> float | None:
        return self._work() if number == self._number else None

    def _end(self, done: Future[float | None]) -> None:
        self._turn = None
        if done.cancelled():
            return  # the loop has stopped
        error = done.exception()
        if isinstance(error, Exception):
            self.failed(error)
        elif error is not None:
            raise error
        elif self._is_asked:
            self._loop.mark(self)
        elif (rest_s := done.result()) is not None:
            self._plan(rest_s)

    def _plan(self, within_s: float) -> None:
        if not self._is_over:
            due_s = self._loop.clock() + within_s
            early_s = due_s % _TOGETHER_S if within_s >= _LONG_S else 0.0
            self._loop.deadlines.set(self, due_s - early_s)
