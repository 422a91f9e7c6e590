"""Ages: how long a node has seen files rolled, by a clock that cannot be set."""

from collections.abc import Sequence

from archiver.lease import RolledFile
from rt.position import Position


class Ages:
    """Corrects the age of files whose manifest lines make them look younger than they are.

    Merge times never decrease. So after a clock has run a year ahead, if only for a second, all
    files rolled in the following year have dates in the future, and would not age. But a file that
    this node has known as rolled for an hour is at least an hour old. A restart forgets these
    times.
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
