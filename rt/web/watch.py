"""SiteWatch: a thread that looks at a pusher or puller, and logs hops that stall."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from rt.node.lookout import LIVE_S
from rt.node.stalls import HopProgress, Stalls

_log: Final = logging.getLogger("rt.client")
STUCK_S: Final = 30.0
_PART: Final = 100  # a look may take this part of the time


class SiteWatch:
    """Asks once a second how far each hop has come, and keeps what is stalled.

    Threads: the thread that `start` starts replaces `stalled`, `at_s` and `_period_s`, which any
        may read.
        `_stopping` is an event.
    """

    def __init__(
        self,
        progress: Callable[[], Mapping[str, HopProgress]],
        words: Callable[[str], str],
        pause_s: float = LIVE_S,
    ) -> None:
        """Look at nothing before `start`.

        Args:
            progress: returns how far each hop has come, by name.
            words: returns a sentence about a hop that is stalled.
            pause_s: between two looks.
        """
        self.stalled: Mapping[str, float] = {}
        self.at_s = time.monotonic()
        self._progress = progress
        self._words = words
        self._pause_s = self._period_s = pause_s
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

    def stuck(self) -> str:
        """Return what to say if a look is 30 s late; "" if none is."""
        late_s = time.monotonic() - self.at_s - self._period_s
        return f"it was not looked at for {late_s:.0f} s" if late_s > STUCK_S else ""

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
        while not self._stopping.wait(self._period_s):
            began_s = time.monotonic()
            self.look()
            self._period_s = max(self._pause_s, (time.monotonic() - began_s) * _PART)
