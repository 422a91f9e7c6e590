"""ReaderLag: notices that a reader has lagged the end of the stream for too long."""

import time
from collections.abc import Callable
from typing import Final, Literal

from replicator.pull.end_wait import EndWait
from rt.amounts import duration_text
from rt.errors import LagError, Misuse
from rt.events import Current, Event, Lagging
from rt.log.write.checked import checked_seconds
from rt.position import Position

OnLag = Literal["raise", "notify"]
_LEAST_S: Final = 1.0  # each question costs a handshake
_QUESTIONS: Final = 3  # in the time that is allowed


def checked_lag(lag_max_s: float | None, on_lag: str, *, follow: bool, is_member: bool) -> None:
    """Raise `Misuse` unless these arguments of a subscriber are valid, and go together."""
    if on_lag not in ("raise", "notify"):
        raise Misuse(f"on_lag is {on_lag!r}; use raise or notify")
    if lag_max_s is None:
        return
    if checked_seconds(lag_max_s, "lag_max_s") < _LEAST_S:
        raise Misuse(f"lag_max_s is {lag_max_s:g}; it is at least {duration_text(_LEAST_S)}")
    if not follow:
        raise Misuse("lag_max_s is for a reader that follows; leave it out without follow")
    if is_member:
        raise Misuse("lag_max_s is not for a group: its members divide what there is to read")


class ReaderLag:
    """Asks the nodes where the stream ends, and records when the reader has reached that end.

    The lag is the age of the latest question whose answer the reader has reached, so it depends on
    no other machine's clock, and also grows while the cluster cannot answer.

    Threads: only the thread that iterates uses it; at the end, the thread that closes the reader.
    """

    def __init__(
        self,
        lag_max_s: float,
        on_lag: OnLag,
        on_event: Callable[[Event], None],
        ask: Callable[[], EndWait],
        why: Callable[[], str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin as if the end had just been read.

        Args:
            lag_max_s: the longest lag that is not reported, in seconds.
            on_lag: `raise` a `LagError`, or `notify` through `on_event`.
            on_event: called with `Lagging` once the lag is too long, and with `Current` once the
                reader is current again.
            ask: asks where the stream ends, like `StreamCopy.ask_end`.
            why: returns what the copy waits for.
            clock: returns the time in seconds, by the same clock as `EndWait.asked_s`.
        """
        self._lag_max_s, self._on_lag, self._on_event = lag_max_s, on_lag, on_event
        self._ask, self._why, self._clock = ask, why, clock
        self._current_s = clock()
        self._asked: EndWait | None = None
        self._asked_s = float("-inf")  # when the last question was asked
        self._has_copy = False  # whether the copy had the end before the reader looked
        self._is_late = False

    def check(self, position: Position) -> None:
        """Check the lag before a reader at `position` looks for messages.

        Raises:
            LagError: the lag is too long, and `on_lag` is `raise`; raised only once until the
                reader is current again.
        """
        now_s = self._clock()
        asked = self._asked
        if asked is None and now_s >= self._asked_s + self._lag_max_s / _QUESTIONS:
            asked = self._asked = self._ask()
            self._asked_s = now_s
        self._has_copy = asked is not None and asked.is_reached
        if asked is not None and asked.end is not None and position >= asked.end:
            self._reach(position)
        elif asked is not None and asked.is_over and not asked.is_reached:
            self._asked = None  # no node can answer: ask again
            asked.close()
        if not self._is_late and now_s - self._current_s > self._lag_max_s:
            self._is_late = True
            self._report(position, now_s - self._current_s)

    def read_all(self, position: Position) -> None:
        """Record that the reader, now at `position`, has read all that the last `check` found."""
        if self._has_copy:
            self._reach(position)

    def close(self) -> None:
        """Cancel the open question. Idempotent; any thread may call it when reading has ended."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.close()

    def _reach(self, position: Position) -> None:
        """Record that the reader has everything merged before the last question was asked."""
        self._has_copy = False
        self._current_s = self._asked_s
        self.close()
        if self._is_late and self._clock() - self._current_s <= self._lag_max_s:
            self._is_late = False
            self._on_event(Current(position))

    def _report(self, position: Position, seconds: float) -> None:
        end = None if self._asked is None else self._asked.end
        event = Lagging(position, end, seconds, self._why())
        if self._on_lag == "raise":
            raise LagError(event)
        self._on_event(event)
