"""Pace: spreads messages evenly over time."""

import re
from typing import Final

from rt.errors import Misuse
from rt.names import shown

_RATE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([kM]?)(?:/s)?")
_UNITS: Final = {"": 1.0, "k": 1e3, "M": 1e6}
_PIECES_PER_S: Final = 100  # at high rates, pieces of 10 ms keep the cost of waiting low
_CATCH_UP_S: Final = 0.1  # how much time a late source may make up for; more would cause a flood


def parse_rate(text: str) -> float:
    """Return messages per second; `Misuse` if `text` is not a rate.

    >>> parse_rate("250/s"), parse_rate("1.5k"), parse_rate("2M/s")
    (250.0, 1500.0, 2000000.0)
    """
    match = _RATE.fullmatch(text)
    rate = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if rate <= 0:
        raise Misuse(f"not a rate: {shown(text)}; use messages per second, such as 250/s or 10k/s")
    return rate


class Pace:
    """Computes how long to wait between messages to keep a rate; the caller supplies the clock."""

    def __init__(self, per_s: float) -> None:
        self.piece = max(1, int(per_s / _PIECES_PER_S))  # messages to send between two waits
        self._per_s = per_s
        self._due_s: float | None = None  # when the next message is due; None before the first

    def wait_s(self, messages: int, now_s: float) -> float:
        """Return the seconds to wait before sending `messages` more; count them as sent."""
        due_s = now_s if self._due_s is None else max(self._due_s, now_s - _CATCH_UP_S)
        self._due_s = due_s + messages / self._per_s
        return max(0.0, due_s - now_s)
