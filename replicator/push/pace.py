"""Pace: checks many sessions repeatedly without delaying messages."""

import threading
import time
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final

_AT_ONCE: Final = 16  # sessions: some 0.5 ms in which other threads get little of the interpreter
# The longest rest after them, and of all rests of one look, however many sessions there are.
_URGENT_S: Final = (0.004, 0.5)
_AT_LEISURE_S: Final = (0.05, 4.0)  # well below `rt.log.notify.shipping.FRESH_S`


def _rest_s(count: int, longest: tuple[float, float]) -> float:
    """Return how long to rest after `_AT_ONCE` of `count` sessions."""
    one_s, all_s = longest
    return min(one_s, all_s * _AT_ONCE / max(count, 1))


def paced(sessions: Collection[str], stopping: threading.Event) -> Iterator[str]:
    """Yield all of them, resting now and then until `stopping` is set."""
    rest_s = _rest_s(len(sessions), _AT_LEISURE_S)
    for turn, session in enumerate(sessions, 1):
        yield session
        if turn % _AT_ONCE == 0:
            stopping.wait(rest_s)


class SessionSweep:
    """SessionSweep: a check of all sessions of a connection, a few in each of its turns.

    Threads: any thread may call `ask` and read `is_asked`; all else belongs to the turn.
    """

    def __init__(self) -> None:
        """Begin with nothing to look at."""
        self.is_asked = False
        self._is_urgent = False
        self._new: dict[str, None] = {}  # in order
        self._left: dict[str, None] = {}
        self._rest_s = self._due_s = 0.0

    def ask(self, *, urgent: bool) -> None:
        """Request a check of all sessions; urgent if some may have grown without a notification."""
        self._is_urgent = self._is_urgent or urgent
        self.is_asked = True

    def answer(self) -> None:
        """Accept the request, before the names are read: another may come meanwhile."""
        self.is_asked = False

    def begin(self, new: Iterable[str], known: Collection[str]) -> None:
        """Plan to check all: new sessions first, then the rest of the last sweep."""
        self._new = dict.fromkeys(new)
        left = [each for each in self._left if each in known]
        if self._is_urgent:
            self._is_urgent = False
            left += known
            self._rest_s, self._due_s = _rest_s(len(left), _URGENT_S), 0.0
        elif not left:
            left += known
            self._rest_s = _rest_s(len(left), _AT_LEISURE_S)
        self._left = dict.fromkeys(left)

    def add(self, new: str) -> None:
        """Check a new session next."""
        self._new[new] = None

    def some(self) -> list[str]:
        """Take the sessions to check now: new ones, or others after a rest."""
        now_s = time.monotonic()
        if not self._new:
            if not self._left or now_s < self._due_s:
                return []
            self._due_s = now_s + self._rest_s
        names = self._new or self._left
        taken = list(islice(names, _AT_ONCE))
        for session in taken:
            del names[session]
        return taken

    def wait_s(self, longest_s: float) -> float:
        """Return how long to wait for the next turn if nothing else is pending."""
        if self._new:
            return 0.0
        return min(max(0.0, self._due_s - time.monotonic()), longest_s) if self._left else longest_s
