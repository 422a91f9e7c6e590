"""RecentEvents: the latest lines of this process's log, for the page."""

import logging
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

from rt.text import printable

KEPT: Final = 100  # of each kind: ordinary lines, and warnings and errors
_WORDS_MAX: Final = 400
_OURS: Final = ("rt", "replicator", "sequencer", "archiver")


@dataclass(slots=True)
class _Kept:
    """A line, its number, and how many lines of the same kind followed it directly."""

    record: logging.LogRecord
    number: int
    more: int = 0


class RecentEvents(logging.Handler):
    """Keeps lines logged at INFO and above; consecutive lines of one kind are kept as one.

    Warnings are kept apart, so that ordinary lines do not push them out. Lines of statistics are
    not kept, since the page shows the figures.

    Threads: any thread calls `emit`, under the handler's own lock, which `latest` takes too.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._ordinary: deque[_Kept] = deque(maxlen=KEPT)
        self._warnings: deque[_Kept] = deque(maxlen=KEPT)
        self._number = 0
        self.lowered: list[logging.Logger] = []  # loggers whose level is INFO only for the page

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, if one of our loggers made it."""
        if record.name.partition(".")[0] not in _OURS or _event_of(record) == "statistics":
            return
        kept = self._warnings if record.levelno >= logging.WARNING else self._ordinary
        last = kept[-1] if kept else None
        if last is not None and (last.record.name, last.record.msg) == (record.name, record.msg):
            last.record, last.more = record, last.more + 1
        else:
            self._number += 1
            kept.append(_Kept(record, self._number))

    def latest(self, count: int) -> list[dict[str, Any]]:
        """Return the latest `count` events, newest first."""
        with self.lock or nullcontext():
            kept = [*self._ordinary, *self._warnings]
            kept.sort(key=lambda each: each.number)
            return [_event(each) for each in reversed(kept[-count:])]


def keep_events() -> RecentEvents:
    """Keep the log's lines from now on, whatever level is shown on stderr."""
    events = RecentEvents()
    logging.getLogger().addHandler(events)
    for name in _OURS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and logger.getEffectiveLevel() > logging.INFO:
            logger.setLevel(logging.INFO)
            events.lowered.append(logger)
    return events


def forget_events(events: RecentEvents) -> None:
    """Stop keeping lines, and restore the levels of loggers that `keep_events` changed."""
    logging.getLogger().removeHandler(events)
    for logger in events.lowered:
        logger.setLevel(logging.NOTSET)


def _event_of(record: logging.LogRecord) -> str:
    return str(getattr(record, "event", ""))


def _event(kept: _Kept) -> dict[str, Any]:
    record = kept.record
    return {
        "key": kept.number, "more": kept.more, "at_ns": int(record.created * 1e9),
        "level": record.levelname.lower(), "event": _event_of(record),
        "text": printable(record.getMessage())[:_WORDS_MAX],
    }  # fmt: skip
