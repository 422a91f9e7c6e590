"""WaitingSessions: the sessions of which a leader may have something to merge."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from rt.position import Position
from sequencer.planning.holdings import Holdings

_REST_TICKS: Final = 100  # within which each session at rest is looked at again


class WaitingSessions:
    """Those that a plan looks at, and those at rest, in which the last look found nothing to merge.

    A session whose last file has no frame is always held further than it is merged, and so may be
    one that meets an obstacle. A look takes 50 us or more, and there may be a thousand: a look at
    all of them for each instruction would delay every other session.
    """

    def __init__(self, holdings: Holdings) -> None:
        """Begin with none."""
        self._holdings = holdings
        self.due: dict[str, None] = {}  # a dict for its order
        self._resting: dict[str, Position] = {}  # with what a majority held at the last look

    def __iter__(self) -> Iterator[str]:
        return iter(self.due)

    def notice(self, sessions: Iterable[str]) -> None:
        """Look at these sessions: this node's copy grew."""
        for session in sessions:
            self.due[session] = None
            if self._resting:  # few do, and many are noticed
                self._resting.pop(session, None)

    def notice_reported(self, sessions: Iterable[str]) -> None:
        """Look at these sessions if a majority holds more of them than at the last look."""
        resting, agreed = self._resting, self._holdings.agreed
        self.notice(
            [each for each in sessions if each not in resting or resting[each] != agreed(each)]
        )

    def tick(self) -> None:
        """Look at a few of those at rest: what was in the way of a session may be gone."""
        count = -(-len(self._resting) // _REST_TICKS)
        self.notice(list(islice(self._resting, count)))

    def keep(self, sessions: Iterable[str]) -> None:
        """Look at none but these any more; those at rest stay."""
        self.due = dict.fromkeys(sessions)

    def rest(self, sessions: Iterable[str]) -> None:
        """Let these rest, of which this node holds all that a majority does."""
        for session in sessions:
            self._resting[session] = self._holdings.agreed(session)
            del self.due[session]

    def wake(self) -> None:
        """Look at all that this node holds: it leads now."""
        self._resting.clear()
        self.notice(self._holdings.own)
