"""WaitingSessions: the sessions in which a leader may find something to merge."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from rt.position import Position
from sequencer.planning.holdings import Holdings

_REST_TICKS: Final = 100  # each session at rest is examined again within so many ticks


class WaitingSessions:
    """WaitingSessions: the sessions to examine next for bytes to merge, and the sessions at rest.

    A session is put to rest if nothing of it could be merged when it was examined, although its
    durable end may be past its merged end: its last file may have no frame yet, or an obstacle may
    prevent the merge. Examining a session takes 50 us or more, so examining all of a thousand
    sessions for each instruction would delay the ones that have something to merge.
    """

    def __init__(self, holdings: Holdings) -> None:
        """Start empty."""
        self._holdings = holdings
        self.due: dict[str, None] = {}  # a dict for its order
        self._resting: dict[str, Position] = {}  # the end a majority held when last examined

    def notice(self, sessions: Iterable[str]) -> None:
        """Examine these sessions next, because this node's copies have grown."""
        for session in sessions:
            self.due[session] = None
            if self._resting:  # usually empty, and many are noticed
                self._resting.pop(session, None)

    def notice_reported(self, sessions: Iterable[str]) -> None:
        """Examine these reported sessions next.

        A session at rest is left there unless the end that a majority holds has changed.
        """
        resting, agreed = self._resting, self._holdings.agreed
        self.notice(
            [each for each in sessions if each not in resting or resting[each] != agreed(each)]
        )

    def tick(self) -> None:
        """Examine a few of the sessions at rest, since their obstacles may be gone."""
        count = -(-len(self._resting) // _REST_TICKS)
        self.notice(list(islice(self._resting, count)))

    def keep(self, sessions: Iterable[str]) -> None:
        """Examine only these sessions next; sessions at rest stay at rest."""
        self.due = dict.fromkeys(sessions)

    def rest(self, sessions: Iterable[str]) -> None:
        """Put these sessions to rest: this node has what a majority holds, but cannot merge it."""
        for session in sessions:
            self._resting[session] = self._holdings.agreed(session)
            del self.due[session]

    def wake(self) -> None:
        """Examine all sessions that this node holds, because it leads now."""
        self._resting.clear()
        self.notice(self._holdings.own)
