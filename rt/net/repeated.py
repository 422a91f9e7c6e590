"""RepeatedLines: logs the first line of each kind, and once a minute how many followed.

Otherwise a flood of connections would become a flood of log lines, which would fill the disk and
bury the one line that matters.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rt.amounts import duration_text

EVERY_S: Final = 60.0
KINDS_MAX: Final = 256  # at most this many lines a minute, and as many counts
_OTHER: Final = "other"  # the kind that further kinds are counted under


@dataclass(slots=True)
class _Window:
    """The lines of one kind that were only counted since `began_s`: their number and the last."""

    level: int
    began_s: float
    count: int = 0
    last: str = ""


class RepeatedLines:
    """Logs the first line of each kind, and once a minute how many followed, with the last one.

    Threads: any thread may call any method. `_lock` guards `_windows` and `_due_s`; the latter is
    also read without it. Lines are logged while the lock is held, so that a count never precedes
    the line it refers to.
    """

    def __init__(
        self,
        log: logging.Logger,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to log to `log`, and to log counts every `every_s` seconds by `clock`."""
        self._log = log
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: dict[str, _Window] = {}
        self._due_s = 0.0  # no window ends before this

    def warn(self, kind: str, line: str) -> None:
        """Log `line` as a warning, or count it if its kind was logged within the last minute."""
        self.say(logging.WARNING, kind, line)

    def say(self, level: int, kind: str, line: str) -> None:
        """Log `line` at `level`, or count it; lines with the same `kind` are alike."""
        now_s = self._clock()
        with self._lock:
            self._flush(now_s)
            if kind not in self._windows and len(self._windows) >= KINDS_MAX:
                kind = _OTHER
            window = self._windows.get(kind)
            if window is None:
                self._windows[kind] = _Window(level, now_s)
                self._log.log(level, "%s", line)
            else:
                window.count += 1
                window.last = line

    def flush(self) -> None:
        """Log the counts that are due; call this about once a second."""
        if (now_s := self._clock()) >= self._due_s:
            with self._lock:
                self._flush(now_s)

    def _flush(self, now_s: float) -> None:
        if now_s < self._due_s:
            return
        for kind, window in list(self._windows.items()):
            if now_s - window.began_s < self._every_s:
                continue
            if not window.count:
                del self._windows[kind]
                continue
            words, within = "%s (%d more like it within %s)", duration_text(now_s - window.began_s)
            self._log.log(window.level, words, window.last, window.count, within)
            self._windows[kind] = _Window(window.level, now_s)
        starts = (window.began_s for window in self._windows.values())
        self._due_s = min(starts, default=now_s) + self._every_s
