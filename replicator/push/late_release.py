"""LateRelease: delays archiving by a time, or until a standby has the messages."""

from collections import deque

from rt.position import START, Position


class LateRelease:
    """Remembers, file by file, at which mark each end was reached. Threads: one at a time uses it.

    A mark is anything that grows: a time, or a position of the merged log.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Position]] = deque()

    def clear(self) -> None:
        """Forget all ends, because they belong to another log."""
        self._waiting.clear()

    def passed(self, end: Position, mark: float, passed: float) -> Position:
        """Return the last end whose mark has been passed; `START` if there is none.

        Args:
            end: everything before this end could be archived now, but for the delay.
            mark: the mark of that end.
            passed: marks up to this one have been passed.

        >>> late = LateRelease()
        >>> late.passed(Position.of(0, 1, 50), 1000, 940)
        Position('0.0.0')
        >>> late.passed(Position.of(0, 2, 8), 1061, 1001)
        Position('0.1.50')
        """
        waiting, found = self._waiting, START
        if not waiting or end.file > waiting[-1][1].file:
            waiting.append((mark, end))
        while waiting and waiting[0][0] <= passed:
            found = waiting.popleft()[1]
        if found and not waiting:
            waiting.append((mark, end))
        return found
