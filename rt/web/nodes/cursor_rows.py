"""CursorRow: a registered cursor and how far it lags, as the metrics and the page show them."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from rt.log.files.directory import LogDirectory
from rt.node.agree.view import NodeView
from rt.node.notes.registered_cursor import RegisteredCursor, cursors_of_notes
from rt.node.readers.cursor_lag import lag_of
from rt.text import printable

CURSORS_S: Final = 5.0  # finding a cursor's lag searches the log, which takes a millisecond


@dataclass(frozen=True, slots=True)
class CursorRow:
    """One cursor, as shown in the metrics and on the page.

    Attributes:
        cursor: its name.
        owner: the holder of the certificate that may use it.
        holder: the reader that uses the cursor now; "" if no reader does.
        position: everything before it is acknowledged.
        stored_ns: when it was last acknowledged, taken or moved, ns since the epoch.
        pin_bytes: the most unacknowledged bytes that are exempt from retention.
        lag_bytes: merged bytes that are not acknowledged; None if the log cannot be read.
        lag_messages: merged messages that are not acknowledged.
        lag_s: time between the merging of the first and of the last unacknowledged message.
    """

    cursor: str
    owner: str
    holder: str
    position: str
    stored_ns: int
    pin_bytes: int
    lag_bytes: int | None
    lag_messages: int | None
    lag_s: float | None


def cursor_rows(directory: str, view: NodeView) -> Sequence[CursorRow]:
    """Return a row for each registered cursor of a node, with its lag in the log in `directory`."""
    cursors = cursors_of_notes(view.notes)
    if not cursors:
        return ()
    with closing(LogDirectory(directory)) as log:
        return [_row(log, each, view) for each in cursors]


def _row(log: LogDirectory, cursor: RegisteredCursor, view: NodeView) -> CursorRow:
    lag: dict[str, Any] = {"messages": 0, "bytes": 0, "seconds": 0.0}
    if cursor.position < view.end:
        lag = lag_of(log, cursor.position, view)
    return CursorRow(
        cursor.name, cursor.owner, printable(cursor.holder), str(cursor.position),
        cursor.stored_ns, cursor.pin_bytes, lag.get("bytes"), lag.get("messages"),
        lag.get("seconds"),
    )  # fmt: skip
