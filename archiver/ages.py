"""Ages: how long a node has seen files rolled, whatever any clock that can be set has shown."""

from collections.abc import Sequence

from archiver.decide import RolledFile
from rt.position import Position


class Ages:
    """Makes files as old as they were seen to be, where their lines say that they are younger.

    Merge times never go back. So one wrong clock, a year ahead for a second, dates whatever is
    rolled in the year that follows after its end, and by those lines alone nothing would ever age.
    What this node has seen rolled for an hour is an hour old at least; a restart counts anew.
    """

    def __init__(self) -> None:
        self._seen: dict[Position, int] = {}

    def seen(self, files: Sequence[RolledFile], now_ns: int, steady_ns: int) -> list[RolledFile]:
        """Return the files, none younger than this node has seen it rolled.

        Args:
            files: all that still have their bytes, oldest first.
            now_ns: the time that retention goes by.
            steady_ns: what a clock shows that nobody sets.
        """
        before = self._seen
        # looked up here and not in the object: who asks for a plan may be another thread
        seen = self._seen = {file.start: before.get(file.start, steady_ns) for file in files}
        shift = now_ns - steady_ns
        return [
            RolledFile(start, size, min(rolled_ns, seen[start] + shift))
            for start, size, rolled_ns in files
        ]
