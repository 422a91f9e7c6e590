"""DamagedFiles: the rolled files of a log that are known to be damaged, and are not served."""

import threading
from collections.abc import Mapping

from rt.errors import CorruptLog
from rt.position import Position


class DamagedFiles:
    """Passed from the thread that checks a log to those that serve it.

    Threads: any thread may call any method. `_lock` is held to replace `_found`, which never
    changes and is read without it. `replaced` only grows, after a file has been put in place.
    """

    def __init__(self) -> None:
        self.replaced = 0  # how often a file was put in place: who has one open opens it again
        self._found: Mapping[Position, CorruptLog] = {}
        self._lock = threading.Lock()

    def bar(self, damage: CorruptLog) -> None:
        """Serve no more of the file in which damage was found."""
        with self._lock:
            self._found = {**self._found, damage.position.file: damage}

    def clear(self, file: Position) -> None:
        """Serve a file again: it was replaced, or archived."""
        with self._lock:
            self.replaced += 1
            self._found = {start: each for start, each in self._found.items() if start != file}

    def demand_whole(self, file: Position) -> None:
        """Raise `CorruptLog` if a file is known to be damaged."""
        damage = self._found.get(file)
        if damage is not None:
            raise CorruptLog(damage.path, damage.position, damage.reason)
