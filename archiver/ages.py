"""Ages: how long a node has seen files rolled, by a clock that cannot be set."""

from collections.abc import Sequence

from archiver.lease import RolledFile
from rt.position import Position


class Ages:
    """Corrects the age of files that look younger than they are by their manifest lines.

    Merge times never decrease. If a clock runs a year ahead for a second, everything rolled in the
    following year is dated after the end of that year, and by those dates nothing would ever age.
    But a file that this node has seen rolled for an hour is at least an hour old. A restart starts
    over.
    """

    def __init__(self) -> None:
        self._seen: dict[Position, int] = {}

    def seen(self, files: Sequence[RolledFile], now_ns: int, steady_ns: int) -> list[RolledFile]:
        """Return the files with their ages, each at least as long as this node has known the file.

        Args:
            files: all files that are not archived, oldest first.
            now_ns: the time that retention uses.
            steady_ns: a clock that cannot be set.
        """
        before = self._seen
        # a local variable, because another thread may ask for a plan meanwhile
        seen = self._seen = {file.start: before.get(file.start, steady_ns) for file in files}
        shift = now_ns - steady_ns
        return [
            file._replace(rolled_ns=min(file.rolled_ns, seen[file.start] + shift)) for file in files
        ]
