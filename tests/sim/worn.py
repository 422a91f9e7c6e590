"""A world that combines everything that wears a cluster out, and must lose nothing.

Rolled files rot on a minority, a node's directory is rolled back, publishers lose what they had
sent or are restored from backups, and a node joins, is moved and becomes a voter.
"""

from random import Random

from rt.errors import Refused
from rt.position import Position

from .cluster import Cluster
from .joined import NEWCOMER, JoinedCluster
from .member_cluster import MemberNode
from .node import SimNode
from .restored import RestoredCluster, RestoredNemesis
from .rotten import RottenCluster, RottenNemesis, RottenNode
from .stream import OUT


class WornNemesis(RestoredNemesis, RottenNemesis):
    """Rolls one directory back, rots rolled files, and adds a node as an operator."""

    world: "WornCluster"

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        super().__init__(cluster, chance)
        self._deeds += [*[self._rot_rolled] * 6, *[self._change_members] * 6]

    def _may_rot(self, node: SimNode) -> bool:
        """Whether it may rot: only rolled files of the merged log, which other nodes have."""
        return node.name in self.world.frail

    def _is_elsewhere(self, file: Position, end: int, but: str = "") -> bool:
        """Whether enough other nodes have a file; two of three may still be copying the log."""
        path = f"{OUT}/{file.file_name}"
        return any(
            len(node.disk.durable(path)) >= end
            for node in self.world.nodes.values()
            if node.name not in {*self.world.frail, but} and not node.is_older_copy
        )

    def is_known(self) -> bool:
        """Also wait until others than the victim have what rotted, since the victim is emptied."""
        return super().is_known() and all(
            self._is_elsewhere(file, line.end, but=self._victim_name)
            for node in self.world.nodes.values()
            for known in [node.member.executor.appender.manifest]
            for file, line in known.rolled.items()
            if file in node.rotten_files and file not in known.archived
        )

    def _change_members(self) -> None:
        leader = self.find_leader()
        if leader is not None:
            leader.guarded(self.world.change, leader, self._chance)


class WornNode(MemberNode, RottenNode):
    """A node that scrubs, and may have joined."""

    world: "WornCluster"


class WornCluster(JoinedCluster, RestoredCluster, RottenCluster):
    """Founders, whom another node joins while files rot and directories are rolled back."""

    nemesis_type = WornNemesis
    cutting_share = 0.5

    def _make_node(self, name: str, chance: Random) -> RottenNode:
        return WornNode(name, self, chance)

    def change(self, leader: SimNode, chance: Random) -> None:
        """Take the newcomer a step further, or move another node."""
        seat = leader.raft.members.get(NEWCOMER)
        try:
            if seat is None:
                leader.raft.changes.add(NEWCOMER, NEWCOMER)
                self.clock.after(chance.randrange(20) * self.tick_us, self._join)
            elif not seat.votes:
                leader.raft.changes.promote(NEWCOMER)
            else:
                leader.raft.changes.move(chance.choice(self.names), f"moved:{chance.randrange(9)}")
        except Refused:
            return
        self.trace(f"{leader.name} changes the members: {[*leader.raft.members]}")

    def recovered(self) -> bool:
        leader = self.nemesis.find_leader()
        seat = None if leader is None else leader.raft.members.get(NEWCOMER)
        is_begun = seat is not None or NEWCOMER in self.nodes
        if leader is not None and is_begun and (seat is None or not seat.votes):
            leader.guarded(self.change, leader, self._chance)  # what was begun may have been undone
            return False
        return super().recovered()
