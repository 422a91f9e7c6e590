"""Dropped notices: say which messages a full session dropped just before a file begins.

A notice is a control frame at the start of the file. Its size is fixed, so that it can be rewritten
in place until a node has copied it.
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

_BODY_BYTES: Final = 192  # five numbers of at most 19 digits, with their names
# Less than a sector, which a disk writes atomically.
NOTICE_BYTES: Final = HEADER_BYTES + _BODY_BYTES
_POSITION_END: Final = 1 << 63


class DroppedSpan(NamedTuple):
    """A span of dropped messages: its positions and sequence numbers, and when it was dropped."""

    begin: Position = START
    end: Position = START
    first: int = 0
    next: int = 0
    at_ns: int = 0

    def joined(self, other: "DroppedSpan") -> "DroppedSpan":
        """Return one span that covers this one and `other`, which directly follows it."""
        if self.first == self.next:
            return other
        return DroppedSpan(self.begin, other.end, self.first, other.next, other.at_ns)

    def event(self, session: str, position: Position | None = None) -> Dropped:
        """Return the event that readers receive."""
        return Dropped(session, *self, position)


NOTHING: Final = DroppedSpan()


def notice_frame(
    dropped: DroppedSpan, *, position: Position, sequence: int, time_ns: int, session_tag: int
) -> Encoded:
    """Encode a notice.

    Args:
        dropped: the span to record.
        position: the frame's position, which is the start of a file.
        sequence: the sequence number of the message that follows.
        time_ns: when the file was begun.
        session_tag: the session's tag.
    """
    body = json.dumps({"dropped": [*map(int, dropped)]}, separators=(",", ":")).encode()
    return encode_frame(
        body.ljust(_BODY_BYTES), position=position, sequence=sequence, time_ns=time_ns, messages=0,
        kind=FrameKind.CONTROL, durable=position, session_tag=session_tag,
    )  # fmt: skip


def is_notice(header: Header) -> bool:
    """Whether a session's frame has the kind and size of a notice."""
    return header.kind == FrameKind.CONTROL and header.size == NOTICE_BYTES


def decode_notice(body: bytes | memoryview) -> DroppedSpan | None:
    """Return the span that a control frame reports as dropped; None if `body` is not valid.

    Publishers write these bytes and can write anything, so a body that makes no sense is ignored.
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
    """Return the notice in the first bytes of a session's file; None unless it is complete."""
    try:
        header = parse_header(data)
    except FrameError:
        return None
    body = data[HEADER_BYTES:NOTICE_BYTES]
    if not is_notice(header) or not body_matches(header, body):
        return None
    return header, decode_notice(body) or NOTHING
