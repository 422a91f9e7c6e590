"""Ages: how long ago a node first saw each file rolled, by a clock that cannot be set."""

from collections.abc import Sequence

from archiver.lease import RolledFile
from rt.position import Position


class Ages:
    """Corrects the age of files whose manifest lines make them look younger than they are.

    Merge times never decrease. So if a clock runs a year ahead, even for a second, all files rolled
    in the following year are dated in the future, and would not age. But a file that this node has
    known as rolled for an hour is at least an hour old. A restart forgets when files were first
    seen.
    """

    def __init__(self) -> None:
        self._seen: dict[Position, int] = {}

    def seen(self, files: Sequence[RolledFile], now_ns: int, steady_ns: int) -> list[RolledFile]:
        """Return the files, dated no later than when this node first saw them.

        Args:
            files: all files that are not archived, oldest first.
            now_ns: the time that retention uses.
            steady_ns: a clock that cannot be set.
        """
        before = self._seen
        # a local variable, because another thread may call this meanwhile
        seen = self._seen = {file.start: before.get(file.start, steady_ns) for file in files}
        shift = now_ns - steady_ns
        return [
            file._replace(rolled_ns=min(file.rolled_ns, seen[file.start] + shift)) for file in files
        ]
