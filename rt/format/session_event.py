"""Session events: the nodes' decisions about a session, as the merged log records them.

An event is a range that adds no messages and holds one control frame. A range of a session's own
frames always holds messages, so no publisher can forge an event.
"""

import json
from typing import Any, Final

from rt.errors import FrameError, Misuse
from rt.events import SessionChange, SessionEvent
from rt.format.frame import Encoded, FrameKind, Header, encode_frame, session_tag
from rt.format.ranges import Range
from rt.names import parse_peer
from rt.position import Position

_BODY_BYTES_MAX: Final = 1024
_CHANGES: Final = frozenset(SessionChange)
_POSITION_END: Final = 1 << 63


def event_frame(
    change: SessionChange,
    session: str,
    before: Position,
    after: Position,
    time_ns: int,
    *,
    owner: str = "",
) -> Encoded:
    """Encode the control frame of an event.

    Args:
        change: what was decided.
        session: the session's name.
        before: where merging of the session stopped.
        after: where it continues.
        time_ns: merge time.
        owner: the session's new owner; left out if "".
    """
    fields = {"event": change.value, "before": int(before), "after": int(after)}
    body = json.dumps(fields | ({"owner": owner} if owner else {}), separators=(",", ":"))
    return encode_frame(
        body.encode(), position=after, sequence=0, time_ns=time_ns, messages=0,
        kind=FrameKind.CONTROL, session_tag=session_tag(session),
    )  # fmt: skip


def is_event(current: Range) -> bool:
    """Whether a range records an event instead of its session's frames."""
    return not current.messages and not current.skip


def decode_event(
    header: Header, body: bytes | memoryview, current: Range, position: Position
) -> SessionEvent | None:
    """Return the event in a control frame, whose CRC was checked; None for an unknown change.

    Args:
        header: the frame's header.
        body: the frame's body.
        current: the range that contains the frame.
        position: the frame's position in the merged log.

    Raises:
        FrameError: the frame is not a session event.
    """
    if header.kind != FrameKind.CONTROL or len(body) > _BODY_BYTES_MAX:
        raise FrameError("the frame is not a session event")
    try:
        fields: dict[str, Any] = json.loads(bytes(body))
        change, before, after = fields["event"], fields["before"], fields["after"]
        if not all(type(each) is int and 0 <= each < _POSITION_END for each in (before, after)):
            raise ValueError("a position is out of range")
        owner = parse_peer(fields["owner"]) if "owner" in fields else ""
        if change not in _CHANGES:
            return None
    except (ValueError, KeyError, TypeError, RecursionError, Misuse):
        raise FrameError("the session event cannot be read") from None
    return SessionEvent(
        SessionChange(change), current.session, position, Position(before), Position(after),
        current.time_ns, current.number, owner,
    )  # fmt: skip
