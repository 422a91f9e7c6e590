"""Candidacy: whether a node should campaign, and whether it may take part at all."""

from typing import Final

from sequencer.raft.consensus import Fork

# Election timeouts that a node which cannot merge waits before it campaigns. Another node campaigns
# after one or two; if none can be elected, this one may still be needed as leader.
RELUCTANCE_TIMEOUTS: Final = 4


class Candidacy:
    """Candidacy: what keeps a node from campaigning.

    Attributes:
        is_reluctant: this node cannot merge for now, so another should lead.
        fork: where the leader's log contradicts entries committed here; such a node stays silent.
    """

    __slots__ = ("_passed", "fork", "is_reluctant")

    def __init__(self) -> None:
        self.is_reluctant = False
        self.fork: Fork | None = None
        self._passed = 0

    def follow(self) -> None:
        """Record that there is a leader."""
        self._passed = 0

    def may_campaign(self) -> bool:
        """Whether to campaign, now that an election timeout has passed without a leader."""
        self._passed += 1
        return not self.is_reluctant or self._passed > RELUCTANCE_TIMEOUTS
