"""Pace: checks many sessions repeatedly without delaying messages."""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Final

from rt.errors import spoken
from rt.log.write.sync_threads import SyncThreads, sync_threads

_log: Final = logging.getLogger(__name__)
_LOOK_S: Final = 1.0  # between two looks at all sessions

_AT_ONCE: Final = 16  # sessions; for some 0.5 ms, other threads get little of the interpreter
# After `_AT_ONCE` sessions comes a rest. The most seconds of one rest, and of all the rests in one
# look at all sessions.
_URGENT_S: Final = (0.004, 0.5)
_AT_LEISURE_S: Final = (0.05, 4.0)  # well below `rt.log.notify.shipping.FRESH_S`


def _rest_s(count: int, longest: tuple[float, float]) -> float:
    one_s, all_s = longest
    return min(one_s, all_s * _AT_ONCE / max(count, 1))


class SessionRounds:
    """Calls a function for every session once a second, or less often if there are thousands.

    The threads that sync the sessions of a process (`rt.log.write.sync_threads`) call the function
    for a few sessions at a time, since the function may wait for the sessions' disk.

    Threads: one of these threads at a time calls `turn`, which alone uses `_left` and `_rest_s`.
    The owner calls `start` and `stop`; any thread may call `await_turn`.
    """

    def __init__(self, names: Callable[[], Sequence[str]], look_at: Callable[[str], None]) -> None:
        """Prepare to call `look_at` for each session in `names()`; `names` may raise `OSError`."""
        self._names = names
        self._look_at = look_at
        self._left: deque[str] = deque()
        self._rest_s = 0.0
        self._threads: SyncThreads | None = None

    def start(self, directory: str) -> None:
        """Begin in the threads that sync the disk of `directory`, which need not exist yet."""
        while not os.path.exists(directory):
            directory = os.path.dirname(os.path.abspath(directory))
        self._threads = sync_threads(directory)
        self._threads.join(self)
        self._threads.ask(self, _LOOK_S)

    def stop(self) -> None:
        """Stop, once a look that is under way has ended."""
        if self._threads is not None:
            self._threads.leave(self)

    def await_turn(self) -> None:
        """Wait for a turn that is under way; what `look_at` skips by now is then left alone."""
        if self._threads is not None:
            self._threads.await_turn(self)

    def turn(self) -> float:
        """Look at a few sessions; return the seconds until the next turn."""
        if not self._left:
            try:
                self._left.extend(self._names())
            except OSError as error:
                _log.warning("sessions are not looked at: %s", spoken(error))
            self._rest_s = _rest_s(len(self._left), _AT_LEISURE_S)
        for _ in range(min(_AT_ONCE, len(self._left))):
            self._look_at(self._left.popleft())
        return self._rest_s if self._left else _LOOK_S


class SessionSweep:
    """SessionSweep: spreads a check of all sessions of a connection over several of its turns.

    Threads: only the loop uses it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with no session to check; `clock` is a monotonic clock, in seconds."""
        self._clock = clock
        self.is_asked = False
        self._is_urgent = False
        self._new: dict[str, None] = {}  # in order
        self._left: dict[str, None] = {}
        self._rest_s = self._due_s = 0.0

    def ask(self, *, urgent: bool) -> None:
        """Request a check of all sessions; `urgent` if some may have grown unnoticed."""
        self._is_urgent = self._is_urgent or urgent
        self.is_asked = True

    def answer(self) -> None:
        """Clear the request; call it before listing the sessions, so that later requests count."""
        self.is_asked = False

    def begin(self, new: Iterable[str], known: Collection[str]) -> None:
        """Plan which sessions to check: the `new` ones first, then those left from the last check.

        If the request is urgent, or none are left from the last check, all of `known` follow.
        """
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
        """Remove and return the sessions to check now: new ones first, then some of the others.

        The list is empty if no session is left, or if the rest after the last ones is not over.
        """
        now_s = self._clock()
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
        """Return the seconds until the next turn, at most `longest_s`.

        If no session is left to check, this is `longest_s`.
        """
        if self._new:
            return 0.0
        return min(max(0.0, self._due_s - self._clock()), longest_s) if self._left else longest_s
