"""Source: decides what the sink is told next of one log, out of what the directory shows."""

from dataclasses import dataclass
from typing import NamedTuple

from replicator.wire import Standing
from rt.format.manifest import Archived, Rolled
from rt.position import Position


@dataclass(frozen=True, slots=True)
class Held:
    """What the source has where the sink says it stands.

    Attributes:
        size: bytes in the file the sink ends in; None if there is no such file.
        rolled_end: where that file ends, if it was rolled.
        archived: whether its bytes are gone, as the manifest says.
        crc: CRC-32 of the bytes the sink has summed up, None if they are not all there.
    """

    size: int | None
    rolled_end: int | None = None
    archived: bool = False
    crc: int | None = None


class Difference(NamedTuple):
    """Why a sink cannot be served from here: a code and words for it."""

    code: str
    words: str


def difference(standing: Standing, held: Held, *, is_copy: bool = False) -> Difference | None:
    """Return how the sink's copy differs from the source's log; None if it is its beginning.

    A sink that is ahead is `diverged` from a session's own log. What a node serves is one of
    several copies, and may be `behind` the others for a while.

    >>> difference(Standing(0, Position(192), 192, 7), Held(size=128)).words
    'the sink ends at 0.0.192, the source at 0.0.128'
    """
    end = standing.end
    if not end:
        return None
    ahead = "behind" if is_copy else "diverged"
    if held.size is None and held.rolled_end is None:
        return Difference(ahead, f"the sink ends at {end}, the source has no {end.file_name}")
    lengths = [length for length in (held.size, held.rolled_end) if length is not None]
    ours = (held.rolled_end or 0) if held.archived else min(lengths)
    if end.offset > ours:
        words = f"the sink ends at {end}, the source at {Position(end.file + ours)}"
        return Difference(ahead, words)
    if held.archived or held.crc == standing.tail_crc:
        return None
    first = Position(end - standing.tail_length)
    words = f"the bytes of the sink from {first} to {end} are not those of the source"
    return Difference("diverged", words)


@dataclass(frozen=True, slots=True)
class Looked:
    """What the directory shows of the file at the cursor.

    Attributes:
        limit: bytes of it that may be sent, whole frames or not; None if it is not there.
        rolled: its line, if it was rolled, and all of it may be sent.
        archived: its line, if its bytes are gone.
        following: the next file there is, looked for behind a rolled file only.
    """

    limit: int | None
    rolled: Rolled | None = None
    archived: Archived | None = None
    following: Position | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Send whole frames from the cursor on, none that reaches beyond the offset `limit`."""

    limit: int


@dataclass(frozen=True, slots=True)
class TellRolled:
    """Tell that the file at the cursor has ended."""

    line: Rolled


@dataclass(frozen=True, slots=True)
class TellArchived:
    """Tell that the file at the cursor has gone."""

    rolled: Rolled
    line: Archived


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the channel: what was there is not there any more."""

    words: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """Look at the next file; the cursor is there already."""


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing to send before the directory changes."""


Effect = Send | TellRolled | TellArchived | Refuse | GoOn | Wait
_GO_ON, _WAIT = GoOn(), Wait()


class Source:
    """Where one sink is to be served from. It remembers nothing that the sink does not tell."""

    __slots__ = ("cursor", "ended")

    def __init__(self, cursor: Position) -> None:
        self.cursor = cursor
        self.ended = False  # the sink knows that the file at the cursor has ended

    def sent(self, length: int) -> None:
        """Take that so many bytes of whole frames went out."""
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
            return _WAIT  # of a file that went, the rest is told as soon as it may be served
        return self._shorter(looked)

    def _go_on(self, looked: Looked) -> GoOn | Wait:
        if looked.following is None:
            return _WAIT
        self.cursor, self.ended = looked.following, False
        return _GO_ON

    def _shorter(self, looked: Looked) -> Refuse:
        ours = f"ends at {looked.limit}" if looked.limit is not None else "is gone"
        return Refuse(f"{self.cursor.file_name} {ours}, and was sent up to {self.cursor}")
