"""Scrubber: scrubs at a given rate."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

from replicator.repair.scrub import Scrub, ScrubState
from rt.errors import CorruptLog, Stopped, spoken
from rt.limits import MIB
from rt.net.loop.chore import Chore
from rt.net.loop.event_loop import EventLoop

_log: Final = logging.getLogger(__name__)
SCRUB_BYTES_S: Final = 4 * MIB  # a day for 350 GB, and under 1 % of a core
SCRUB_EVERY_S: Final = 86_400.0
_TURN_BYTES: Final = MIB
_IDLE_S: Final = 5.0  # pause when there is nothing to read
_FAILED_S: Final = 30.0  # after an error of the disk


class Scrubber:
    """Scrubber: runs the turns of a `Scrub` in a thread of a pool.

    Threads: only the running turn uses `_scrub`, except for the methods of `Scrub` that any thread
        may call. Any thread may call `suspect` and read `state`; the owner calls `start` and
        `stop`, which sets `_is_stopping`.
    """

    def __init__(self, scrub: Scrub, bytes_s: int, give_up: Callable[[], None]) -> None:
        """Prepare to read `bytes_s` bytes a second; `SCRUB_BYTES_S` if that is 0.

        `give_up` ends a running repair.
        """
        self._scrub = scrub
        self._bytes_s = bytes_s or SCRUB_BYTES_S
        self._give_up, self._is_stopping = give_up, False
        self._chore: Chore | None = None
        self._own_pool = ThreadPoolExecutor(1, "scrub")  # begun when it is needed

    @property
    def state(self) -> ScrubState:
        """The results so far."""
        return self._scrub.state

    def suspect(self, damage: CorruptLog) -> None:
        """Have a file checked soon, because a reader found damage in it."""
        self._scrub.suspect(damage)
        if self._chore is not None:
            self._chore.ask()

    def start(self, loop: EventLoop, pool: ThreadPoolExecutor | None = None) -> None:
        """Start reading.

        Args:
            loop: the event loop that starts each turn when it is due.
            pool: runs the turns in its threads; a repair occupies one of them while it copies a
                file. None for a thread that only this scrubber uses.
        """
        self._chore = Chore(loop, self._turn, pool=pool or self._own_pool)
        self._chore.ask()

    def stop(self) -> None:
        """Stop; a running repair is abandoned."""
        self._is_stopping = True
        self._give_up()
        if self._chore is not None:
            self._chore.stop()
            self._own_pool.shutdown()
            self._scrub.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _turn(self) -> float | None:
        if self._is_stopping:
            return None
        try:
            has_read = self._scrub.turn(time.monotonic(), _TURN_BYTES)
        except Stopped:
            return None
        except OSError as error:
            _log.warning("rolled files cannot be read: %s; it is tried again", spoken(error))
            return _FAILED_S
        if has_read:
            return _TURN_BYTES / self._bytes_s
        return min(_IDLE_S, self._scrub.every_s or _IDLE_S)
