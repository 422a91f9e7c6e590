"""EndWait: waits until a copy has everything that was merged when the wait began."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from functools import partial
from typing import Final

from replicator.pull.end_asks import NoEnd
from replicator.pull.end_question import EndQuestion
from rt.net.addresses import Address
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.timer import Aside, Timer
from rt.position import Position

_ROUND_S: Final = 0.2  # pause after all nodes were asked in vain, as during an election
_LOOK_FIRST_S, _LOOK_S = 0.001, 0.05  # between checks of the copy's progress


class EndWait:
    """EndWait: asks where the stream ends, and waits until the copy has reached that end.

    Threads: the loop asks and checks, until `close`; any thread may call the public methods. Only
        the loop uses `_question` and sets `end`; `is_reached` is set before `_over` is done. One
        thread at a time does the work that the loop puts aside: it asks a node, or reads from the
        disk where the copy continues.
    """

    def __init__(
        self,
        nodes: Sequence[Address],
        asks: Callable[[Address], Position | NoEnd],
        place: Callable[[], Position],
        loop: EventLoop,
        *,
        reached: Callable[[Position, int], None] = lambda _end, _asked_ns: None,
        is_accepted: Callable[[], bool] = lambda: True,
        reads_disk: bool = False,
    ) -> None:
        """Begin to ask the nodes.

        Args:
            nodes: nodes or mirrors, asked in turn.
            asks: asks one node or mirror for the end, like `EndAsks.latest`.
            place: returns where the copy continues now.
            loop: the event loop that schedules the questions, and checks the copy.
            reached: called once the copy has reached the end, with the end and the time of the
                question in ns since the epoch.
            is_accepted: returns whether a node has found the copy to be a prefix of the node's log.
                Without this check, a damaged copy, or one of another log, could seem complete.
            reads_disk: whether `place` reads files, so that the loop's pool must call it.
        """
        self.asked_s, self._asked_ns = time.monotonic(), time.time_ns()
        self.end: Position | None = None  # the stream's end since this began; None if unknown
        self.is_reached = False  # whether the copy has reached `end`
        self._asks, self._place, self._took = asks, place, reached
        self._is_accepted, self._reads_disk = is_accepted, reads_disk
        self._question: EndQuestion[Address] = EndQuestion(nodes)
        self._over: Future[None] = Future()
        self._answered: Future[None] = Future()  # done at the latest when `_over` is
        self._pause_s, self._look_s = 0.0, _LOOK_FIRST_S
        self._loop = loop
        self._timer = Timer(loop, self._turn, self._end)
        self._timer.set()

    @property
    def is_over(self) -> bool:
        """Whether the wait has ended: the copy is complete, or asking has failed for good."""
        return self._over.done()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the copy has reached the end.

        Return False on a timeout, or if no node knows the end.

        Raises:
            RtError: the copy cannot be read; `OSError` if the disk fails.
        """
        if wait([self._over], timeout_s).done:
            self._over.result()
        return self.is_reached

    def wait_answered(self, timeout_s: float) -> Position | None:
        """Wait for the stream's end and return it; None on a timeout, or if no node knows it."""
        wait([self._answered], timeout_s)
        return self.end

    def why_not(self) -> str:
        """Return how far the copy lags, or why that is unknown, as text."""
        place, reasons = self._place(), []
        if self.end is not None and place >= self.end and not self._is_accepted():
            return "no node has compared the copy with its log yet"
        self._loop.call(lambda: reasons.append(self._question.why_not(place)))
        return "".join(reasons) or "the event loop has ended"

    def close(self) -> None:
        """Stop asking and checking. Idempotent."""
        self._end()

    def _end(self, error: Exception | None = None) -> None:
        self._timer.stop(0)
        with suppress(InvalidStateError):  # the wait has ended before
            if error is None:
                self._over.set_result(None)
            else:
                self._over.set_exception(error)
        self._has_answer()

    def _has_answer(self) -> None:
        with suppress(InvalidStateError):
            self._answered.set_result(None)

    def _turn(self) -> float | Aside | None:
        """Return work for a thread, or the seconds until the next turn; None if none follows."""
        pause_s, self._pause_s = self._pause_s, 0.0
        if pause_s:
            return pause_s
        if self._question.end is None:
            return self._asking()
        if self._reads_disk:
            return Aside(self._look, self._looked, is_peer=False)
        self._look()
        return self._next_s()

    def _asking(self) -> Aside | None:
        """Return the work of asking the next node; end the wait if no node can ever answer."""
        if self._question.is_hopeless:
            self._end()
            return None
        answers: list[Position | NoEnd] = []
        ask = partial(self._asks, self._question.node)
        return Aside(lambda: answers.append(ask()), partial(self._take, answers))

    def _take(self, answers: list[Position | NoEnd], error: Exception | None) -> None:
        question = self._question
        for answer in answers:
            if isinstance(answer, NoEnd):
                question.failed(answer.why, answer.members, for_good=answer.for_good)
                self._pause_s = _ROUND_S if question.is_round_over else 0.0
            else:
                question.answered(answer)
                self.end = answer
                self._has_answer()
        if error is not None:
            self._end(error)

    def _look(self) -> None:
        """Check whether the copy has reached the end."""
        self.is_reached = self._question.is_reached(self._place()) and self._is_accepted()

    def _looked(self, error: Exception | None) -> None:
        if error is None:
            self._pause_s = self._next_s() or 0.0
        else:
            self._end(error)

    def _next_s(self) -> float | None:
        """Return the seconds until the next look; if the end is reached, end the wait instead."""
        if self.is_reached and self.end is not None:
            self._took(self.end, self._asked_ns)
            self._end()
            return None
        look_s, self._look_s = self._look_s, min(_LOOK_S, 1.5 * self._look_s)
        return look_s
