"""BridgeWatch: asks the source regularly, to learn how far a bridge lags."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from rt.bridge.bridge import Bridge
from rt.client.end_samples import EndSamples
from rt.errors import RtError, spoken
from rt.net.exchange import Fields
from rt.net.periodic_thread import PeriodicThread
from rt.text import printable

_log: Final = logging.getLogger(__name__)
EVERY_S: Final = 5.0
_STOP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class BridgeLag:
    """How far a bridge had come when the source was last asked.

    Attributes:
        complete_as_of_ns: the target has all that the source had merged by this time; 0 if unknown.
        behind: the most messages that the target may have lacked, including those that are never
            forwarded.
        error: why the source did not answer; "" if it did.
    """

    complete_as_of_ns: int = 0
    behind: int = 0
    error: str = ""

    def behind_s(self, now_ns: int) -> float:
        """Return by how many seconds the target may lag the source; infinite if unknown."""
        if not self.complete_as_of_ns:
            return float("inf")
        return max(0.0, (now_ns - self.complete_as_of_ns) / 1e9)


class BridgeWatch:
    """Asks where the source's log ends, and tracks whether the target has merged up to there.

    Threads: this object's own thread calls `turn`; `lag` is replaced as a whole, and any thread may
    read it.
    """

    def __init__(
        self, bridge: Bridge, ask: Callable[[Fields], Fields], every_s: float = EVERY_S
    ) -> None:
        """Prepare; nothing is asked before `start`.

        Args:
            bridge: the bridge.
            ask: sends a request to the source's cluster, and returns the answer.
            every_s: seconds between two questions.
        """
        self.bridge = bridge
        self.lag = BridgeLag()
        self._ask, self._every_s = ask, every_s
        self._samples = EndSamples(bridge.next_number)
        self._thread = PeriodicThread("bridge watch", self._next)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.stop(_STOP_S)

    def turn(self) -> None:
        """Ask once and update `lag`, which holds any error; log the error if it is a new one."""
        error = ""
        try:
            self._samples.sample(self._ask, time.time_ns)
        except (RtError, OSError) as failure:
            error = printable(spoken(failure))
        if error and error != self.lag.error:
            _log.warning("how far the bridge is behind is not known: %s", error)
        self._samples.reach(self.bridge.arrived())
        reached = self._samples.reached.at_ns
        self.lag = replace(
            self.lag, complete_as_of_ns=reached, behind=self._samples.behind, error=error
        )

    def _next(self) -> float:
        self.turn()
        return self._every_s
