"""Ages: how long a node has seen files rolled, by a clock that cannot be set."""

from collections.abc import Sequence

from archiver.decide import RolledFile
from rt.position import Position


class Ages:
    """Corrects the ages of files whose manifest lines say that they are younger than they are.

    Merge times never go back. A clock that is a year ahead for a second dates everything that is
    rolled in the following year after its end, and by those lines alone nothing would ever age. A
    file that this node has seen rolled for an hour is at least an hour old; a restart begins again.
    """

    def __init__(self) -> None:
        self._seen: dict[Position, int] = {}

    def seen(self, files: Sequence[RolledFile], now_ns: int, steady_ns: int) -> list[RolledFile]:
        """Return the files, none younger than the time for which this node has seen it rolled.

        Args:
            files: all that are not archived, oldest first.
            now_ns: the time that retention uses.
            steady_ns: a clock that cannot be set.
        """
        before = self._seen
        # A local name: another thread may ask for a plan meanwhile.
        seen = self._seen = {file.start: before.get(file.start, steady_ns) for file in files}
        shift = now_ns - steady_ns
        return [
            RolledFile(start, size, min(rolled_ns, seen[start] + shift))
            for start, size, rolled_ns in files
        ]
