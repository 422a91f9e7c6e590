"""SiteWatch: a thread that looks at a pusher or puller, and logs hops that stall."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

from replicator.backoff import Complaint
from rt.errors import RtError, spoken
from rt.node.lookout import LIVE_S
from rt.node.stalls import HopProgress, Stalls

_log: Final = logging.getLogger("rt.client")
STUCK_S: Final = 30.0
_PART: Final = 100  # a look may take this part of the time


class SiteWatch(ABC):
    """Asks once a second how far each hop has come, and keeps what is stalled.

    Threads: any thread may call any method but `look`, which one does at a time: the caller before
        `start`, the thread that it starts after it. A look replaces `stalled`, `at_s` and
        `_period_s`, which any may read, and alone uses `_stalls`. `_stopping` is an event.
    """

    def __init__(self, pause_s: float = LIVE_S) -> None:
        """Look at nothing before `start`; then with so many seconds between two looks."""
        self.stalled: Mapping[str, float] = {}  # by hop, for how many seconds
        self.at_s = time.monotonic()  # of the last look
        self._pause_s = self._period_s = pause_s
        self._stalls = Stalls()
        self._complaint = Complaint(_log, "what is shipped or copied cannot be looked at")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="look out", daemon=True)

    @abstractmethod
    def progress(self) -> Mapping[str, HopProgress]:
        """Return how far each hop has come, by name."""

    @abstractmethod
    def words(self, hop: str) -> str:
        """Return a sentence about a hop that is stalled."""

    def start(self) -> None:
        """Look once, and begin to look again and again."""
        self.look()
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
        before, self.stalled = self.stalled, self._stalls.look(now_s, self.progress())
        self.at_s = now_s
        if self.stalled and not before:
            name = max(self.stalled, key=lambda each: self.stalled[each])
            extra = {"event": "stall", "hop": name}
            _log.warning(
                "stalled for %.0f s: %s", self.stalled[name], self.words(name), extra=extra
            )
        elif before and not self.stalled:
            _log.info("it moves again", extra={"event": "moves"})

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            began_s = time.monotonic()
            try:
                self.look()
                self._complaint.reset()
            except (OSError, RtError) as error:
                self._complaint.say(spoken(error))
                self.at_s = began_s  # the disk may fail for long; a restart would not help
            self._period_s = max(self._pause_s, (time.monotonic() - began_s) * _PART)
