"""Backoff: decides how long to wait between attempts, and which failures to log."""

from logging import WARNING, Logger
from random import Random
from typing import Final

FIRST_S: Final = 0.05
LAST_S: Final = 5.0


class Backoff:
    """Chooses waits, each twice the last, from 0.05 s to 5 s.

    Half of each wait is random, so that many clients do not connect at the same moment.
    """

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._next_s = FIRST_S

    def next_s(self) -> float:
        """Return how long to wait now, in seconds."""
        longest = self._next_s
        self._next_s = min(LAST_S, 2 * longest)
        return longest * (0.5 + 0.5 * self._chance.random())

    def reset(self) -> None:
        """Start over with short waits, because a connection was useful."""
        self._next_s = FIRST_S


class Complaint:
    """Complaint: logs a failure only when its reason changes."""

    def __init__(self, log: Logger, subject: str) -> None:
        """Prepare to log to `log`, in lines that begin with `subject`."""
        self._log = log
        self._subject = subject
        self._last = ""

    def say(self, reason: str, kind: str = "", level: int = WARNING) -> None:
        """Report a failed attempt; reasons with the same `kind`, if given, count as the same."""
        if (kind or reason) != self._last:
            self._last = kind or reason
            self._log.log(level, "%s: %s; trying again", self._subject, reason)

    def reset(self) -> None:
        """Forget the last reason after a success, so that the next failure is logged."""
        self._last = ""
