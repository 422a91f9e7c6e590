"""Events: what a reader encounters between messages."""

from dataclasses import dataclass
from enum import StrEnum

from rt.amounts import duration_text
from rt.position import Position

_MERGED = (
    "in the merged log of the stream: read that with rt subscribe or Subscriber without a session "
    "of its own, where rt pull or a client copies it"
)


@dataclass(frozen=True, slots=True)
class Gap:
    """Part of the log no longer exists; reading continues at `end`.

    Args:
        begin: the position that would have been read next.
        end: the first readable position; the log's end if nothing readable follows.
        files: names of the missing files, at most the first 100.
        reason: from the manifest, for example `time`, `limit` or `disk`; before the first file of a
            copy, `not copied`, or `not copied: its source lacks it` if the copy was to begin
            earlier; `missing` if nothing explains the loss.
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
        if self.reason == "missing":
            how = "is missing, though it was not archived ("
        merged = f", as its messages are {_MERGED}" if self.reason == "merged" else ""
        return (
            f"the log from {self.begin} to {self.end} {how}{names}){merged}; "
            f"start from {self.end} to continue after it"
        )


@dataclass(frozen=True, slots=True)
class NewRun:
    """A session's publisher was restarted.

    Args:
        session: the session's name.
        position: where the new run begins, in the session's own log.
    """

    session: str
    position: Position


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Everything in the log has been read.

    Args:
        position: the end of the log, where the next message will be.
    """

    position: Position


@dataclass(frozen=True, slots=True)
class Lagging:
    """A reader has lagged the end of the stream for longer than its `lag_max_s`.

    Args:
        position: where the reader continues.
        end: where the stream ended when a node was last asked; None if none has answered yet.
        seconds: for at least how long the stream has had more messages after `position`.
        reason: what the reader's copy waits for.
    """

    position: Position
    end: Position | None
    seconds: float
    reason: str

    def __str__(self) -> str:
        end = "no node has said where it ends" if self.end is None else f"it ends at {self.end}"
        words = f"the end of the stream was not read for {duration_text(self.seconds)}: {end}"
        return f"{words}, and reading is at {self.position}; {self.reason}"


@dataclass(frozen=True, slots=True)
class Current:
    """A reader that was `Lagging` has read the end of the stream again.

    Args:
        position: where the reader continues.
    """

    position: Position


@dataclass(frozen=True, slots=True)
class BeyondEnd:
    """The log ends before the position to read from, so there is nothing to read yet.

    This is normal for a short while if this copy lags the copy that the position came from. If it
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
    """A frame is whole, but its messages cannot be decoded: its publisher is faulty or hostile.

    The CRCs of the frame match, so every copy has the same bytes, and no copy can repair it.

    Args:
        session: the session that published it.
        position: the frame's position, in the log being read.
        end: where reading continues after the frame.
        messages: how many messages the frame claims to hold.
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
    """The nodes decided something about a session, at this place in the merged log.

    Args:
        change: what they decided.
        session: its name.
        position: the position of the event, in the merged log.
        before: how far the session was merged before the event, a position in its own log.
        after: where merging continues, a position in the session's own log.
        time_ns: when it was decided, ns since the epoch.
        number: the number of the next message of the merged stream.
        owner: the certificate name of the publisher that opened, resumed or took it over; "" if
            unknown, or if the name is free.
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
    """A publisher reached its disk limit and dropped its oldest messages; no node has them.

    Args:
        session: the publisher's session.
        begin: where the dropped messages began, in the session's own log.
        end: where they ended, in the session's own log.
        first: sequence number of the first dropped message.
        next: the sequence number after that of the last dropped message.
        at_ns: when the last of them were dropped, ns since the epoch.
        position: the position of the notice, in the log being read; None if the publisher itself
            reports it.
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
        """How many sequence numbers were dropped, including those skipped by `skip_to`."""
        return self.next - self.first

    def __str__(self) -> str:
        where = "" if self.position is None else f" (at {self.position})"
        return (
            f"session {self.session} dropped its messages {self.first} to {self.next - 1} before "
            f"they were shipped, as its disk limit was reached{where}"
        )


@dataclass(frozen=True, slots=True)
class Superseded:
    """The log being read ended before the reader's position; another continues it from `cut`.

    Messages that were read after the cut are missing from the new log, or have other numbers there;
    publishers send them again if they still have them.

    Args:
        position: the reader's position in the log that ended.
        cut: where reading continues, in the new log.
        first: the number of the first message after the cut.
        next: the number after the last message that the old copy had.
        kept: the directory that keeps the old copy, with a list of its sequence numbers after the
            cut.
    """

    position: Position
    cut: Position
    first: int
    next: int
    kept: str

    def __str__(self) -> str:
        return (
            f"reading was at {self.position}, and the log ended at {self.cut}: its messages "
            f"{self.first} to {self.next - 1} are not part of the log that continues it; "
            f"{self.kept} keeps them; start from {self.cut} to continue"
        )


@dataclass(frozen=True, slots=True)
class Stalled:
    """A publisher's messages are waiting, and the nodes have accepted none for ten seconds.

    Args:
        session: the publisher's session.
        seconds: how long ago the nodes last accepted any of its messages.
        reason: what holds them up, as a sentence.
    """

    session: str
    seconds: float
    reason: str

    def __str__(self) -> str:
        return f"stalled for {duration_text(self.seconds)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Flowing:
    """The nodes accept messages again from a publisher that was `Stalled`.

    Args:
        session: the publisher's session.
    """

    session: str


@dataclass(frozen=True, slots=True)
class NoMatch:
    """Everything in the log was read, and no message has matched the reader's conditions so far.

    A session's name may be misspelt, or its first message may be yet to come. The event is repeated
    only when further sessions have appeared.

    Args:
        sessions: names and globs that match no session seen since `begin`; empty if the sessions
            match, but a condition on keys or payloads has excluded every message.
        nearest: the known session whose name is most similar to the first of these; "" if none is
            similar.
        begin: where reading began.
        position: the end of the log; for a member of a group, the end of what the group had
            handled.
        group: the reader's group, of which it sees only its own share; "" if it is not a member.
    """

    sessions: tuple[str, ...]
    nearest: str
    begin: Position
    position: Position
    group: str = ""

    def __str__(self) -> str:
        where = f"from {self.begin} to {self.position}, the end of the log"
        if self.group:
            handed = f"of what this member of group {self.group!r} was handed"
            where = f"{handed}, from {self.begin} to {self.position}"
        if not self.sessions:
            return f"no message {where}, matches the conditions on session, key or payload"
        names = ", ".join(self.sessions[:3]) + (", ..." if len(self.sessions) > 3 else "")
        meant = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        return f"no session {where}, matches {names}{meant}"


@dataclass(frozen=True, slots=True)
class RangeLost:
    """A member of a group lost a range: it was silent for too long, or the group or its log moved.

    Acknowledgements in this range no longer count; other members will receive it.

    Args:
        group: the group's name.
        begin: everything in the range before this position counts as handled.
        end: where the range ends.
    """

    group: str
    begin: Position
    end: Position

    def __str__(self) -> str:
        return (
            f"group {self.group}: the messages from {self.begin} to {self.end} are not this "
            "member's any more: it gave no sign of life for too long, or the group or its log moved"
        )


Event = (
    Gap
    | NewRun
    | CaughtUp
    | Lagging
    | Current
    | BeyondEnd
    | Poisoned
    | SessionEvent
    | Dropped
    | NoMatch
    | RangeLost
    | Superseded
)
