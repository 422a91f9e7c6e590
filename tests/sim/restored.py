"""A world in which one node's directory is rolled back: an older copy of it must not count."""

from collections.abc import Callable
from random import Random

from sequencer.raft.starts import Reach

from .cluster import Cluster
from .disk import Directory
from .merge_cluster import MergeCluster, MergeNemesis
from .merge_node import MergeNode
from .node import SimNode
from .publisher import SESSIONS


class RestoredNemesis(MergeNemesis):
    """Partitions, pauses and changes of leader, and a backup of one node that is restored.

    No other node dies after the backup was taken: in memory they know more than on their disks, and
    what no other node remembers, no node can recognize.
    """

    world: "RestoredCluster"

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        super().__init__(cluster, chance)
        self._strike = self._cut_inside = self._failing_sync = self._regicide = 0.0
        self._deeds = [self._partition, self._swizzle, self._pause, self._transfer, self._transfer,
                       self._bend_clock, self._replay, self._roll, self._retain]  # fmt: skip
        self._backup: Directory | None = None
        self._backed_up = (0, Reach())  # number of starts, and how far its disk had come
        self._victim_name = chance.choice(cluster.names)
        # whether it restarts between the backup and the restore
        self._starts_again = chance.random() < 0.5
        cluster.clock.after(chance.randrange(300_000), self._back_up)

    def disk_fault(self, node: SimNode) -> Callable[[str], None] | None:
        """Return no fault: disks work."""
        return None

    def _victim_node(self) -> MergeNode:
        node = self.cluster.nodes[self._victim_name]
        assert isinstance(node, MergeNode)
        return node

    def _back_up(self) -> None:
        node = self._victim_node()
        status = node.raft.status()
        self._backup = node.disk.backed_up()
        self._backed_up = (
            node.member.restart_check.claim.chain.count, Reach(status.term, status.durable),
        )  # fmt: skip
        self.cluster.trace(f"{node.name} is backed up: {self._backed_up}")
        if self._starts_again:
            node.die("between backup and return", power=False)
            self.restart_later(node)
        self.cluster.clock.after(self.cluster.tick_us, self._restore)

    def _restore(self) -> None:
        node = self._victim_node()
        if not self.active:
            return
        if not (node.alive and self.is_known()):
            self.cluster.clock.after(self.cluster.tick_us, self._restore)
        elif self._backup is not None:
            node.die("to be rolled back", power=False)
            node.disk.restore(self._backup)
            node.is_older_copy = True
            for session in SESSIONS:
                self.world.stream.loses(node.name, session)
            self.restart_later(node)

    def is_known(self) -> bool:
        """Whether every other node remembers more of the victim than its backup holds."""
        return all(self._knows(node) for node in self.cluster.nodes.values())

    def _knows(self, node: SimNode) -> bool:
        assert isinstance(node, MergeNode)
        if node.name == self._victim_name:
            return True
        count, reach = self._backed_up
        known = node.member.restart_check.memories[self._victim_name][-1:]
        return any(
            each.count > count or each.reach.term > reach.term or each.reach.index > reach.index
            for each in known
        )


class RestoredCluster(MergeCluster):
    """One node is restored from a backup, is recognized before it speaks, and learns again."""

    nemesis_type = RestoredNemesis

    def draw_names(self, chance: Random) -> tuple[str, ...]:
        drawn = super().draw_names(chance)
        return drawn if len(drawn) > 1 else ("n1", "n2", "n3")

    def recovered(self) -> bool:
        return not any(node.is_older_copy for node in self.nodes.values()) and super().recovered()
