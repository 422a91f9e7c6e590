"""Dropped notices: which messages a full session dropped before the file that begins with one.

A control frame at the start of a file, of fixed size: it is written again while no node has it.
"""

import json
from typing import Any, Final, NamedTuple

from rt.errors import FrameError
from rt.events import Dropped
from rt.format.frame import (
    HEADER_BYTES,
    NUMBER_END,
    Encoded,
    FrameKind,
    Header,
    body_matches,
    encode_frame,
    parse_header,
)
from rt.position import START, Position

_BODY_BYTES: Final = 192  # five numbers of at most 19 digits, and their names
NOTICE_BYTES: Final = HEADER_BYTES + _BODY_BYTES  # below a sector, which is written whole or not
_POSITION_END: Final = 1 << 63


class DroppedSpan(NamedTuple):
    """What was dropped: places in the session's log, sequence numbers, and when."""

    begin: Position = START
    end: Position = START
    first: int = 0
    next: int = 0
    at_ns: int = 0

    def joined(self, other: "DroppedSpan") -> "DroppedSpan":
        """Return this and what was dropped right after it, as one."""
        if self.first == self.next:
            return other
        return DroppedSpan(self.begin, other.end, self.first, other.next, other.at_ns)

    def event(self, session: str, position: Position | None = None) -> Dropped:
        """Return it as readers get it."""
        return Dropped(session, *self, position)


NOTHING: Final = DroppedSpan()


def notice_frame(
    dropped: DroppedSpan, *, position: Position, sequence: int, time_ns: int, session_tag: int
) -> Encoded:
    """Encode a notice.

    Args:
        dropped: what it says.
        position: of the frame: the start of a file.
        sequence: the number of the message that follows.
        time_ns: when the file began.
        session_tag: of the session.
    """
    body = json.dumps({"dropped": [*map(int, dropped)]}, separators=(",", ":")).encode()
    return encode_frame(
        body.ljust(_BODY_BYTES), position=position, sequence=sequence, time_ns=time_ns, messages=0,
        kind=FrameKind.CONTROL, durable=position, session_tag=session_tag,
    )  # fmt: skip


def is_notice(header: Header) -> bool:
    """Whether a frame of a session has the kind and size of a notice."""
    return header.kind == FrameKind.CONTROL and header.size == NOTICE_BYTES


def decode_notice(body: bytes | memoryview) -> DroppedSpan | None:
    """Return what the body of a control frame says was dropped; None if that is nothing.

    Publishers write it, so anything may be in it: what makes no sense says nothing.
    """
    if len(body) != _BODY_BYTES:
        return None
    try:
        fields: Any = json.loads(bytes(body))["dropped"]
        begin, end, first, following, at_ns = fields
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not all(type(each) is int and 0 <= each < _POSITION_END for each in fields):
        return None
    if not (begin < end and first < following <= NUMBER_END):
        return None
    return DroppedSpan(Position(begin), Position(end), first, following, at_ns)


def parse_notice(data: bytes) -> tuple[Header, DroppedSpan] | None:
    """Decode the first bytes of a session's file; None if they are not a whole notice."""
    try:
        header = parse_header(data)
    except FrameError:
        return None
    body = data[HEADER_BYTES:NOTICE_BYTES]
    if not is_notice(header) or not body_matches(header, body):
        return None
    return header, decode_notice(body) or NOTHING
