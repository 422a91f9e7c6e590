"""Flight: limits how far a publisher may be ahead of what the nodes have merged."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from rt.errors import LimitReached, Misuse
from rt.log.write.checked import checked_count, checked_seconds
from rt.log.write.frame_gate import Room
from rt.position import Position

_GRANTS: Final = 8  # a limit is granted in this many parts
_POLL_S: Final = 0.002
_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class FlightLimit:
    """How much may be published but not merged yet.

    Threads that publish at the same time may exceed the limit by one call each, and a frame may
    exceed `bytes` by its last message. A message larger than the limit is accepted when nothing
    else is in flight. Messages of an earlier run do not count. A step is an eighth of the limit;
    messages that a full session drops count until all messages of their step are dropped or merged.

    Attributes:
        messages: how many messages; None for no limit.
        bytes: how many bytes of payloads and keys; None for no limit.
        on_full: `block` until there is room, or raise an `error`.
        timeout_s: how long to block before `LimitReached` is raised; None for ever.
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
        """Both limits; a very large number where there is no limit."""
        return _Amount(self.messages or _NO_LIMIT, self.bytes or _NO_LIMIT)


class _Amount(NamedTuple):
    """A number of messages, and of bytes of payloads and keys."""

    messages: int
    bytes: int


class _Step(NamedTuple):
    """How much was published between two marks, and where the second mark is."""

    end: Position
    size: _Amount


class _State(NamedTuple):
    """What is granted and in flight; amounts are totals since the first message ever."""

    granted: _Amount  # what may be published
    marked: _Amount  # what was published by the last mark
    steps: tuple[_Step, ...]
    flying: _Amount  # total of all steps
    dropped: object  # the drops seen at the last check


class Flight:
    """Counts what one publisher has in flight; grants room in steps of an eighth of the limit.

    Each grant marks the end of the session's log, and records how much was published since the last
    mark. Once the log up to a mark is merged or dropped, the amount recorded with the mark is no
    longer in flight. `admit` is called for each frame, but looks at what is merged only when the
    grant is used up, so most messages cost nothing.

    Threads: any thread may call `admit`. `_state` is replaced as a whole by one computed from an
    earlier one. If two threads do so at once, one mark is lost, and its messages count as in flight
    until a later mark is merged. Each thread returns what it has granted itself, which is free
    whatever the other one grants.
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
            limit: how much may be in flight.
            taken: returns how many messages and bytes were ever published.
            end: writes what is published, and returns where the session's log then ends.
            merged: returns the position up to which the nodes have merged that log.
            drops: returns an object that is replaced by another whenever more of the session is
                dropped.
            kept: given a position, returns the end of the last message before it that was not
                dropped.
        """
        self._limit = limit
        self._taken = taken
        self._end = end
        self._merged = merged
        self._drops = drops
        self._kept = kept
        published = _Amount(*taken())
        self._state = _State(published, published, (), _Amount(0, 0), drops())

    def admit(self, messages: int, size: int) -> Room:
        """Wait until there is room for `messages` messages of `size` bytes; return the room.

        Raises:
            LimitReached: there is no room, and `on_full` is `error`, or the limit's timeout has
                passed.
        """
        room = self._room(self._state.granted)  # the usual case
        if room[0] >= messages and room[1] >= size:
            return room
        timeout_s = self._limit.timeout_s if self._limit.on_full == "block" else 0.0
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            admitted, held = self._grant(messages, size)
            if admitted is not None:
                return admitted
            if end_s is not None and time.monotonic() >= end_s:
                raise LimitReached(held.messages, held.bytes)
            time.sleep(_POLL_S)

    def _room(self, granted: _Amount) -> Room:
        (messages_max, bytes_max), (messages, size) = granted, self._taken()
        return messages_max - messages, bytes_max - size

    def _grant(self, messages: int, size: int) -> tuple[Room | None, _Amount]:
        """Grant room for an eighth of the limit, or more if the messages need more.

        No more is granted than is free. Returns the room, None if the messages do not fit, and the
        total amount in flight.
        """
        most, state = self._limit.most, self._land(self._mark(self._state))
        used = _Amount(*self._taken())
        held = _sum(state.flying, _difference(used, state.marked))
        # with nothing in flight, even a message larger than the limit is admitted
        if not held.messages:
            most = _Amount(max(most.messages, messages), max(most.bytes, size))
        granted = _Amount(
            used.messages + _room(most.messages, held.messages, messages),
            used.bytes + _room(most.bytes, held.bytes, size),
        )
        self._state = state._replace(granted=granted)
        free = _difference(granted, used)
        if free.messages < messages or free.bytes < size:
            return None, held
        left = self._room(granted)  # others may have published meanwhile
        return (max(left[0], messages), max(left[1], size)), held

    def _mark(self, state: _State) -> _State:
        """Return the state with a mark after what is published."""
        used = _Amount(*self._taken())
        if used != state.marked:
            # the disk is full for now: mark later, since nothing is merged anyway
            with suppress(OSError):
                step = _Step(self._end(), _difference(used, state.marked))
                flying = _sum(state.flying, step.size)
                return state._replace(marked=used, steps=(*state.steps, step), flying=flying)
        return state

    def _land(self, state: _State) -> _State:
        """Return the state without the steps that are merged or completely dropped."""
        merged, dropped = self._merged(), self._drops()
        steps, flying = state.steps, state.flying
        if dropped is not state.dropped:
            left, before = list[_Step](), merged
            for step in steps:
                end = self._kept(step.end)
                if end > before:
                    left.append(_Step(end, step.size))
                    before = end
                else:
                    flying = _difference(flying, step.size)
            steps = tuple(left)
        while steps and steps[0].end <= merged:
            flying, steps = _difference(flying, steps[0].size), steps[1:]
        return state._replace(steps=steps, flying=flying, dropped=dropped)


def _difference(more: _Amount, less: _Amount) -> _Amount:
    return _Amount(more.messages - less.messages, more.bytes - less.bytes)


def _sum(one: _Amount, other: _Amount) -> _Amount:
    return _Amount(one.messages + other.messages, one.bytes + other.bytes)


def _room(most: int, held: int, wanted: int) -> int:
    return max(0, min(most - held, max(wanted, most // _GRANTS)))
