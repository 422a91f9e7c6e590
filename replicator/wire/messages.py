"""Messages: what a source and a sink send each other (docs/WIRE.md)."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from rt.format import manifest
from rt.limits import KIB
from rt.position import START, Position

CONNECTION: Final = 0xFFFFFFFF  # instead of a channel: the whole connection
PUSH, PULL = 1, 2  # who dials: the source, or the sink
NO_SUCH_STREAM: Final = "stream"  # code of a refusal: the node does not serve it
CLOSED: Final = "closed"  # code of a refusal: the source no longer ships the log, as intended
# A node serves 1,000 sessions; one connection may bring all of them, and as many again that ended.
CHANNELS_MAX: Final = 4096
BEHIND: Final = "behind"  # code of a refusal: the offered log lags the copy, and will catch up
RESERVE: Final = "reserve"  # code of a refusal: the disk is nearly full, which its owner logs
PASSING: Final = frozenset({BEHIND, RESERVE})  # codes of refusals that end by themselves

TAIL_BYTES_MAX: Final = 4 * KIB  # one page is what a crash most often takes
SPANS_MAX: Final = 2  # the header of the last frame, and the last page


@dataclass(frozen=True, slots=True)
class Hello:
    """Hello: the first message of either side; the server's Hello names the one version to speak.

    Its layout is the same in every version, so that any two versions can refuse each other clearly.
    """

    version_min: int
    version_max: int
    direction: int
    stream: str
    software: str


@dataclass(frozen=True, slots=True)
class Open:
    """Open: the source offers this log, to be referred to by the number `channel`."""

    channel: int
    identity: manifest.LogIdentity


class TailSpan(NamedTuple):
    """TailSpan: some bytes of a log, inside one file."""

    position: Position
    length: int

    @property
    def end(self) -> Position:
        """The position after the last byte."""
        return Position(self.position + self.length)


@dataclass(frozen=True, slots=True)
class Standing:
    """Standing: where the sink's copy ends, and proof of what the copy holds.

    `crc` is the CRC-32 over the bytes in `spans`. `rolled` is the manifest line of the copy's last
    rolled file. A copy that is not empty has spans, unless its bytes were archived; then `rolled`
    alone is the proof.
    """

    channel: int
    end: Position
    archived_to: Position = START  # the sink knows of the archived files before this
    rolled: manifest.Rolled | None = None  # the copy's last ended file
    spans: tuple[TailSpan, ...] = ()  # the copy's last bytes
    crc: int = 0  # CRC-32 of these bytes
    start: str = ""  # where an empty copy is to begin; "" is the oldest file


class Data(NamedTuple):
    """Data: complete frames at `position` in the log, from one file.

    The payload is valid until more is received.
    """

    channel: int
    position: Position
    payload: memoryview


@dataclass(frozen=True, slots=True)
class RolledNotice:
    """RolledNotice: a file has ended; the sink adds `line` to its manifest unchanged."""

    channel: int
    line: manifest.Rolled


@dataclass(frozen=True, slots=True)
class ArchivedNotice:
    """ArchivedNotice: a file was archived; the sink may need both of its manifest lines."""

    channel: int
    rolled: manifest.Rolled
    line: manifest.Archived


@dataclass(frozen=True, slots=True)
class CaughtUpNotice:
    """CaughtUpNotice: the source has sent all that it has for now."""

    channel: int
    position: Position


class Ack(NamedTuple):
    """Ack: how far a session has come at the sink; on one connection no position decreases."""

    channel: int
    written: Position  # written at the sink, perhaps not yet synced
    durable: Position  # synced at the sink
    replicated: Position  # durable on a majority of the nodes, as far as the sink knows
    merged: Position  # in the merged log
    merged_at: Position  # the position of `merged` in the merged log


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The sender is alive."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal: ends a channel, or the connection if `channel` is `CONNECTION`, with a reason."""

    channel: int
    code: str
    words: str


@dataclass(frozen=True, slots=True)
class HeadersNotice:
    """HeadersNotice: whether publishers may write headers; sent to pushers, since version 3.

    A node sends it again when the answer changes.

    Attributes:
        why_not: what must be updated first, as text; "" if publishers may write headers.
    """

    why_not: str


@dataclass(frozen=True, slots=True)
class SuccessionNotice:
    """SuccessionNotice: an authority's statement that another log continues a log that has ended.

    Part of the protocol since version 4.

    Each side sends all statements that it knows, right after the greeting.

    Attributes:
        text: the statement, as `rt.net.authority.succession.Succession.signed` returns it.
    """

    text: str


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
    | SuccessionNotice
)
