"""A world in which a minority's merged logs run out of room for long: the others keep merging."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

from .merge_cluster import MergeCluster, MergeNemesis
from .merge_node import MergeNode
from .merge_progress import MergeProgress
from .progress import CALM_DELAY_US, CALM_LOSS, Progress
from .publisher import SESSIONS

if TYPE_CHECKING:
    from .cluster import Cluster
    from .node import SimNode


class FullNemesis(MergeNemesis):
    """Fills the file system of merged logs, often a leader's; other faults are rare."""

    def __init__(self, cluster: "Cluster", chance: Random) -> None:
        super().__init__(cluster, chance)
        self._strike = self._cut_inside = self._failing_sync = self._regicide = 0.0
        self._deeds = [*[self._fill_leader] * 6, self._fill_disk, self._free_all, self._partition,
                       self._crash, self._transfer]  # fmt: skip
        self._pause_us = chance.choice([60, 90]) * cluster.tick_us
        cluster.wire.loss = min(cluster.wire.loss, CALM_LOSS)
        cluster.wire.delay_us = min(cluster.wire.delay_us, CALM_DELAY_US)

    def _fill_leader(self) -> None:
        leader = self.find_leader()
        if isinstance(leader, FullNode):
            leader.has_full_log = True

    def _fill_disk(self) -> None:
        node = self._victim()
        assert isinstance(node, FullNode)
        node.has_full_log = True

    def _free_all(self) -> None:
        for node in self.world.nodes.values():
            assert isinstance(node, FullNode)
            node.has_full_log = False

    def end(self) -> None:
        """Stop causing faults."""
        super().end()
        self._free_all()

    def disk_fault(self, node: "SimNode") -> Callable[[str], None] | None:
        """Fail writes of the merged log only, which has a file system of its own."""
        assert isinstance(node, FullNode)

        def fault(operation: str) -> None:
            if node.has_full_log and node.is_merging and operation in {"append", "create"}:
                raise OSError(28, "No space left on device")

        return fault


class FullNode(MergeNode):
    """A node whose merged log has a file system of its own."""

    has_full_log = is_merging = False

    def may_decide(self) -> bool:
        """Whether it can lead without stopping the merge."""
        return super().may_decide() and not self.has_full_log

    @contextmanager
    def executing(self) -> Iterator[None]:
        """Let the merged log's file system be full while the block executes."""
        self.is_merging = True
        try:
            yield
        finally:
            self.is_merging = False


class FullCluster(MergeCluster):
    """Full disks, each for long, and few other faults."""

    fault_ticks = 450
    cutting_share = resetting_share = 0.0
    may_leave = may_fill_last = False

    def draw_names(self, chance: Random) -> tuple[str, ...]:
        return ("n1", "n2", "n3", "n4", "n5")[: chance.choice([3, 3, 5])]

    def _make_node(self, name: str, chance: Random) -> FullNode:
        return FullNode(name, self, chance)

    def draw_links(self, chance: Random) -> None:
        """Let publishers reach all nodes, so that only nodes can delay the merge."""
        self.links = {(session, name): 1.0 for session in SESSIONS for name in self.names}

    def _progress(self) -> Progress:
        return MergeProgress(self)

    nemesis_type = FullNemesis
