"""DamagedFiles: the rolled files of a log that are known to be damaged and are not served."""

from collections.abc import Mapping

from rt.errors import CorruptLog
from rt.position import Position


class DamagedFiles:
    """Keeps the damaged files of a log from being served until they are replaced or archived.

    Threads: the thread that checks the log calls `bar` and `clear`, which replace `_found`; the
    thread that appends to the log calls `reopen`. Any thread may call `demand_whole` and read
    `replaced`, which changes when a file was replaced; of two changes at once one may be lost.
    """

    def __init__(self) -> None:
        # number of replaced files; readers with an open file reopen it when this grows
        self.replaced = 0
        self._found: Mapping[Position, CorruptLog] = {}

    def bar(self, damage: CorruptLog) -> None:
        """Stop serving the file in which damage was found."""
        self._found = {**self._found, damage.position.file: damage}

    def clear(self, file: Position) -> None:
        """Serve a file again, after it was replaced or archived."""
        self.reopen()
        self._found = {start: each for start, each in self._found.items() if start != file}

    def reopen(self) -> None:
        """Have readers open their files again, because a file was replaced."""
        self.replaced += 1

    def demand_whole(self, file: Position) -> None:
        """Raise `CorruptLog` if a file is known to be damaged."""
        damage = self._found.get(file)
        if damage is not None:
            raise CorruptLog(damage.path, damage.position, damage.reason)
