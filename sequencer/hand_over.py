"""HandOver: moves leadership to another member when this leader lacks bytes that others hold."""

from typing import Final

from rt.errors import Refused
from rt.position import START, Position
from sequencer.planning.holdings import Holdings
from sequencer.proposals import Proposals
from sequencer.raft.engine import Raft

_DOUBLED_MAX: Final = 8  # the patience of 2 s becomes 8.5 minutes


class HandOver:
    """HandOver: hands leadership to a member that holds the bytes this leader lacks.

    If the copies of a session contradict each other, no member can merge the bytes, and leadership
    would bounce for as long as the session waits. So each time that leadership moved and the
    session made no progress, this node waits twice as long before it moves leadership again.
    """

    def __init__(
        self, engine: Raft, holdings: Holdings, proposals: Proposals, patience_ticks: int
    ) -> None:
        """Begin to watch.

        Args:
            engine: this node's engine, which moves leadership.
            holdings: what all members hold.
            proposals: names the sessions of which this node lacks bytes, and their merged ends.
            patience_ticks: how long a session must wait before leadership is moved the first time.
        """
        self._engine, self._holdings, self._proposals = engine, holdings, proposals
        self._patience_ticks = patience_ticks
        self._short_ticks: dict[str, int] = {}  # how long a majority has held more of a session
        # By session, how often leadership moved for it, and its `Proposals.place` at the last time.
        self._moved: dict[str, tuple[int, tuple[Position, int]]] = {}

    def tick(self) -> None:
        """Let a unit of time pass while this node leads; move leadership if that is due."""
        holdings, place = self._holdings, self._proposals.place
        if self._moved:
            self._moved = {
                each: known for each, known in self._moved.items() if place(each) == known[1]
            }
        before = self._short_ticks
        self._short_ticks = {
            each: before.get(each, 0) + 1 for each in self._proposals.short_sessions()
        }
        due = [each for each, ticks in self._short_ticks.items() if ticks >= self._patience(each)]
        if not due:
            return
        short = due[0]
        self._short_ticks = {}
        others = [each for each in holdings.voters if each in holdings.others]
        best = max(others, key=lambda each: holdings.of(each).get(short, START))
        try:
            self._engine.transfer(best)
        except Refused:
            return  # no longer the leader, or `best` is not eligible yet: nothing was tried
        times, _ = self._moved.get(short, (0, None))
        self._moved[short] = times + 1, place(short)

    def _patience(self, session: str) -> int:
        """Return how many ticks this node keeps leading while it cannot plan a session."""
        times, _ = self._moved.get(session, (0, None))
        return self._patience_ticks << min(times, _DOUBLED_MAX)
