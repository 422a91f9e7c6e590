"""Source: decides which part of a log to send to a sink next, from the log directory's state."""

from dataclasses import dataclass
from typing import NamedTuple

from replicator.wire.messages import BEHIND, Ack, Standing
from rt.format.manifest import Archived, Rolled
from rt.position import Position


@dataclass(frozen=True, slots=True)
class Held:
    """Held: what the source has at the positions in a Standing, the sink's report of its end.

    Attributes:
        size: how many bytes this log may serve of the file in which the sink's copy ends; None if
            this log has no such file.
        rolled_end: where this file ended here; None if it has not.
        archived: whether this file was archived here, according to the manifest.
        rolled: this log's manifest line of the sink's last rolled file; None if that file has not
            ended here.
        crc: CRC-32 of this log's bytes in the Standing's spans; None if they were archived here.
    """

    size: int | None
    rolled_end: int | None = None
    archived: bool = False
    rolled: Rolled | None = None
    crc: int | None = None


class Difference(NamedTuple):
    """Difference: why a source cannot serve a sink, as a refusal's code and a sentence."""

    code: str
    words: str

    @property
    def kept(self) -> str:
        """The sentence to add to an error if the two histories differ; "" if one side only lags."""
        return "" if self.code == BEHIND else "; both are kept"


def difference(standing: Standing, held: Held, *, is_copy: bool = False) -> Difference | None:
    """Return how the sink's copy differs from the source's log; None if the copy is a prefix.

    If the sink has more than the source, the code is `diverged` for a publisher's own log, which
    must have lost its end. It is `behind` for a node's copy, which may lag the sink for a while.

    >>> difference(Standing(0, Position(192), crc=7), Held(size=128)).words.partition(":")[0]
    'the node has it up to 0.0.192, and this log ends at 0.0.128'
    """
    if not standing.end and standing.rolled is None:
        return None
    ahead = BEHIND if is_copy else "diverged"
    return (
        _longer(standing.end, held, ahead)
        or _rolled_otherwise(standing.rolled, held.rolled, ahead)
        or _other_bytes(standing, held)
    )


def _longer(end: Position, held: Held, ahead: str) -> Difference | None:
    if held.size is None and held.rolled_end is None:
        return Difference(ahead, _longer_words(end, f"has no {end.file_name}", ahead))
    lengths = [length for length in (held.size, held.rolled_end) if length is not None]
    ours = (held.rolled_end or 0) if held.archived else min(lengths)
    if end.offset <= ours:
        return None
    here = Position(end.file + ours)
    return Difference(ahead, _longer_words(end, f"ends at {here}", ahead))


def _longer_words(end: Position, words: str, ahead: str) -> str:
    """Return the error text for a sink whose copy is longer than this log.

    If `ahead` is `BEHIND`, this log is a node's, and will catch up. Otherwise it is a publisher's
    own log, and has lost its end.
    """
    if ahead == BEHIND:
        return f"it {words} and the copy at {end}: it is behind, and another node is asked"
    return (
        f"the node has it up to {end}, and this log {words}: it was put back from an older copy, "
        "or has lost its end; go on in a session of another name"
    )


def _rolled_otherwise(theirs: Rolled | None, ours: Rolled | None, ahead: str) -> Difference | None:
    if theirs is None or (ours is not None and ours.describes(theirs)):
        return None
    name, end = theirs.file.file_name, Position(theirs.file + theirs.end)
    if ours is None:
        return Difference(ahead, f"the sink's {name} has ended, at {end}, the source's has not")
    words = f"the sink's {name} is not the source's: it ends at {end} with number {theirs.next}"
    return Difference("diverged", words)


def _other_bytes(standing: Standing, held: Held) -> Difference | None:
    if held.crc is None or held.crc == standing.crc:
        return None
    last = standing.spans[-1] if standing.spans else None
    where = f"from {last.position} to {last.end}" if last else f"before {standing.end}"
    words = f"the bytes of the sink {where} are not those of the source"
    return Difference("diverged", words)


def false_claim(ack: Ack, sent: Position, log_end: Position) -> Difference | None:
    """Return which claim of an acknowledgement is false; None if all are plausible.

    Args:
        ack: the acknowledgement.
        sent: the end of what was sent on this connection; if nothing was sent, the end of the copy
            that the sink has proved to have.
        log_end: the end of the source's log.
    """
    if not ack.durable <= ack.written <= sent:
        words = f"the sink acknowledges up to {ack.written} and was sent up to {sent}"
        return Difference("protocol", words)
    if max(ack.replicated, ack.merged) > log_end:
        end = max(ack.replicated, ack.merged)
        words = f"the sink says that it was merged or replicated up to {end}, and ends at {log_end}"
        return Difference("diverged", words)
    return None


@dataclass(frozen=True, slots=True)
class Looked:
    """Looked: the state of the file at the cursor.

    Attributes:
        limit: how many bytes of the file may be sent; the last frame in them may be incomplete.
            None if the file is missing.
        rolled: the file's `rolled` manifest line, if it was rolled and all of it may be sent.
        archived: the file's `archived` manifest line, if it was archived.
        following: the next file; searched for only if this file was rolled.
    """

    limit: int | None
    rolled: Rolled | None = None
    archived: Archived | None = None
    following: Position | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Send complete frames from the cursor on, none past the offset `limit`."""

    limit: int


@dataclass(frozen=True, slots=True)
class TellRolled:
    """Announce that the file at the cursor has ended."""

    line: Rolled


@dataclass(frozen=True, slots=True)
class TellArchived:
    """Announce that the file at the cursor was archived."""

    rolled: Rolled
    line: Archived


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the channel: bytes that were sent no longer exist."""

    words: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """Continue with the next file; the cursor is already there."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait: there is nothing to send until the directory changes."""


Effect = Send | TellRolled | TellArchived | Refuse | GoOn | Wait
_GO_ON, _WAIT = GoOn(), Wait()


class Source:
    """Source: decides what to send to one sink next, from the end of the sink's copy on."""

    __slots__ = ("caught_up", "cursor", "ended")

    def __init__(self, cursor: Position) -> None:
        self.cursor = cursor
        self.caught_up = False  # whether the sink was sent CaughtUp
        self.ended = False  # whether the sink knows that the cursor's file has ended

    def sent(self, length: int) -> None:
        """Record that `length` bytes of whole frames were sent."""
        self.cursor = Position(self.cursor + length)

    def step(self, looked: Looked) -> Effect:
        """Return what to do next; `Wait` if there is nothing to do."""
        if self.ended:
            return self._go_on(looked)
        if looked.archived is not None and looked.rolled is not None:
            self.ended = True
            self.cursor = Position(self.cursor.file + looked.rolled.end)
            return TellArchived(looked.rolled, looked.archived)
        offset = self.cursor.offset
        if looked.limit is not None and looked.limit > offset:
            return Send(looked.limit)
        if looked.rolled is not None and looked.rolled.end == offset:
            self.ended = True
            return TellRolled(looked.rolled)
        if looked.archived is not None or offset <= (looked.limit or 0):
            return _WAIT  # an archived file is announced when all of it may be served
        return self._shorter(looked)

    def _go_on(self, looked: Looked) -> GoOn | Wait:
        if looked.following is None:
            return _WAIT
        self.cursor, self.ended = looked.following, False
        return _GO_ON

    def _shorter(self, looked: Looked) -> Refuse:
        ours = f"ends at {looked.limit}" if looked.limit is not None else "is gone"
        return Refuse(f"{self.cursor.file_name} {ours}, and was sent up to {self.cursor}")
