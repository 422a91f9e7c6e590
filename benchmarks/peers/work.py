"""Work: what the processes of one measurement send and receive, and how they count it."""

import array
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Self

_STAMP: Final = struct.Struct("<q")  # at the head of a message: when it was sent, in ns
_TICK_S: Final = 0.001  # above 1,000 messages a second, several are sent at once
_CHUNK_BYTES: Final = 1 << 17
_CHUNK_MESSAGES_MAX: Final = 1000


class Setup(NamedTuple):
    """A system that runs: what its clients need to reach it. It is sent to other processes."""

    system: str
    addresses: tuple[tuple[str, int], ...]
    root: str
    certs: str


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement.

    Attributes:
        name: short, for tables.
        size: bytes of a message.
        count: messages of all publishers together.
        rate: messages a second of all together; 0: as fast as they are taken.
        sessions: publishers, by session; at most eight processes share them.
        subscribers: each gets everything; at most eight processes share them.
        topic: a name that no other measurement of this system had.
    """

    name: str
    size: int
    count: int
    rate: float = 0.0
    sessions: int = 1
    subscribers: int = 1
    topic: str = "t0"

    @property
    def each(self) -> int:
        """Messages of one session."""
        return max(1, self.count // self.sessions)

    @property
    def expected(self) -> int:
        """Messages that each subscriber gets, with the one of each session that warms it up."""
        return self.sessions * (self.each + 1)

    def at(self, rate: float, seconds: float, name: str) -> Self:
        """The same at a rate, for some seconds."""
        return replace(self, name=name, rate=rate, count=max(int(rate * seconds), self.sessions))


def payload(size: int, now_ns: int) -> bytes:
    """Return a message that says when it was sent; 0 is a message that is not counted."""
    return _STAMP.pack(now_ns) + bytes(size - _STAMP.size)


def chunks(size: int, count: int) -> Iterator[list[bytes]]:
    """Yield `count` messages in lists, as fast as they are asked for."""
    chunk = min(_CHUNK_MESSAGES_MAX, max(1, _CHUNK_BYTES // size))
    while count > 0:
        yield [payload(size, time.time_ns())] * min(chunk, count)
        count -= chunk


@dataclass(slots=True)
class Pace:
    """When the next messages are due, of one process that sends at a steady rate."""

    count: int
    rate: float
    sent: int = 0
    _began: float = field(default_factory=time.perf_counter)

    def wait_s(self) -> float:
        """Seconds until the next messages are due; negative: it is late."""
        return self._began + self.sent / self.rate - time.perf_counter()

    def take(self) -> int:
        """How many to send now; 0 at the end."""
        number = min(self.count - self.sent, max(1, round(self.rate * _TICK_S)))
        self.sent += number
        return number

    @property
    def is_late(self) -> bool:
        """Whether what was sent by now took a twentieth longer than it was to take."""
        return time.perf_counter() - self._began > 1.05 * self.sent / self.rate + 0.1


@dataclass(slots=True)
class Tally:
    """What one subscriber has received."""

    expected: int
    received: int = 0
    last_ns: int = 0
    delays_ns: "array.array[int]" = field(default_factory=lambda: array.array("q"))

    def take(self, messages: Iterable[bytes]) -> bool:
        """Count messages and note how long each was on its way; whether these were the last."""
        now = time.time_ns()
        for each in messages:
            self.received += 1
            (sent_ns,) = _STAMP.unpack_from(each)
            if sent_ns:
                self.delays_ns.append(now - sent_ns)
        self.last_ns = now
        return self.received >= self.expected

    def count(self, messages: int) -> bool:
        """Count messages only; whether these were the last."""
        self.received += messages
        self.last_ns = time.time_ns()
        return self.received >= self.expected
