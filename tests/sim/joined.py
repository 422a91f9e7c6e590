"""A cluster with publishers that another node joins while it runs."""

from random import Random

from sequencer.raft.consensus import Ready

from .checkers import Checker
from .member_cluster import MemberChecker
from .merge_cluster import MergeCluster
from .node import SimNode
from .publisher import SESSIONS

NEWCOMER = "n8"  # there are up to seven founders


class JoinedCluster(MergeCluster):
    """Founders, and a newcomer that begins with an empty disk."""

    has_fixed_members = False
    retired: frozenset[str] = frozenset()
    checker: MemberChecker

    def draw_names(self, chance: Random) -> tuple[str, ...]:
        self.founders = super().draw_names(chance)
        return self.founders

    def _make_checker(self) -> Checker:
        return MemberChecker(self.founders)

    def ready(self, node: SimNode, ready: Ready) -> None:
        """Observe that a node has taken its duties."""
        super().ready(node, ready)
        if node.raft.leads:
            self.checker.changes(node.name, node.raft, ready)

    def deliver(self, source: str, target: str, data: bytes) -> None:
        if target in self.nodes:  # otherwise it has not joined yet, or has ended
            super().deliver(source, target, data)

    def _join(self) -> None:
        if NEWCOMER in self.nodes:
            return
        self.names = (*self.names, NEWCOMER)
        self.nodes[NEWCOMER] = self._make_node(NEWCOMER, Random(self._chance.getrandbits(32)))
        for session in SESSIONS:
            self.links[session, NEWCOMER] = 1.0
            self._reach[session] = [*self._reach[session], NEWCOMER]
