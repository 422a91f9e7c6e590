"""DutyTurns: runs a stream's duties in the turns of an event loop."""

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Final

from rt.latencies import RunningMean
from rt.net.loop.event_loop import EventLoop
from rt.node.agree.sequencer import NodeSequencer

# Steps that take longer wait for a disk, or merge much. They are left to a thread then, so that
# other streams, clients and pullers go on. A hand-over costs two wake-ups, which a lone message on
# a quick disk does not pay: one step that was slow is not enough.
SLOW_S: Final = 0.01


class DutyTurns:
    """Calls a stream's `Duties` at the end of each turn that brought news, and when they are due.

    While a thread runs a step, no other step starts; what arrives meanwhile is for the next one.

    Threads: any thread may call `ring` and `leave` and read `is_slow`; the rest is the loop's own.
    """

    is_urgent = True

    def __init__(
        self,
        loop: EventLoop,
        sequencer: NodeSequencer,
        guarded: Callable[[Callable[[], None]], None],
        fail: Callable[[Exception], None],
        *,
        pool: ThreadPoolExecutor,
        slow_s: float = SLOW_S,
    ) -> None:
        """Prepare; no step is taken before `join`.

        Args:
            loop: the event loop.
            sequencer: holds the duties, and calls `ring` when it has mail.
            guarded: calls a function, and ends the node if that raises an error.
            fail: ends the node with an error.
            pool: has a thread for a step, at once.
            slow_s: if steps take longer than this, in seconds, a thread takes them.
        """
        self.is_slow = False  # whether steps took long lately
        self._taken = RunningMean()
        self._loop, self._slow_s = loop, slow_s
        self._sequencer = sequencer
        self._guarded = guarded
        self._run = copy_context().run  # its log lines name the stream
        self._has_joined = self._is_away = self._is_rung = False
        self._at_s: float | None = None  # when to step again, as the last step said
        self._pool = pool
        self._under_way: Future[None] | None = None  # the last step that was left to a thread
        self._fail = fail
        loop.add_failing(fail)
        sequencer.ring = self.ring

    def ring(self) -> None:
        """Schedule a step for the end of this turn."""
        self._loop.mark_last(self)

    def join(self) -> None:
        """Start taking steps."""
        self._loop.call(self._begin)

    def leave(self) -> None:
        """Stop after the current step; call `NodeSequencer.finish` afterwards."""
        self._loop.call(self._end)
        if self._under_way is not None:
            with suppress(CancelledError):
                self._under_way.exception()

    def ready(self) -> None:
        """Take one step, here or in a thread."""
        if not self._has_joined:
            return
        if self._is_away:
            self._is_rung = True
        elif self.is_slow:
            self._is_away = True
            self._loop.deadlines.clear(self)
            self._under_way = self._loop.away(self._act, self._back, self._pool)
        else:
            self._act()
            self._step_later()

    def failed(self, error: Exception) -> bool:
        """End the node after an internal error, or because no thread could be started."""
        self._fail(error)
        return True

    def _begin(self) -> None:
        self._has_joined = True
        self.ring()

    def _end(self) -> None:
        self._has_joined = False
        self._loop.forget(self)
        self._loop.drop_failing(self._fail)

    def _act(self) -> None:
        self._at_s = None
        self._run(self._guarded, self._step)

    def _step(self) -> None:
        began_s = time.monotonic()
        self._at_s = self._sequencer.step()
        self._taken.observe(time.monotonic() - began_s)
        self.is_slow = self._taken.mean_s > self._slow_s

    def _back(self, _error: Exception | None) -> None:
        self._is_away = False
        if self._has_joined:
            if self._is_rung:
                self._is_rung = False
                self.ring()
            self._step_later()

    def _step_later(self) -> None:
        if self._at_s is not None:
            self._loop.deadlines.set(self, self._at_s)
