"""LateRelease: delays archiving by a time, or until a standby has the messages."""

from collections import deque

from rt.position import START, Position


class LateRelease:
    """Delays the archiving of a session's files for a time, or until a standby has the messages.

    An end is a position up to which files could be archived. Each end gets a mark, which is a time
    in seconds or a position of the merged log. The end is released once its mark has been passed,
    which means that the delay is over, or that the standby has the merged log up to the mark. One
    end is remembered for each file.

    Threads: one thread at a time uses this.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Position]] = deque()

    def clear(self) -> None:
        """Forget all ends, because they belong to another log."""
        self._waiting.clear()

    def passed(self, end: Position, mark: float, passed: float) -> Position:
        """Return the last end whose mark has been passed; `START` if there is none.

        Args:
            end: the end up to which files could be archived now, if there were no delay.
            mark: the mark of `end`: the present time, or the end of the merged log.
            passed: all marks up to this one have been passed.

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
