"""SiteWatch: a thread that monitors a pusher or puller, and logs stalled hops."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

from replicator.wire.backoff import Complaint
from rt.amounts import duration_text
from rt.errors import RtError, spoken
from rt.net.periodic_thread import PeriodicThread
from rt.node.observe.stall_clock import STALLED_S, HopProgress, Stalls

_log: Final = logging.getLogger("rt.client")
STUCK_S: Final = 30.0
PAUSE_S: Final = 1.0
_PART: Final = 100  # a check may take at most 1/100 of the time


class SiteWatch(ABC):
    """Checks once a second how far each hop has come, and records which hops are stalled.

    A hop is one transfer: a session to the nodes, or the merged log to this machine.

    Threads: any thread may call any method except `check`. One thread at a time calls `check`:
        first the caller of `start`, then the thread that `start` creates, in `_turn`. `check`
        replaces `stalled` and `at_s`; `_turn` replaces `at_s` and `_period_s`. Any thread may read
        these three. Only `check` uses `_stalls`.
    """

    def __init__(self, pause_s: float = PAUSE_S, stalled_s: float = STALLED_S) -> None:
        """Prepare; `start` begins the checks.

        Args:
            pause_s: seconds between two checks.
            stalled_s: seconds without progress after which a hop that has work is stalled.
        """
        self.stalled: Mapping[str, float] = {}  # seconds by hop
        self.at_s = time.monotonic()  # time of the last check
        self._pause_s = self._period_s = pause_s
        self._stalls = Stalls(stalled_s)
        self._complaint = Complaint(_log, "progress cannot be checked")
        self._thread = PeriodicThread("look out", self._turn)

    @abstractmethod
    def progress(self) -> Mapping[str, HopProgress]:
        """Return how far each hop has come, by name."""

    @abstractmethod
    def words(self, hop: str) -> str:
        """Return a sentence about a stalled hop."""

    def start(self) -> None:
        """Check once, then start the thread that checks regularly."""
        self.check()
        self._thread.start(self._period_s)

    def stop(self, wait_s: float | None = None) -> None:
        """Stop checking; wait at most `wait_s` for a check that is under way."""
        self._thread.stop(wait_s)

    def stuck(self) -> str:
        """Return a message if a check is more than 30 s late; "" if not."""
        late_s = time.monotonic() - self.at_s - self._period_s
        return f"progress was not checked for {duration_text(late_s)}" if late_s > STUCK_S else ""

    def check(self) -> None:
        """Check once; log when the first hop stalls, and when no hop is stalled any more."""
        now_s = time.monotonic()
        before, self.stalled = self.stalled, self._stalls.update(now_s, self.progress())
        self.at_s = now_s
        if self.stalled and not before:
            name = max(self.stalled, key=lambda each: self.stalled[each])
            extra = {"event": "stall", "hop": name}
            _log.warning(
                "stalled for %s: %s",
                duration_text(self.stalled[name]),
                self.words(name),
                extra=extra,
            )
        elif before and not self.stalled:
            _log.info("it moves again", extra={"event": "moves"})
        self.changed(before)

    def changed(self, before: Mapping[str, float]) -> None:  # noqa: B027 - most report nothing else
        """Report what has changed since the last check, when the hops in `before` were stalled."""

    def _turn(self) -> float:
        began_s = time.monotonic()
        try:
            self.check()
            self._complaint.reset()
        except (OSError, RtError) as error:
            self._complaint.say(spoken(error))
            self.at_s = began_s  # the disk may fail for a long time; a restart would not help
        self._period_s = max(self._pause_s, (time.monotonic() - began_s) * _PART)
        return self._period_s
