"""Candidacy: whether a node should campaign, and whether it may take part at all."""

from typing import Final

from sequencer.raft.consensus import Fork

# How many election timeouts a node that cannot merge lets pass before it campaigns. Another node
# does so after one or two and is elected; if none can be, this one may still be needed as a leader.
RELUCTANCE_TIMEOUTS: Final = 4


class Candidacy:
    """What keeps a node from campaigning.

    Attributes:
        is_reluctant: this node cannot merge for now, so another one should lead.
        fork: where the leader's log contradicts what is committed here; such a node is silent.
    """

    __slots__ = ("_passed", "fork", "is_reluctant")

    def __init__(self) -> None:
        self.is_reluctant = False
        self.fork: Fork | None = None
        self._passed = 0

    def follow(self) -> None:
        """Take note that there is a leader."""
        self._passed = 0

    def may_campaign(self) -> bool:
        """Whether to campaign, now that an election timeout has passed without a leader."""
        self._passed += 1
        return not self.is_reluctant or self._passed > RELUCTANCE_TIMEOUTS
