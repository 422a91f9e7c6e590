"""Errors: each class says whose fault it was; each message says what, where and what to do."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rt.amounts import duration_text
from rt.position import Position

if TYPE_CHECKING:  # making these classes takes a fifth of what `rt --help` imports
    from rt.events import Dropped, Gap, Lagging, Poisoned, Superseded


def spoken(error: BaseException) -> str:
    """Return an error's message for people, without the number of an operating system error.

    >>> spoken(FileNotFoundError(2, "No such file or directory", "x.log"))
    'x.log: no such file or directory'
    """
    if not isinstance(error, OSError) or not error.strerror or isinstance(error, FlushTimeout):
        return str(error) or type(error).__name__
    reason = error.strerror[:1].lower() + error.strerror[1:]
    if isinstance(error, FileExistsError):
        reason += " already, and is not what is wanted there; name another"
    return reason if error.filename is None else f"{_name(error.filename)}: {reason}"


def _name(filename: object) -> str:
    name = filename.decode(errors="replace") if isinstance(filename, bytes) else str(filename)
    return name or "''"


class RtError(Exception):
    """Base of every error this package raises on purpose; an `OSError` is passed on unchanged."""


class Misuse(RtError, ValueError):  # noqa: N818 - the field's word, not a suffix
    """The caller asked for something impossible: an invalid name, a type that is not accepted."""


class PeerError(RtError):
    """The other side of a connection broke the protocol; nothing of that message was accepted."""


# refusal code: another log already uses the session's name; waiting does not help
NAME_TAKEN: Final = "name-taken"
SEALED: Final = "sealed"  # refusal code: the log has ended, and another may continue it
OTHER_LOG: Final = "other-log"  # refusal code: the name is the same, the id of the log is not
NO_HEADERS: Final = "headers"  # refusal code of headers that not all nodes can read


class Refused(RtError):  # noqa: N818
    """A limit or policy forbids a request: wrong role, another's session, disk below its reserve.

    `code` is a short word for programs, such as `corrupt`, `diverged`, `other-log` or `busy`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Stopped(RtError):  # noqa: N818
    """The object is closed, or another thread ended the wait."""


class WriterFailed(RtError):  # noqa: N818
    """A write or sync of our own log failed; the writer has ended and accepts nothing more."""


class RemovedFromCluster(WriterFailed):
    """This node was removed from its cluster; it has recorded that, and does not start again."""


class DiskFailed(RtError, OSError):  # noqa: N818
    """A sync failed, or a partial write could not be removed; the operation is never retried.

    After a failed sync the kernel may drop what it could not write, and report the next sync as
    successful.
    """


class CorruptLog(RtError):  # noqa: N818
    """The log on disk is not what its writer wrote; the file is kept, and reading stops there."""

    def __init__(self, path: str, position: Position, reason: str) -> None:
        super().__init__(path, position, reason)
        self.path = path
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: corrupt at {self.position}: {self.reason}; the file is kept"


class PoisonError(CorruptLog):
    """The messages of a frame cannot be decoded; `event` says which frame, and where it ends.

    To continue after it, start from `event.end`, or read with `on_poison="notify"`.
    """

    def __init__(self, path: str, event: "Poisoned") -> None:
        super().__init__(path, event.position, event.reason)
        self.args = (path, event)
        self.event = event

    def __str__(self) -> str:
        return f"{self.path}: {self.event}"


class ReplacedLog(CorruptLog):
    """The log being read is gone; an older copy of it or a new log has taken its place.

    Positions and numbers after `position` may now belong to other messages. To read those, start
    again from `earliest` or from a position that you trust.
    """

    def __str__(self) -> str:
        return (
            f"{self.path}: the log lost its end or was put back from a backup after it was read up "
            f"to {self.position}: {self.reason}; what is there now may have the numbers of "
            "messages that were read before: start again where you trust it"
        )


class Diverged(CorruptLog):
    """Two copies of one log differ; the process that finds this stops, and keeps both copies."""


class SessionDiverged(CorruptLog):
    """A node's copy of a session differs from the bytes the nodes agreed on, and is set aside.

    The publisher sent different bytes to different nodes: it lost what it had not synced, it was
    restored from a backup, or it is hostile.
    """

    def __init__(self, path: str, session: str, position: Position, reason: str) -> None:
        super().__init__(path, position, reason)
        self.args = (path, session, position, reason)
        self.session = session

    def __str__(self) -> str:
        return (
            f"session {self.session}: {self.path} differs at {self.position} from what the nodes "
            f"agreed on: {self.reason}"
        )


class FrameError(RtError):
    """Bytes are not a valid frame; the caller of the parser adds where they came from."""


class ManifestError(RtError):
    """A manifest line is damaged or contradicts another; the caller adds which log it is in."""


_HERE: Final = ("written", "synced")  # levels that are reached without any node


class FlushTimeout(RtError, TimeoutError):  # noqa: N818
    """A level was not reached in time; the messages stay in the log, and shipping continues.

    `reason` says what delays them, according to the process that ships the session; "" if
    unknown.
    """

    def __init__(self, reached: str, wanted: str, timeout_s: float, reason: str = "") -> None:
        super().__init__(reached, wanted, timeout_s, reason)
        self.reached = reached.lower()
        self.wanted = wanted.lower()
        self.timeout_s = timeout_s
        self.reason = reason

    def __str__(self) -> str:
        within = duration_text(self.timeout_s)
        late = f"{self.wanted} was not reached within {within}, only {self.reached}"
        if self.wanted in _HERE:
            return f"{late}; the messages stay in the log"
        if self.reason:
            return f"{late}: {self.reason}; the messages stay in the log"
        return f"{late}; the messages stay in the log and go on shipping; is `rt push` running?"


class Fenced(RtError):  # noqa: N818
    """Another reader took over a registered cursor; the former reader can no longer acknowledge."""

    def __init__(self, cursor: str, reason: str) -> None:
        super().__init__(cursor, reason)
        self.cursor = cursor
        self.reason = reason

    def __str__(self) -> str:
        return f"cursor {self.cursor!r}: {self.reason}; open it again to read on"


class ClaimLost(RtError):  # noqa: N818
    """A member's range went to another member of its group; its acknowledgement is refused.

    Attributes:
        group: the group's name.
        position: the refused acknowledgement covers everything in the range before this position.
        may_count: whether an earlier request, whose answer was lost, may have acknowledged that.
    """

    def __init__(self, group: str, position: Position, *, may_count: bool) -> None:
        super().__init__(group, position, may_count)
        self.group = group
        self.position = position
        self.may_count = may_count

    def __str__(self) -> str:
        counts = "it may have counted before" if self.may_count else "it does not count"
        return (
            f"group {self.group!r}: the range before {self.position} is not this member's any "
            f"more, and {counts}; what does not count is handed out again"
        )


class LimitReached(RtError):  # noqa: N818
    """A publisher is as far ahead of the nodes as its limit allows; nothing was published."""

    def __init__(self, messages: int, size: int) -> None:
        super().__init__(messages, size)
        self.messages = messages
        self.size = size

    def __str__(self) -> str:
        return (
            f"{self.messages} messages of {self.size} bytes are published and not merged yet, as "
            "many as the flight limit allows; publish again when the nodes have merged some"
        )


class SessionFull(RtError, OSError):  # noqa: N818
    """A session's files hold as much as its limit allows; nothing was accepted."""

    def __init__(self, session: str, held: int, limit: int, unit: str = "bytes") -> None:
        super().__init__(session, held, limit, unit)
        self.session = session
        self.held = held
        self.limit = limit
        self.unit = unit  # of both: "bytes" or "messages"

    def __str__(self) -> str:
        return (
            f"the files of session {self.session!r} hold {self.held} of {self.limit} {self.unit}; "
            "room returns as the nodes merge them and the pusher archives them"
        )


class MessagesDropped(RtError):  # noqa: N818
    """A full session dropped messages before they were shipped, so no node will confirm them.

    `dropped` lists them in order; messages in between were kept.
    """

    def __init__(self, dropped: "Sequence[Dropped]") -> None:
        super().__init__(dropped)
        self.dropped = tuple(dropped)

    def __str__(self) -> str:
        first, last = self.dropped[0], self.dropped[-1]
        count = sum(each.messages for each in self.dropped)
        return (
            f"session {first.session} dropped {count} messages between number {first.first} and "
            f"{last.next - 1} before they were shipped, as its disk limit was reached; use "
            "on_full='block' or a larger limit to keep them"
        )


class GapError(RtError):
    """Messages were archived before they were read; `gap` says which, and where to continue."""

    def __init__(self, gap: "Gap") -> None:
        super().__init__(gap)
        self.gap = gap

    def __str__(self) -> str:
        return str(self.gap)


class SupersededError(RtError):
    """The log being read ended before the reader's position; another continues it, see `event`.

    Iterating again continues in that log, from the position where it branches off.
    """

    def __init__(self, event: "Superseded") -> None:
        super().__init__(event)
        self.event = event

    def __str__(self) -> str:
        return str(self.event)


class LagError(RtError):
    """A reader has lagged the end of the stream for longer than its limit; `lag` has details.

    Iterating again continues. The error is raised again only after the reader was current in
    between.
    """

    def __init__(self, lag: "Lagging") -> None:
        super().__init__(lag)
        self.lag = lag

    def __str__(self) -> str:
        return str(self.lag)
