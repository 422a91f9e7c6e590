"""DutyTurns: runs a stream's duties in the turns of an event loop."""

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final

from rt.latencies import RunningMean
from rt.net.loop.event_loop import EventLoop
from rt.node.agree.sequencer import NodeSequencer

# Steps that on average take longer than this, in seconds, wait for a disk or merge a lot. A thread
# runs them, so that the loop can serve other streams, clients and pullers meanwhile. The mean
# decides, not one slow step: handing a step to a thread costs two wake-ups, which is too much for a
# lone message on a fast disk.
SLOW_S: Final = 0.003


class DutyTurns:
    """Runs a step of a stream's `Duties` when one is due, and after a turn that called `ring`.

    While a thread runs a step, no other step starts. Mail that arrives meanwhile waits for the next
    step.

    Threads: any thread may call `ring` and `leave` and read `is_slow`; only the loop calls the
    rest.

    Attributes:
        ring: schedules a step for the end of the loop's turn.
    """

    is_urgent = True

    def __init__(
        self,
        loop: EventLoop,
        sequencer: NodeSequencer,
        fail: Callable[[Exception], None],
        *,
        pool: ThreadPoolExecutor,
        slow_s: float = SLOW_S,
    ) -> None:
        """Prepare; no step is taken before `join`.

        Args:
            loop: the event loop.
            sequencer: holds the duties, and calls `ring` when it has mail.
            fail: ends the node with the error that a step has raised.
            pool: threads for slow steps; a step must not have to queue there after other work.
            slow_s: mean duration, in seconds, above which steps are run in a thread.
        """
        self.is_slow = False  # whether recent steps took long on average
        self._taken = RunningMean()
        self._loop, self._slow_s = loop, slow_s
        self._sequencer = sequencer
        self._run = copy_context().run  # its log lines name the stream
        self._has_joined = self._is_away = self._is_rung = False
        self._at_s: float | None = None  # when to step again, as the last step said
        self._pool = pool
        self._under_way: Future[None] | None = None  # the last step handed to a thread
        self._fail = fail
        loop.add_failing(fail)
        self.ring: Callable[[], None] = partial(loop.mark_last, self)
        sequencer.ring = self.ring

    def join(self) -> None:
        """Start taking steps."""
        self._loop.call(self._begin)

    def leave(self) -> None:
        """Stop once the step under way has ended; call `NodeSequencer.finish` afterwards."""
        self._loop.call(self._end)
        if self._under_way is not None:
            with suppress(CancelledError):
                self._end_with(self._under_way.exception())

    def ready(self) -> None:
        """Take one step, here or in a thread."""
        if not self._has_joined:
            return
        if self._is_away:
            self._is_rung = True
        elif self.is_slow:
            self._is_away = True
            self._loop.deadlines.clear(self)
            work = partial(self._run, self._step)
            self._under_way = self._loop.away(work, self._back, self._pool)
        else:
            self._run(self._step)
            if self._at_s is not None:
                self._loop.deadlines.set(self, self._at_s)

    def failed(self, error: Exception) -> bool:
        """End the node: a step has raised an error, or no thread could be started.

        Return True: the process goes on, with its other streams.
        """
        self._fail(error)
        return True

    def _end_with(self, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            self._fail(error)

    def _begin(self) -> None:
        self._has_joined = True
        self.ring()

    def _end(self) -> None:
        self._has_joined = False
        self._loop.forget(self)
        self._loop.drop_failing(self._fail)

    def _step(self) -> None:
        self._at_s, began_s = None, time.monotonic()
        self._at_s = self._sequencer.step()
        self._taken.observe(time.monotonic() - began_s)
        self.is_slow = self._taken.mean_s > self._slow_s

    def _back(self, error: Exception | None) -> None:
        self._is_away = False
        self._end_with(error)
        if self._has_joined:
            if self._is_rung:
                self._is_rung = False
                self.ring()
            if self._at_s is not None:
                self._loop.deadlines.set(self, self._at_s)
