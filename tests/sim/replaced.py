"""A world in which a member is replaced while publishers publish: one is added, one removed."""

from collections.abc import Set
from random import Random

from rt.errors import Refused
from sequencer.raft.consensus import VOTERS_MAX

from .cluster import Cluster
from .joined import NEWCOMER, JoinedCluster
from .member_cluster import MemberNode
from .merge_cluster import MergeNemesis
from .merge_node import MergeNode
from .node import SimNode
from .publisher import SESSIONS

REMOVED_FIRST_SHARE = 0.3


class ReplacedNemesis(MergeNemesis):
    """All faults of nodes and publishers, and an operator who replaces a node."""

    world: "ReplacedCluster"

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        super().__init__(cluster, chance)
        self._deeds += [self._change_members] * 8

    def _lose_state(self) -> None:
        """Do nothing: how many copies may be lost at once depends on the members of the moment."""

    def _change_members(self) -> None:
        leader = self.find_leader()
        if leader is not None:
            leader.guarded(self.world.change, leader)


class ReplacedNode(MemberNode, MergeNode):
    """A node that may have joined late, and ends when it is removed."""

    world: "ReplacedCluster"

    def start(self) -> None:
        """Start, unless its machine was switched off for good."""
        if self.world.nodes.get(self.name, self) is self:
            super().start()


class ReplacedCluster(JoinedCluster):
    """Founders, one of which is removed before or after another node has joined.

    Publishers learn the new list of nodes when the removed one ends, as an operator would tell
    them. In the end the newcomer votes, the other is gone, and the rest is as in any world: every
    message is merged once, and the logs are the same.
    """

    nemesis_type = ReplacedNemesis

    def draw_names(self, chance: Random) -> tuple[str, ...]:
        drawn = super().draw_names(chance)
        self.founders = drawn if len(drawn) > 1 else ("n1", "n2", "n3")
        ours = Random(f"{self.seed} replaced")
        self.leaver = ours.choice(self.founders)
        is_full = len(self.founders) == VOTERS_MAX
        self._removes_first = ours.random() < REMOVED_FIRST_SHARE or is_full
        self._goal = -1  # the instruction that the newcomer has to reach before it votes
        return self.founders

    def _make_node(self, name: str, chance: Random) -> ReplacedNode:
        return ReplacedNode(name, self, chance)

    def removed(self) -> Set[str]:
        """The node that was removed, once it has ended."""
        return {self.leaver} - self.nodes.keys()

    def change(self, leader: SimNode) -> None:
        """Take the replacement a step further."""
        assert isinstance(leader, ReplacedNode)
        steps = [self._add, self._remove]
        try:
            for step in steps[::-1] if self._removes_first else steps:
                if not step(leader):
                    break
        except Refused as error:
            if error.code == "leads":
                self.transfer(leader, self._chance.choice(self.names))

    def _add(self, leader: ReplacedNode) -> bool:
        """Add the newcomer, or make it a voter; return whether it is one."""
        seat = leader.raft.members.get(NEWCOMER)
        if seat is None:
            leader.raft.changes.add(NEWCOMER, NEWCOMER)
            self.clock.after(self._chance.randrange(20) * self.tick_us, self._join)
        elif not seat.votes and self._has_merged(leader):
            leader.raft.changes.promote(NEWCOMER)
        else:
            return seat.votes
        self.trace(f"{leader.name} changes the members: {[*leader.raft.members]}")
        return False

    def _has_merged(self, leader: ReplacedNode) -> bool:
        """Whether the newcomer has what most had at first, as `MemberAdmin` requires."""
        if self._goal < 0:
            self._goal = leader.archiver.settled_index
        return (leader.archiver.durable_at(NEWCOMER) or 0) >= self._goal

    def _remove(self, leader: ReplacedNode) -> bool:
        """Remove the one that leaves; return whether it is gone."""
        if self.leaver not in leader.raft.members:
            return True
        leader.raft.changes.remove(self.leaver)
        self.trace(f"{leader.name} removes {self.leaver}")
        return False

    def retire(self, node: SimNode) -> None:
        """Note that a removed node has ended for good, or is switched off; publishers leave it."""
        if self.nodes.pop(node.name, None) is None:
            return
        node.alive = False
        self.names = tuple(name for name in self.names if name != node.name)
        for session in SESSIONS:
            self.links.pop((session, node.name))
            left = [name for name in self._reach[session] if name != node.name]
            self._reach[session] = left or [*self.names]
            self.links |= {} if left else {(session, name): 1.0 for name in self.names}
        self.trace(f"{node.name} has ended for good")

    def draw_links(self, chance: Random) -> None:
        """Draw how well publishers reach nodes from now on."""
        super().draw_links(chance)
        for session in SESSIONS:  # it may have joined, or ended
            for name in {*self.founders, NEWCOMER} - {*self.names}:
                self.links.pop((session, name), None)

    def _is_replaced(self) -> bool:
        leader = self.nemesis.find_leader()
        if leader is None:
            return False
        seat, last = leader.raft.members.get(NEWCOMER), leader.raft.last_change
        if seat is None or not seat.votes or self.leaver in leader.raft.members:
            leader.guarded(self.change, leader)
            return False
        left = self.nodes.get(self.leaver)
        if left is not None and not last.before:
            self.retire(left)  # it was away and was not told, so an operator switches it off
        return left is None

    def recovered(self) -> bool:
        return self._is_replaced() and super().recovered()
