"""Scrubber: the thread that scrubs at a given rate."""

import logging
import threading
import time
from typing import Final, Self

from replicator.repair.scrub import Scrub, ScrubState
from rt.about import carried
from rt.errors import CorruptLog, Stopped, spoken
from rt.limits import KIB, MIB

_log: Final = logging.getLogger(__name__)
SCRUB_BYTES_S: Final = 4 * MIB  # a day for 350 GB, and under 1 % of a core
SCRUB_EVERY_S: Final = 86_400.0
_TURN_BYTES: Final = 256 * KIB
_IDLE_S: Final = 5.0  # pause when there is nothing to read
_FAILED_S: Final = 30.0  # after an error of the disk


class Scrubber:
    """Scrubber: the thread that runs a `Scrub`.

    Threads: the thread that `start` starts uses `_scrub`, except for what any thread may use of it.
        `stopping` is an event, and so is `_news`, which ends a pause. Any thread may call `suspect`
        and read `state`.
    """

    def __init__(self, scrub: Scrub, bytes_s: int, stopping: threading.Event) -> None:
        """Prepare to read so many bytes a second; 0 reads only suspected files.

        `stopping` ends it, and a running repair.
        """
        self._scrub = scrub
        self._bytes_s = bytes_s or SCRUB_BYTES_S
        self.stopping = stopping
        self._news = threading.Event()
        self._thread = threading.Thread(target=carried(self._run), name="scrub", daemon=True)

    @property
    def state(self) -> ScrubState:
        """The results so far."""
        return self._scrub.state

    def suspect(self, damage: CorruptLog) -> None:
        """Have a file checked soon, because damage was met in it."""
        self._scrub.suspect(damage)
        self._news.set()

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; a running repair is abandoned."""
        self.stopping.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                pause_s = self._turn()
                self._news.wait(pause_s)
                self._news.clear()
        except Stopped:
            pass
        finally:
            self._scrub.close()

    def _turn(self) -> float:
        try:
            has_read = self._scrub.turn(time.monotonic(), _TURN_BYTES)
        except OSError as error:
            _log.warning("rolled files cannot be read: %s; it is tried again", spoken(error))
            return _FAILED_S
        return _TURN_BYTES / self._bytes_s if has_read else _IDLE_S
