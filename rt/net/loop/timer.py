"""Timer: has the event loop call a function when it is due; the function may use a thread."""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from rt.errors import RtError, spoken
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.turns import ContextParty

_log: Final = logging.getLogger(__name__)
_RETRY_S: Final = 1.0  # until the next try if no thread can be started


class Aside(NamedTuple):
    """Work for a thread, because it may wait, and what the loop calls after it.

    Attributes:
        work: called by the thread; may raise `RtError` and `OSError`.
        back: called by the loop with the error that ended `work`, or None; not called after `stop`.
        is_peer: whether the work waits for a peer; otherwise it waits for a disk.
    """

    work: Callable[[], None]
    back: Callable[[Exception | None], None]
    is_peer: bool = True


class Timer(ContextParty):
    """Calls a function soon after `set`, and again after as many seconds as the function returned.

    Threads: any thread may call `set` and `stop`. `_is_set` saves the loop all but the first of
    many calls of `set`; it is cleared before the function is called, so no call of `set` is lost.
    `_resting` is cleared by the loop, and set by the thread that has done the work put aside.
    `_is_over` is set once; `_aside` and `_next` belong to the loop.
    """

    def __init__(
        self,
        loop: EventLoop,
        act: Callable[[], float | Aside | None],
        broken: Callable[[RtError], None],
    ) -> None:
        """Prepare; nothing is called before `set`.

        Args:
            loop: the event loop that calls `act`.
            act: the function. It returns the seconds until the next call, None to wait for `set`,
                or an `Aside` with work for a thread, after which it is called again.
            broken: called by the loop after an internal error in `act`, or when an error ends the
                loop; once the loop has ended, nothing more is called.
        """
        super().__init__()
        self._loop, self._act, self._broken = loop, act, broken
        self._is_set = self._is_over = False
        self._aside: Aside | None = None  # work put aside that is under way
        self._next: Callable[[], None] | None = None  # what to call after work put aside
        self._resting = threading.Event()
        self._resting.set()
        loop.add_failing(self._lost)

    def set(self) -> None:
        """Call the function soon."""
        if not self._is_set:
            self._is_set = True
            self._loop.rouse(self)
            if self._loop.is_lost and not self._is_over:  # lost before this timer was registered
                self._lost(RuntimeError("the event loop of this process has ended"))

    def stop(self, wait_s: float | None = None) -> bool:
        """Stop calling the function. Idempotent.

        Args:
            wait_s: how long to wait for work put aside; the loop's own thread does not wait.

        Returns:
            True if no work is still under way.
        """
        if not self._is_over:
            self._is_over = True
            self._loop.drop_failing(self._lost)
            if not self._loop.has_ended:
                self._loop.call(lambda: self._loop.forget(self))
        if self._loop.is_own_thread or self._loop.has_ended:
            return self._resting.is_set()
        return self._resting.wait(wait_s)

    def _turn(self) -> None:
        self._is_set = False
        step, self._next = self._next, None
        if step is not None and not self._is_over:
            step()
        wanted = None if self._is_over or self._aside else self._act()
        self._loop.deadlines.clear(self)
        if self._is_over or wanted is None:
            return
        if isinstance(wanted, Aside):
            self._put_aside(wanted)
        else:
            self._loop.deadlines.set(self, self._loop.clock() + wanted)

    def _put_aside(self, wanted: Aside) -> None:
        self._aside = wanted
        self._resting.clear()

        def work() -> None:
            try:
                if self._aside is wanted:
                    wanted.work()
            finally:
                self._resting.set()

        def back(error: Exception | None) -> None:
            self._resting.set()  # also if no thread could be started
            if self._aside is wanted:
                self._aside, self._next = None, partial(wanted.back, error)
                self.set()

        try:
            (self._loop.ask if wanted.is_peer else self._loop.away)(work, back)
        except RuntimeError as error:  # there is no further thread, or the process is ending
            _log.info("%s; trying again", error)
            self._aside = None  # so that a thread started later does nothing
            self._resting.set()
            self._loop.deadlines.set(self, self._loop.clock() + _RETRY_S)

    def _fail(self, error: Exception) -> None:
        _log.error("internal error in the event loop", exc_info=error)
        self._broken(RtError(f"internal error: {type(error).__name__}"))

    def _lost(self, error: Exception) -> None:
        self._run(self._broken, RtError(f"{spoken(error)}; the program has to be started again"))
