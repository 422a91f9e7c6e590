"""Backoff: how long to wait before the next try, longer each time, never two alike."""

from logging import Logger
from random import Random
from typing import Final

FIRST_S: Final = 0.05
LAST_S: Final = 5.0


class Backoff:
    """Doubles from 0.05 s to 5 s; a random half of it keeps many clients from coming at once."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._next_s = FIRST_S

    def next_s(self) -> float:
        """Return the seconds to wait now."""
        longest = self._next_s
        self._next_s = min(LAST_S, 2 * longest)
        return longest * (0.5 + 0.5 * self._chance.random())

    def reset(self) -> None:
        """Take note of a success."""
        self._next_s = FIRST_S


class Complaint:
    """Says why a connection cannot be had when the reason changes, and not at every try."""

    def __init__(self, log: Logger, what: str) -> None:
        """Say it to `log`, of `what`."""
        self._log = log
        self._what = what
        self._said = ""

    def say(self, reason: str) -> None:
        """Take a failed try."""
        if reason != self._said:
            self._log.warning("%s: %s; trying on", self._what, reason)
            self._said = reason

    def reset(self) -> None:
        """Take note of a success."""
        self._said = ""
