"""Session events: writes session changes into the merged log, where every reader meets them."""

from collections.abc import Callable

from rt.errors import CorruptLog
from rt.format.frame import parse_header
from rt.format.ranges import Range
from rt.format.session_event import event_frame
from rt.log.write.appender import Appender
from rt.position import Position
from sequencer.ledger.instruction import Lives, lives_of
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.life import Life


def change_sessions(
    instruction: Life | Lives,
    term: int,
    ledger: Ledger,
    appender: Appender,
    roll: Callable[[int], None],
) -> None:
    """Make session changes, except those that were decided on another state.

    Args:
        instruction: the changes.
        term: term of the instruction.
        ledger: the state, which is updated.
        appender: the merged log's appender, which writes the events.
        roll: ends the active file of ledger and merged log; takes the time in ns.

    Raises:
        CorruptLog: the merged log is damaged where the event belongs.
        OSError: the event cannot be written; repeat this when it can.
    """
    for life in lives_of(instruction):
        if ledger.changes(life):
            _change(life, term, ledger, appender, roll)


def _change(
    life: Life, term: int, ledger: Ledger, appender: Appender, roll: Callable[[int], None]
) -> None:
    merged, data = event_range(life, ledger, term)
    if ledger.needs_roll(merged.size + len(data)):
        roll(merged.time_ns)
        merged, data = event_range(life, ledger, term)  # its digest covers the position
    write_event(merged, data, appender, ledger.end)
    ledger.change(life, merged, merged.size + len(data))


def event_range(life: Life, ledger: Ledger, term: int) -> tuple[Range, bytes]:
    """Return a change's range, with its digest, and its event frame as bytes."""
    time_ns = max(life.time_ns, ledger.time_ns)
    before, after = ledger.merged_to(life.session), ledger.outcome(life)
    frame = event_frame(life.change, life.session, before, after, time_ns, owner=life.owner)
    merged = Range(
        ledger.index,
        term,
        time_ns,
        life.session,
        after,
        frame.header.size,
        ledger.number,
        0,
        0,
    )
    return merged.digested(ledger.digest, ledger.end, frame.parts[0]), b"".join(frame.parts)


def write_event(merged: Range, data: bytes, appender: Appender, position: Position) -> None:
    """Append an event at `position`, or verify that it is already there.

    Raises:
        CorruptLog: something else is there.
        OSError: the event cannot be written; repeat this when it can.
    """
    head = merged.frame(position)
    expected = b"".join(head.parts) + data
    if appender.end >= position + len(expected):
        if appender.read(position, len(expected)) != expected:
            path = f"{appender.directory}/{position.file_name}"
            raise CorruptLog(path, position, "this is not the event that was agreed on")
        return
    if appender.end > position:
        appender.cut(position)
    if not appender.is_open:
        appender.begin_file(position)
    after = appender.walk.copy()
    after.step(head.header, head.parts[1])
    inner = parse_header(data)
    after.step(inner)
    appender.append((*head.parts, data), (head.header, inner), after)
