"""EndWait: waits until a copy has everything that was merged when the wait began."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from replicator.pull.end_asks import Address, NoEnd
from replicator.pull.end_question import EndQuestion
from rt.about import carried
from rt.errors import RtError
from rt.position import Position

_ROUND_S: Final = 0.2  # after all nodes were asked in vain, as during an election
_LOOK_FIRST_S, _LOOK_S = 0.001, 0.05  # between checks of the copy's progress


class EndWait:
    """EndWait: asks where the stream ends, and waits until the copy has reached that end.

    Threads: its own thread asks and checks the copy, until `close`; any may call the rest. `_lock`
        guards `_question`; `_error` is set before `_is_over`.
    """

    def __init__(
        self,
        nodes: Sequence[Address],
        asks: Callable[[Address], Position | NoEnd],
        place: Callable[[], Position],
        reached: Callable[[Position, int], None] = lambda _end, _asked_ns: None,
        is_accepted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Begin to ask.

        Args:
            nodes: nodes or mirrors, asked in turn.
            asks: asks one of them, as `EndAsks.latest`.
            place: returns where the copy continues now.
            reached: called with the end and the time of the question once the copy has reached it.
            is_accepted: whether a node has found the copy to be a prefix of its log; without that,
                a copy of another log, or a damaged one, could seem complete.
        """
        self.asked_s, self._asked_ns = time.monotonic(), time.time_ns()
        self._asks, self._place, self._took = asks, place, reached
        self._is_accepted = is_accepted
        self._question: EndQuestion[Address] = EndQuestion(nodes)
        self._lock = threading.Lock()
        self._closing, self._is_over = threading.Event(), threading.Event()
        self._answered, self._reached = threading.Event(), threading.Event()
        self._error: Exception | None = None
        threading.Thread(target=carried(self._run), name="ask for the end", daemon=True).start()

    @property
    def end(self) -> Position | None:
        """Where the stream ended at some time since this began; None if no node has answered."""
        return self._question.end

    @property
    def is_reached(self) -> bool:
        """Whether the copy has reached the end."""
        return self._reached.is_set()

    @property
    def is_over(self) -> bool:
        """Whether the wait has ended: the copy is complete, or asking has failed for good."""
        return self._is_over.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the copy is complete; False if it is not in time, or no node can answer.

        Raises:
            RtError: the copy cannot be read; `OSError` if the disk fails.
        """
        self._is_over.wait(timeout_s)
        if self._error is not None:
            raise self._error
        return self.is_reached

    def wait_answered(self, timeout_s: float) -> Position | None:
        """Wait until the end is known; None if it is not in time, or no node can answer."""
        self._answered.wait(timeout_s)
        return self.end

    def why_not(self) -> str:
        """Return what the copy still lacks, or why that is unknown."""
        with self._lock:
            if self._question.is_reached(self._place()) and not self._is_accepted():
                return "no node has compared the copy with its log yet"
            return self._question.why_not(self._place())

    def close(self) -> None:
        """Stop asking and checking. Idempotent."""
        self._closing.set()

    def _run(self) -> None:
        try:
            if self._find():
                self._follow()
        except (RtError, OSError) as error:
            self._error = error
        finally:
            self._answered.set()
            self._is_over.set()

    def _find(self) -> bool:
        """Ask until a node has answered; False if none can, or the wait was closed."""
        question = self._question
        while not (self._closing.is_set() or question.is_hopeless):
            answer = self._asks(question.node)
            with self._lock:
                if not isinstance(answer, NoEnd):
                    question.answered(answer)
                    return True
                question.failed(answer.why, answer.members, for_good=answer.for_good)
            if question.is_round_over:
                self._closing.wait(_ROUND_S)
        return False

    def _follow(self) -> None:
        """Check the copy until it has reached the end."""
        self._answered.set()
        pause_s = _LOOK_FIRST_S
        while not (self._question.is_reached(self._place()) and self._is_accepted()):
            if self._closing.wait(pause_s):
                return
            pause_s = min(_LOOK_S, 1.5 * pause_s)
        if self._question.end is not None:
            self._took(self._question.end, self._asked_ns)
        self._reached.set()
