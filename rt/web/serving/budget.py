"""WebBudget: how much of a processor the requests of one network may take of the HTTP port."""

import time
from collections.abc import Callable
from typing import Final

from replicator.limits.admission import network_of
from replicator.limits.budgets import Budget

_SHARE: Final = 0.1  # of a processor
_REQUEST_S: Final = 0.001  # of it, for what is not measured: reading a request, sending headers
_BYTES_S: Final = 200e6  # and for the bytes of an answer
# So much is the most that a request is held. Of 64 connections, 64 requests a second are left then,
# and a probe that comes from the same address as a flood gets its answer in time.
_HELD_S: Final = 1.0
_NETWORKS_MAX: Final = 1024  # those beyond them share one


class WebBudget:
    """Charges networks for answers, since those who ask over HTTP need not have a name.

    Threads: the event loop's alone.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Charge nothing yet."""
        self._clock = clock
        self._spent: dict[str, tuple[Budget, float]] = {}  # and what the last answer took

    def ask(self, host: str) -> float:
        """Charge for a question what the last answer took; return for how long to hold it."""
        budget, expected_s = self._of(host)
        return min(_HELD_S, max(0.0, budget.spend(expected_s, self._clock()) - expected_s))

    def answered(self, host: str, seconds: float, size: int) -> None:
        """Learn what an answer took: seconds of a processor, and bytes."""
        budget, _ = self._of(host)
        budget.spent_s = min(budget.spent_s, _HELD_S)
        cost_s = (seconds + _REQUEST_S + size / _BYTES_S) / _SHARE
        self._spent[self._key(host)] = budget, cost_s

    def _of(self, host: str) -> tuple[Budget, float]:
        return self._spent.setdefault(self._key(host), (Budget(), _REQUEST_S / _SHARE))

    def _key(self, host: str) -> str:
        try:
            network = network_of(host)
        except ValueError:  # it has gone, or came over something else than IP
            return ""
        is_known = network in self._spent or len(self._spent) < _NETWORKS_MAX
        return network if is_known else ""
