"""Budgets: what one name has used of its rate, and of its sessions per day."""

from dataclasses import dataclass, field
from typing import Final

_SAVED_S: Final = 1.0  # unused budget that may be spent at once
_SESSION_S: Final = 86_400.0  # a session counts for a day after it was last claimed


@dataclass(slots=True)
class Budget:
    """Budget: computes how long a peer must pause until its traffic is within its rate.

    >>> budget = Budget()
    >>> budget.spend(1.5, now_s=1.0), budget.spend(0.0, now_s=1.25)
    (0.5, 0.25)
    """

    spent_s: float = 0.0  # negative while some of it is saved
    metered_s: float = 0.0

    def spend(self, cost_s: float, now_s: float) -> float:
        """Charge for traffic that takes `cost_s` seconds at the rate; return how long to pause."""
        left_s = self.spent_s - (now_s - self.metered_s)
        self.spent_s, self.metered_s = max(-_SAVED_S, left_s) + cost_s, now_s
        return max(0.0, self.spent_s)


@dataclass(slots=True)
class DaySessions:
    """DaySessions: the different sessions that a name has claimed within a day."""

    claimed_s: dict[str, float] = field(default_factory=dict)  # when each was claimed last

    def admit(self, session: str, most: int, now_s: float) -> bool:
        """Count a session; return False, without counting it, if it would be one more than `most`.

        >>> sessions = DaySessions()
        >>> [sessions.admit(each, most=1, now_s=0.0) for each in ("jfk", "lga", "jfk")]
        [True, False, True]
        """
        claimed_s = self.claimed_s
        if session not in claimed_s:
            while claimed_s and now_s - claimed_s[oldest := next(iter(claimed_s))] > _SESSION_S:
                del claimed_s[oldest]
            if len(claimed_s) >= most:
                return False
        claimed_s.pop(session, None)  # the last claimed are the last, so the oldest go first
        claimed_s[session] = now_s
        return True
