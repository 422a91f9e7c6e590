"""A world whose cluster is sealed now and then: its log and state stay as they are meanwhile."""

from random import Random

from sequencer.ledger.instruction import Note
from sequencer.ledger.seal import SEALED_NOTE, Seal, seal_of

from .cluster import Cluster
from .merge_cluster import MergeCluster, MergeNemesis
from .merge_node import MergeNode

SEALED_TICKS = 5, 60
RETRY_TICKS = 4


class SealingNemesis(MergeNemesis):
    """All faults of nodes and publishers, and an operator who seals the cluster and unseals it."""

    world: "SealedCluster"

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        super().__init__(cluster, chance)
        self._deeds += [self._seal] * 6

    def _seal(self) -> None:
        leader = self.find_leader()
        if leader is not None:
            leader.guarded(self.world.seal, leader)


class SealedCluster(MergeCluster):
    """Everything that publishers sent is merged once the cluster goes on, and once only."""

    nemesis_type = SealingNemesis
    _seal_ns = 0
    _is_visited = False  # whether an operator has begun to look for seals that are over

    def seal(self, leader: MergeNode) -> None:
        """Seal the cluster, unless it is; it goes on after a while."""
        if SEALED_NOTE not in leader.member.executor.ledger.notes:
            seal = Seal("operator ops", 1 + self.clock.now_us * 1000)
            leader.order(Note(seal.at_ns, SEALED_NOTE, seal.text()))
            drawn = Random(f"{self.seed} {self.clock.now_us} seal")
            self._seal_ns = drawn.randint(*SEALED_TICKS) * self.tick_us * 1000
            if not self._is_visited:
                self._is_visited = True
                self._unseal()

    def _unseal(self) -> None:
        """Order that the cluster goes on once it was sealed for long enough."""
        self.clock.after(RETRY_TICKS * self.tick_us, self._unseal)
        for node in self.nodes.values():
            assert isinstance(node, MergeNode)
            if not (node.alive and node.raft.leads):
                continue
            seal, now_ns = seal_of(node.member.executor.ledger.notes), self.clock.now_us * 1000
            if seal is None:
                continue
            if now_ns - seal.at_ns > self._seal_ns or not self.nemesis.active:
                node.order(Note(1 + now_ns, SEALED_NOTE, ""))
