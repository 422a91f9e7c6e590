"""Events: what a reader meets between messages."""

from dataclasses import dataclass
from enum import StrEnum

from rt.position import Position


@dataclass(frozen=True, slots=True)
class Gap:
    """Part of the log is no longer there; reading continues at `end`.

    Args:
        begin: the position that would have been read next.
        end: the first position that can be read; where the rest of the log is gone, its end.
        files: names of the missing files; at most the first 100.
        reason: from the manifest, for example `time`, `limit` or `disk`; `not copied` if this
            copy begins later, with `: its source lacks it` if it was to begin earlier; `missing`
            if nothing accounts for the loss.
        at_ns: when the last of the files was archived, ns since the epoch; 0 if unknown.
    """

    begin: Position
    end: Position
    files: tuple[str, ...]
    reason: str
    at_ns: int

    def __str__(self) -> str:
        names = ", ".join(self.files[:3]) + (", ..." if len(self.files) > 3 else "")
        not_copied = self.reason.startswith("not copied")
        how = f"was {self.reason} (" if not_copied else f"was archived ({self.reason}; "
        return (
            f"the log from {self.begin} to {self.end} {how}{names}); "
            f"start from {self.end} to continue after it"
        )


@dataclass(frozen=True, slots=True)
class NewRun:
    """A session's publisher was restarted.

    Args:
        session: its name.
        position: where the new run begins, in the session's own log.
    """

    session: str
    position: Position


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Everything that is in the log has been read.

    Args:
        position: the end of the log, where the next message will be.
    """

    position: Position


@dataclass(frozen=True, slots=True)
class BeyondEnd:
    """The log ends before the position to read from, so there is nothing to read yet.

    Normal for a short while if a copy lags the one that the position came from. If it
    lasts, the position belongs to another log, or the log lost its end.

    Args:
        position: where reading will begin.
        end: where the log ends.
    """

    position: Position
    end: Position

    def __str__(self) -> str:
        return (
            f"the log ends at {self.end}, before the start {self.position}; "
            f"start at {self.end} or before, or wait until the log reaches the start"
        )


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A frame is whole, but its messages cannot be decoded: its publisher lied, or erred.

    Its CRCs are right, so no copy has other bytes, and nothing will repair it.

    Args:
        session: that published it.
        position: of the frame, in the log that is read.
        end: where reading continues after it.
        messages: how many the frame claims to hold.
        reason: what is wrong with its columns.
    """

    session: str
    position: Position
    end: Position
    messages: int
    reason: str

    def __str__(self) -> str:
        count = f"{self.messages:,} message{'' if self.messages == 1 else 's'}"
        return (
            f"a frame of session {self.session} at {self.position} cannot be decoded: "
            f"{self.reason}; start from {self.end} to continue after its {count}"
        )


class SessionChange(StrEnum):
    """What the nodes may decide about a session."""

    ADOPTED = "adopted"
    RESET = "reset"
    FORGOTTEN = "forgotten"
    OPENED = "opened"
    CLOSED = "closed"
    RESUMED = "resumed"
    EXPIRED = "expired"
    TAKEN = "taken"


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """The nodes have decided something about a session; it has this place in the merged log.

    Args:
        change: what they decided.
        session: its name.
        position: of the event, in the merged log.
        before: up to where the session was merged until then, in its own log.
        after: where it continues, in its own log.
        time_ns: when it was decided, ns since the epoch.
        number: of the next message of the merged stream.
        owner: the name in the certificate of the publisher that opened, resumed or took it; "" if
            that is not known, or the name is free.
    """

    change: SessionChange
    session: str
    position: Position
    before: Position
    after: Position
    time_ns: int
    number: int
    owner: str = ""

    def __str__(self) -> str:
        by = f" by {self.owner}" if self.owner else ""
        meaning = _MEANINGS[self.change].format(self, by=by)
        return f"session {self.session} {meaning} (at {self.position})"


_MEANINGS = {
    SessionChange.ADOPTED: (
        "continues at {0.after}: its messages from {0.before} on were archived before they were "
        "merged, and are not in this log"
    ),
    SessionChange.RESET: (
        "begins again at {0.after}, after {0.before}: its sequence numbers may repeat"
    ),
    SessionChange.FORGOTTEN: "was forgotten, merged up to {0.before}: the name is free",
    SessionChange.OPENED: "was opened{by}",
    SessionChange.CLOSED: "was closed, merged up to {0.before}: its publisher is gone",
    SessionChange.RESUMED: "was resumed{by}, at {0.after}",
    SessionChange.EXPIRED: (
        "has expired, merged up to {0.before}: its publisher stayed away, and the name is free"
    ),
    SessionChange.TAKEN: "was taken over{by}, and continues at {0.after}, after {0.before}",
}


@dataclass(frozen=True, slots=True)
class Dropped:
    """A publisher whose disk limit was reached dropped its oldest messages; no node has them.

    Args:
        session: whose they were.
        begin: where they began, in the session's own log.
        end: where they ended there.
        first: sequence number of the first.
        next: the number after the last.
        at_ns: when the last of them were dropped, ns since the epoch.
        position: of the notice, in the log that is read; None where the publisher itself reports.
    """

    session: str
    begin: Position
    end: Position
    first: int
    next: int
    at_ns: int
    position: Position | None = None

    @property
    def messages(self) -> int:
        """How many numbers it covers; those that `skip_to` passed over count too."""
        return self.next - self.first

    def __str__(self) -> str:
        where = "" if self.position is None else f" (at {self.position})"
        return (
            f"session {self.session} dropped its messages {self.first} to {self.next - 1} before "
            f"they were shipped, as its disk limit was reached{where}"
        )


@dataclass(frozen=True, slots=True)
class RangeLost:
    """A member of a group lost a range: it gave no sign of life for too long, or the group moved.

    What it acknowledged of the range since does not count; other members are handed it.

    Args:
        group: its name.
        begin: what precedes this position in the range counts as handled.
        end: where the range ends.
    """

    group: str
    begin: Position
    end: Position

    def __str__(self) -> str:
        return (
            f"group {self.group}: the messages from {self.begin} to {self.end} are not this "
            "member's any more: it gave no sign of life for too long, or the group was moved"
        )


Event = Gap | NewRun | CaughtUp | BeyondEnd | Poisoned | SessionEvent | Dropped | RangeLost
