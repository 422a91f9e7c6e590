"""Admission: which messages of simulated nodes other nodes accept, and what the refused ones learn.

It plays the connections between nodes: a message of a node without a connection makes one, for
which the other node's doors decide, and a refusal of a removed node comes back to it as a verdict.
"""

from collections.abc import Set
from random import Random
from typing import TYPE_CHECKING

from sequencer.raft.consensus import Configuration

if TYPE_CHECKING:
    from .member_cluster import MemberCluster, MemberNode

LATE = 0.125  # share of messages that arrive although the doors have just changed


class Admission:
    """Lets nodes in, or refuses them, as the product's nodes do by their doors."""

    def __init__(self, cluster: "MemberCluster", seed: int) -> None:
        self._cluster, self._chance = cluster, Random(f"{seed} admission")
        # By source and target: the lives of both processes between which a connection exists.
        self._connected: dict[tuple[str, str], tuple[int, int]] = {}

    def admits(self, source: "MemberNode", target: "MemberNode") -> bool:
        """Whether a message arrives; if it does not, its sender learns why."""
        doors, key = target.membership.doors, (source.name, target.name)
        lives = source.life, target.life
        is_live = self._connected.get(key) == lives
        if doors.admits(source.name) or (is_live and source.name in doors.leaving):
            if not is_live:
                self._connected[key] = lives
                self._answer(source, target, is_removed=False)
            return True
        self._connected.pop(key, None)
        if source.name in doors.departed:
            self._answer(source, target, is_removed=True)
        return self._chance.random() < LATE

    def _answer(self, source: "MemberNode", target: "MemberNode", *, is_removed: bool) -> None:
        """Tell a node that dialled whether it was refused as removed, if the answer arrives."""
        delay_us = self._cluster.wire.delay_us
        self._cluster.clock.after(
            delay_us, self._told, source, target.name, source.life, is_removed
        )

    def _told(self, node: "MemberNode", member: str, life: int, is_removed: bool) -> None:
        if life != node.life or (member, node.name) in self._cluster.wire.cut:
            return
        wait_us = node.paused_until_us - self._cluster.clock.now_us
        if wait_us > 0:
            self._cluster.clock.after(wait_us, self._told, node, member, life, is_removed)
        else:
            node.guarded(node.told, member, is_removed)

    def surviving(self, members: Set[str]) -> list[str]:
        """Return the removed nodes that still run, of those that enough members can tell so.

        A member cannot if its machine is a new one that has not seen the removed node in any list.

        Args:
            members: the members after the faults, all of which run.
        """
        found, old = [], members - self._cluster.retired
        for node in self._cluster.nodes.values():
            if not node.alive or node.name in members or not node.raft.core.is_voter:
                continue
            change = node.raft.last_change
            lists = [_voters(each) for each in (change.now, change.before) if each]
            if all(len((each - {node.name}) & old) > len(each) // 2 for each in lists):
                found.append(node.name)
        return found


def _voters(seats: Configuration) -> set[str]:
    return {name for name, seat in seats.items() if seat.votes}
