"""Checks that merging makes progress during the faults."""

from collections import deque
from typing import TYPE_CHECKING

from rt.position import START, Position

from .checkers import Violation
from .progress import Progress
from .publisher import SESSIONS

if TYPE_CHECKING:
    from .merge_cluster import MergeCluster
    from .node import SimNode

# More than an election takes: a full node waits half a second before it tries again, and a missing
# session is waited for before it is requested from another node.
PATIENCE_TICKS = 60
COPIED_PIECES = 60  # pieces of a merged log that a node which was away copies first


class MergeProgress(Progress):
    """Also checks a majority that has room and can talk, within a stated time.

    What that majority holds of a session is merged, and each of them has what was merged before.
    """

    def __init__(self, world: "MergeCluster") -> None:
        super().__init__(world)
        self._world = world
        self._ends: deque[tuple[int, Position]] = deque()
        self._reached: dict[str, tuple[tuple[Position, Position], int]] = {}  # since when
        self.compared = 0  # how often a node was compared with what had been merged
        self.merge_patience_us = self._patience_us + PATIENCE_TICKS * world.tick_us
        self.copy_patience_us = self.merge_patience_us + COPIED_PIECES * world.copying_us

    def demand(self) -> None:
        """Raise `Violation` without progress."""
        super().demand()
        world, now_us = self._world, self._world.clock.now_us
        since_us = now_us - self.merge_patience_us
        able = self._able(since_us)
        fit = [node for node in world.nodes.values() if self.is_fit(node)]
        for session in SESSIONS:
            merged = world.stream.merged.get(session, START)
            held = [node.member.holdings.own.get(session, START) > merged for node in fit]
            is_plain = not world.is_disturbed(session)
            self._note((session, merged), is_plain and sum(held) >= world.majority)
            if self._lasts((session, merged), since_us) and able:
                raise Violation(f"{able} have room, and merge nothing of {session} after {merged}")
        near_us = now_us - self.copy_patience_us
        self._demand_near(self._able(near_us), near_us)

    def _demand_near(self, able: tuple[str, ...], since_us: int) -> None:
        """Each node of an able majority has what any had merged when it became able.

        Or it is copying it, and the copy grows: how many files there are is not known before.
        """
        now_us = self._world.clock.now_us
        for node in self._world.nodes.values():
            there = node.merged_end, node.copied_end
            if self._reached.get(node.name, ((), 0))[0] != there:
                self._reached[node.name] = there, now_us
        self._ends.append((now_us, self._world.stream.end))
        while self._ends[0][0] < since_us:
            self._ends.popleft()
        at_us, end = self._ends[0]
        for name in able if at_us < since_us + self._world.tick_us else ():
            node = self._world.nodes[name]
            self.compared += 1
            there, since = node.merged_end, self._reached[name][1]
            if there < end and since <= since_us:
                raise Violation(f"{name} of {able} is at {there}, and {end} was merged long ago")

    def is_fit(self, node: "SimNode") -> bool:
        return super().is_fit(node) and not getattr(node, "rotted", False)
