"""EndSamples: where a cluster's log ended at each time of asking, and what a reader reached."""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from rt.net.admin import END, reading_answers
from rt.net.exchange import Fields
from rt.position import START, Position

_SAMPLES: Final = 512  # if more are not reached yet, the oldest no longer count


class EndSample(NamedTuple):
    """The end of a cluster's log at one time."""

    at_ns: int
    end: Position
    number: int


class EndSamples:
    """Measures how far a reader lags the end of a cluster's log, by this machine's clock alone.

    The time of each question to the cluster is recorded. A reader that has reached the end given in
    the answer has everything that was merged before the question.

    Threads: only one thread at a time may use this.
    """

    def __init__(self, number: int = 0) -> None:
        """Begin with a reader that has the messages before `number`."""
        self._number = number
        self._waiting: deque[EndSample] = deque(maxlen=_SAMPLES)  # not reached yet
        self.reached = EndSample(0, START, number)  # the latest that was reached
        self.bytes_behind = -1  # when the cluster was last asked; -1 if unknown

    @property
    def last(self) -> EndSample:
        """The latest answer; a sample with the time 0 if no node has answered."""
        return self._waiting[-1] if self._waiting else self.reached

    @property
    def behind(self) -> int:
        """The most messages that the reader can have lacked when the cluster was last asked."""
        return max(0, self.last.number - self.reached.number)

    def sample(
        self, ask: Callable[[Fields], Fields], now_ns: Callable[[], int], here: Position = START
    ) -> None:
        """Ask the cluster for the latest end of its log; errors as for `ask`.

        Args:
            ask: sends a request.
            now_ns: returns the time, ns since the epoch.
            here: the reader's position; the cluster counts the bytes from there to the log's end.
        """
        asked_ns = now_ns()
        with reading_answers():
            answer = ask({"do": END, "latest": True, "since": str(here)})
            self.bytes_behind = int(answer.get("bytes", -1))
            sample = EndSample(asked_ns, Position.parse(str(answer["end"])), int(answer["number"]))
        self._waiting.append(sample)

    def reach(self, here: Position) -> None:
        """Record that the reader has everything before `here`."""
        while self._waiting and self._waiting[0].end <= here:
            self.reached = self._waiting.popleft()

    def clear(self) -> None:
        """Forget all answers, because the reader's positions belong to another log."""
        self._waiting.clear()
        self.reached = EndSample(0, START, self._number)
