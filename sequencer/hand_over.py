"""HandOver: when a leader lets another member lead, because it cannot plan what others hold."""

from contextlib import suppress

from rt.errors import Refused
from rt.position import START
from sequencer.planning.holdings import Holdings
from sequencer.proposals import Proposals
from sequencer.raft.consensus import Consensus


class HandOver:
    """Hands leadership to a member that holds the bytes which this leader lacks."""

    def __init__(
        self, engine: Consensus, holdings: Holdings, proposals: Proposals, patience_ticks: int
    ) -> None:
        """Wait for `patience_ticks` before leadership moves."""
        self._engine, self._holdings, self._proposals = engine, holdings, proposals
        self._patience_ticks = patience_ticks
        self._short_ticks = 0  # for how long a majority has held what this leader lacks

    def tick(self) -> None:
        """Let a unit of time pass while this node leads."""
        short = self._proposals.short_session()
        self._short_ticks = self._short_ticks + 1 if short else 0
        if self._short_ticks < self._patience_ticks:
            return
        self._short_ticks = 0
        holdings = self._holdings
        others = [each for each in holdings.voters if each in holdings.others]
        best = max(others, key=lambda each: holdings.of(each).get(short, START))
        with suppress(Refused):  # it does not lead any more, or is handing over already
            self._engine.transfer(best)
