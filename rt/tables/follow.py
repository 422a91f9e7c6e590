"""Follow: keeps a table up to date with a log, one commit at a time."""

import logging
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final

from rt.errors import spoken
from rt.position import START, Position
from rt.spark.reading.plan import LogView
from rt.tables.export import Export, ExportSettings, Opener

_log: Final = logging.getLogger("rt.table")
_RETRY_S: Final = (1.0, 60.0)  # wait after the first failure, and the longest wait
_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class FollowStatus:
    """How far a table follows a log."""

    stream: str = ""  # the stream of the log; "" until there is one
    position: Position = START  # the table has all messages before this one
    end: Position = START  # the end of the log
    lag_messages: int = 0  # messages between the two
    waits_since_ns: int | None = None  # when the first of them was merged; None if there is none
    messages: int = 0  # messages added since the start
    dead: int = 0  # how many of them have payloads that do not parse
    problem: str = ""  # why nothing is being added; "" if nothing is wrong

    def lag_s(self, now_ns: int) -> float:
        """Return how long, in seconds, the first message that the table lacks has waited."""
        return 0.0 if self.waits_since_ns is None else max(0, now_ns - self.waits_since_ns) / _NS


class TableFollower:
    """Adds a log's new messages to a table, one commit at a time, at regular intervals.

    After a disk or catalog failure it tries again, from the table's own position, as after a kill.
    Damage and gaps end it, since they need an operator.

    Threads: one thread calls `turn` and `close`. Any thread may read `status`, which is replaced as
    a whole.
    """

    def __init__(self, path: str, opener: Opener, settings: ExportSettings, every_s: float) -> None:
        """Prepare to commit every `every_s` seconds; the log need not exist yet."""
        self.status = FollowStatus()
        self._path = path
        self._opener = opener
        self._settings = settings
        self._every_s = every_s
        self._undo = ExitStack()
        self._export: Export | None = None
        self._view: LogView | None = None
        self._failures = 0
        self._added = (0, 0)  # messages and dead letters added by earlier exports

    def turn(self) -> float:
        """Add due messages in one commit; return how long to wait before the next turn.

        Raises:
            GapError: messages were archived before they were added.
            CorruptLog: the messages are damaged.
            Misuse: the table belongs to another log, or another process adds to it.
        """
        try:
            export = self._opened()
            if export is None:
                self._say(f"there is no log at {self._path} yet")
                return self._every_s
            self._look(export, self.status.problem)
            is_behind = export.step()
            export.join()
        except OSError as error:
            self._failures += 1
            self._say(spoken(error))
            self.close()
            return min(_RETRY_S[1], _RETRY_S[0] * 2.0 ** min(self._failures - 1, 10))
        self._failures = 0
        if self.status.problem:
            _log.info("the table is written again", extra={"event": "table"})
        self._look(export, "")
        is_far = export.bytes_left() > self._settings.target_bytes
        return 0.0 if is_behind and is_far else self._every_s

    def close(self) -> None:
        """Close the table and the log."""
        if self._export is not None:
            done = self._export.done
            self._added = (self._added[0] + done.messages, self._added[1] + done.dead)
        self._export = self._view = None
        self._undo.close()

    def _opened(self) -> Export | None:
        if self._view is None:
            self._view = self._undo.enter_context(closing(LogView(self._path)))
        if not self._view.refresh():
            return None
        if self._export is None:
            self._export = Export(self._view, self._opener, self._settings, self._undo)
        return self._export

    def _look(self, export: Export, problem: str) -> None:
        messages, since_ns = export.unread()
        added, dead = self._added
        self.status = FollowStatus(
            export.stream, export.position, export.end(), messages, since_ns,
            added + export.done.messages, dead + export.done.dead, problem,
        )  # fmt: skip

    def _say(self, problem: str) -> None:
        if problem != self.status.problem:
            _log.warning("nothing is added to the table: %s", problem, extra={"event": "table"})
        self.status = replace(self.status, problem=problem)
