"""CursorRows: the registered cursors of a stream, and how far each one lags."""

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from rt.errors import CorruptLog
from rt.log.files.directory import LogDirectory
from rt.node.agree.view import NodeView
from rt.node.notes.registered_cursor import RegisteredCursor, cursors_of_notes
from rt.node.readers.cursor_lag import lag_of
from rt.text import printable

_LOOK_S: Final = 5.0  # finding a cursor's lag searches the log, which takes a millisecond


@dataclass(frozen=True, slots=True)
class CursorRow:
    """One cursor, as shown in the metrics and on the page.

    Attributes:
        cursor: its name.
        owner: the holder of the certificate that may use it.
        holder: the reader that uses it now; "" if none does.
        position: everything before it is acknowledged.
        stored_ns: when it was last acknowledged, taken or moved, ns since the epoch.
        pin_bytes: how much of what is not acknowledged is kept from retention.
        lag_bytes: merged bytes that are not acknowledged; None if the log cannot be read.
        lag_messages: the same in messages.
        lag_s: time between the merging of the first and of the last of these messages.
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


class CursorRows:
    """Reads the cursors on request, but at most every five seconds.

    Threads: any thread may call any method. `_lock` guards the other fields, and is held while the
        log is read, so that two simultaneous requests read it once.
    """

    def __init__(self, directory: str) -> None:
        """Prepare; the first request reads.

        Args:
            directory: the directory of the merged log.
        """
        self._directory = directory
        self._rows: Sequence[CursorRow] = ()
        self._looked_s = float("-inf")
        self._lock = threading.Lock()

    def rows(self, view: NodeView) -> Sequence[CursorRow]:
        """Return the cursors by name.

        Args:
            view: the node's view, with the cursors and the end of the log.
        """
        with self._lock:
            if time.monotonic() - self._looked_s >= _LOOK_S:
                self._looked_s = time.monotonic()
                self._rows = self._look(view)
            return self._rows

    def _look(self, view: NodeView) -> Sequence[CursorRow]:
        cursors = cursors_of_notes(view.notes)
        if not cursors:
            return ()
        try:
            with closing(LogDirectory(self._directory)) as log:
                return [_row(log, each, view) for each in cursors]
        except (CorruptLog, OSError):
            # keep the last rows; whatever else uses the log reports what is wrong with it
            return self._rows


def _row(log: LogDirectory, cursor: RegisteredCursor, view: NodeView) -> CursorRow:
    lag: dict[str, Any] = {"messages": 0, "bytes": 0, "seconds": 0.0}
    if cursor.position < view.end:
        lag = lag_of(log, cursor.position, view)
    return CursorRow(
        cursor.name, cursor.owner, printable(cursor.holder), str(cursor.position),
        cursor.stored_ns, cursor.pin_bytes, lag.get("bytes"), lag.get("messages"),
        lag.get("seconds"),
    )  # fmt: skip
