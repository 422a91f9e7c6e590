"""Flight: bounds how much a publisher may be ahead of what the nodes have merged."""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from rt.errors import LimitReached, Misuse
from rt.log.write.checked import checked_count, checked_seconds
from rt.log.write.frame_gate import Room
from rt.position import Position

_GRANTS: Final = 8  # in so many parts a limit is granted
_POLL_S: Final = 0.002
_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class FlightLimit:
    """The most that may be published and not merged yet.

    Threads that publish at once may exceed it by a call each, and a frame the bytes by its last
    message. A message that is larger than the limit is taken when nothing else is in flight. What
    an earlier run left is not counted. Nor is what a full session drops, once all that was granted
    or published at once with it is dropped.

    Attributes:
        messages: how many; None for no limit.
        bytes: of payloads and keys; None for no limit.
        on_full: `block` until there is room, or raise an `error`.
        timeout_s: how long to block; None for ever. A `LimitReached` says that it was too short.
    """

    messages: int | None = None
    bytes: int | None = None
    on_full: Literal["block", "error"] = "block"
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None:
            checked_seconds(self.timeout_s, "timeout_s")
        for name, value in (("messages", self.messages), ("bytes", self.bytes)):
            if value is not None:
                checked_count(value, name, 1)
        if self.messages is None and self.bytes is None:
            raise Misuse("a flight limit needs messages or bytes")
        if self.on_full not in ("block", "error"):
            raise Misuse(f"on_full is {self.on_full!r}; use block or error")

    @property
    def most(self) -> "_Amount":
        """The most of both."""
        return _Amount(self.messages or _NO_LIMIT, self.bytes or _NO_LIMIT)


class _Amount(NamedTuple):
    """So many messages, and so many bytes of payloads and keys."""

    messages: int
    bytes: int


class _Step(NamedTuple):
    """What was published from one mark to the next."""

    end: Position
    size: _Amount


class Flight:
    """What one publisher has in flight; room for an eighth of the limit is granted at a time.

    Each grant marks where the session's log ends, and how much was published since the last mark.
    Once that place is merged, or all of it dropped, so much is no longer in flight. It is asked for
    each frame, and looks at nothing that is merged while what was granted lasts; so most messages
    cost nothing.

    Threads: any thread may call `admit`. `_lock` guards everything; `_granted` is replaced as a
    whole, and read without it.
    """

    def __init__(
        self,
        limit: FlightLimit,
        taken: Callable[[], Room],
        end: Callable[[], Position],
        merged: Callable[[], Position],
        *,
        drops: Callable[[], object] = tuple,
        kept: Callable[[Position], Position] = lambda position: position,
    ) -> None:
        """Begin with nothing in flight.

        Args:
            limit: how much may be.
            taken: returns how much was ever published; it only grows.
            end: writes what is published, and returns where the session's log ends then.
            merged: returns up to where the nodes have merged it.
            drops: returns another object once more of the session was dropped.
            kept: returns where the last messages end that come before a position, and were not.
        """
        self._limit = limit
        self._taken = taken
        self._end = end
        self._merged = merged
        self._drops = drops
        self._kept = kept
        self._lock = threading.Lock()
        # Of what was ever published: allowed up to here, and up to the last mark.
        self._granted = self._marked = _Amount(*taken())
        self._steps: deque[_Step] = deque()
        self._flying = _Amount(0, 0)  # in all steps
        self._dropped = drops()  # what was looked at

    def admit(self, messages: int, size: int) -> Room:
        """Wait until so many messages of so many bytes may be published; return how much may be.

        Raises:
            LimitReached: they may not, and the limit says not to wait, or not so long.
        """
        room = self._room()  # most calls end here, and take no lock
        if room[0] >= messages and room[1] >= size:
            return room
        timeout_s = self._limit.timeout_s if self._limit.on_full == "block" else 0.0
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                room = self._room()
                if room[0] >= messages and room[1] >= size:
                    return room
                held = self._grant(messages, size)
                room = self._room()
                if room[0] >= messages and room[1] >= size:
                    return room
            if end_s is not None and time.monotonic() >= end_s:
                raise LimitReached(held.messages, held.bytes)
            time.sleep(_POLL_S)

    def _room(self) -> Room:
        (messages_max, bytes_max), (messages, size) = self._granted, self._taken()
        return messages_max - messages, bytes_max - size

    def _grant(self, messages: int, size: int) -> _Amount:
        """Make what room there is, for these messages at least; return what is in flight."""
        used, most = _Amount(*self._taken()), self._limit.most
        if used != self._marked:
            self._mark(used)
        self._land()
        held = _sum(self._flying, _difference(used, self._marked))
        if not held.messages:  # then even one that is larger than the limit goes
            most = _Amount(max(most.messages, messages), max(most.bytes, size))
        self._granted = _Amount(
            used.messages + _room(most.messages, held.messages, messages),
            used.bytes + _room(most.bytes, held.bytes, size),
        )
        return held

    def _mark(self, used: _Amount) -> None:
        with suppress(OSError):  # the disk is full for now: marked later, as nothing is merged
            step = _Step(self._end(), _difference(used, self._marked))
            self._steps.append(step)
            self._flying = _sum(self._flying, step.size)
            self._marked = used

    def _land(self) -> None:
        """Forget the steps that are merged, and those that were dropped as a whole."""
        merged = self._merged()
        if (dropped := self._drops()) is not self._dropped:
            self._dropped = dropped
            steps, self._steps, before = self._steps, deque(), merged
            for step in steps:
                end = self._kept(step.end)
                if end > before:
                    self._steps.append(_Step(end, step.size))
                    before = end
                else:
                    self._flying = _difference(self._flying, step.size)
        while self._steps and self._steps[0].end <= merged:
            self._flying = _difference(self._flying, self._steps.popleft().size)


def _difference(more: _Amount, less: _Amount) -> _Amount:
    return _Amount(more.messages - less.messages, more.bytes - less.bytes)


def _sum(one: _Amount, other: _Amount) -> _Amount:
    return _Amount(one.messages + other.messages, one.bytes + other.bytes)


def _room(most: int, held: int, wanted: int) -> int:
    return max(0, min(most - held, max(wanted, most // _GRANTS)))
