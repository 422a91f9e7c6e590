"""WebBudget: limits the processor time that the requests of one network may cost."""

import time
from collections.abc import Callable
from typing import Final

from replicator.limits.admission import network_of
from replicator.limits.budgets import Budget

_SHARE: Final = 0.1  # share of a processor
# processor time of a request that is not measured: reading it, sending headers
_REQUEST_S: Final = 0.001
_BYTES_S: Final = 200e6  # bytes a second at which an answer is sent
# The longest that a request is delayed. With 64 connections, 64 requests a second remain possible,
# and a probe from the same address as a flood gets its answer in time.
_HELD_S: Final = 1.0
_NETWORKS_MAX: Final = 1024  # further networks share one budget


class WebBudget:
    """Charges whole networks for answers, since HTTP clients may be anonymous.

    Threads: only the event loop uses it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with nothing charged."""
        self._clock = clock
        self._spent: dict[str, tuple[Budget, float]] = {}  # budget, and the cost of the last answer

    def ask(self, host: str) -> float:
        """Charge a network the cost of its last answer; return the seconds to delay its request."""
        budget, expected_s = self._of(host)
        return min(_HELD_S, max(0.0, budget.spend(expected_s, self._clock()) - expected_s))

    def answered(self, host: str, seconds: float, size: int) -> None:
        """Record the cost of an answer: processor seconds, and its size in bytes."""
        budget, _ = self._of(host)
        budget.spent_s = min(budget.spent_s, _HELD_S)
        cost_s = (seconds + _REQUEST_S + size / _BYTES_S) / _SHARE
        self._spent[self._key(host)] = budget, cost_s

    def _of(self, host: str) -> tuple[Budget, float]:
        return self._spent.setdefault(self._key(host), (Budget(), _REQUEST_S / _SHARE))

    def _key(self, host: str) -> str:
        try:
            network = network_of(host)
        except ValueError:  # the client is gone, or did not connect over IP
            return ""
        is_known = network in self._spent or len(self._spent) < _NETWORKS_MAX
        return network if is_known else ""
