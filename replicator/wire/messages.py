"""Messages: what a source and a sink say to each other (docs/WIRE.md)."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from rt.format import manifest
from rt.limits import KIB
from rt.position import START, Position

CONNECTION: Final = 0xFFFFFFFF  # instead of a channel: the whole connection
PUSH, PULL = 1, 2  # who dials: the source, or the sink
NO_SUCH_STREAM: Final = "stream"  # code of a refusal: the node does not serve it
CLOSED: Final = "closed"  # code of a refusal: the source ships the log no more, and all is well
# A node serves 1,000 sessions; one connection may bring all of them, and as many again that ended.
CHANNELS_MAX: Final = 4096
BEHIND: Final = "behind"  # code of a refusal: the copy that is offered is shorter, and follows

TAIL_BYTES_MAX: Final = 4 * KIB  # one page is what a crash most often takes
SPANS_MAX: Final = 2  # the header of the last frame, and the last page


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of either side; the server's names the one version to speak.

    Its layout is the same in every version, so that any two can refuse each other clearly.
    """

    version_min: int
    version_max: int
    direction: int
    stream: str
    software: str


@dataclass(frozen=True, slots=True)
class Open:
    """The source offers this log, and will refer to it by the number `channel`."""

    channel: int
    identity: manifest.LogIdentity


class TailSpan(NamedTuple):
    """Some bytes of a log, inside one file."""

    position: Position
    length: int

    @property
    def end(self) -> Position:
        """The position after them."""
        return Position(self.position + self.length)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the sink's copy ends, and proof of what it holds.

    A copy of anything always proves something: `crc` is never that of no bytes unless all bytes
    were archived there, and then `rolled` says what they were.
    """

    channel: int
    end: Position
    archived_to: Position = START  # the sink knows of the archived files before this
    rolled: manifest.Rolled | None = None  # the last file that has ended there
    spans: tuple[TailSpan, ...] = ()  # the last bytes that the copy holds
    crc: int = 0  # CRC-32 of these bytes
    start: str = ""  # where a copy that holds nothing yet is to begin; "" is the oldest file


class Data(NamedTuple):
    """Whole frames for `position` in the log, from one file.

    The payload is valid until more is received.
    """

    channel: int
    position: Position
    payload: memoryview


@dataclass(frozen=True, slots=True)
class RolledNotice:
    """The file ends here; the line goes into the sink's manifest unchanged."""

    channel: int
    line: manifest.Rolled


@dataclass(frozen=True, slots=True)
class ArchivedNotice:
    """A rolled file was archived; both its lines, since the sink may never have had the file."""

    channel: int
    rolled: manifest.Rolled
    line: manifest.Archived


@dataclass(frozen=True, slots=True)
class CaughtUpNotice:
    """The source has nothing more for now, after it had more than it could send at once."""

    channel: int
    position: Position


class Ack(NamedTuple):
    """How far the session has come at the sink; no position goes back on one connection."""

    channel: int
    received: Position  # written at the sink
    durable: Position  # synced at the sink
    replicated: Position  # durable on a majority of the nodes, as far as the sink knows
    merged: Position  # in the merged log
    merged_at: Position  # where that is, in the merged log


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The sender is alive."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The channel, or with `CONNECTION` the whole connection, ends here, and why."""

    channel: int
    code: str
    words: str


@dataclass(frozen=True, slots=True)
class HeadersNotice:
    """Whether publishers may write headers, to a pushing client of version 3; again if it changes.

    Attributes:
        why_not: what has to be updated first, for people to read; "" if they may.
    """

    why_not: str


Message = (
    Hello
    | Open
    | Standing
    | Data
    | RolledNotice
    | ArchivedNotice
    | CaughtUpNotice
    | Ack
    | Heartbeat
    | Refusal
    | HeadersNotice
)
