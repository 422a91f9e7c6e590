"""SiteWatch: a thread that looks at a pusher or puller, and logs hops that stall."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from rt.node.stalls import HopProgress, Stalls

_log: Final = logging.getLogger("rt.client")
_PERIOD_S: Final = 1.0
_PART: Final = 100  # a look may take this part of the time


class SiteWatch:
    """Asks once a second how far each hop has come, and keeps what is stalled.

    Threads: the thread that `start` starts replaces `stalled` and `at_s`, which any may read.
        `_stopping` is an event.
    """

    def __init__(
        self, progress: Callable[[], Mapping[str, HopProgress]], words: Callable[[str], str]
    ) -> None:
        """Look at nothing before `start`.

        Args:
            progress: returns how far each hop has come, by name.
            words: returns a sentence about a hop that is stalled.
        """
        self.stalled: Mapping[str, float] = {}
        self.at_s = time.monotonic()
        self._progress = progress
        self._words = words
        self._stalls = Stalls()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="look out", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Look once, and log what has stalled since the last look, or moves again."""
        now_s = time.monotonic()
        before, self.stalled = self.stalled, self._stalls.look(now_s, self._progress())
        self.at_s = now_s
        if self.stalled and not before:
            name = max(self.stalled, key=lambda each: self.stalled[each])
            extra = {"event": "stall", "hop": name}
            _log.warning(
                "stalled for %.0f s: %s", self.stalled[name], self._words(name), extra=extra
            )
        elif before and not self.stalled:
            _log.info("it moves again", extra={"event": "moves"})

    def _run(self) -> None:
        took_s = 0.0
        while not self._stopping.wait(max(_PERIOD_S, took_s * _PART)):
            began_s = time.monotonic()
            self.look()
            took_s = time.monotonic() - began_s
