"""A world whose cluster agrees on the level of its formats first, and raises it later."""

from collections.abc import Callable
from random import Random

from rt.position import START
from sequencer.ledger.format_level import (
    CARRYING,
    LEVEL_NOTE,
    NEWEST,
    OLDEST,
    FormatLevel,
    level_of,
    may_carry,
)
from sequencer.ledger.instruction import Instruction, Merge, Note, note_digest
from sequencer.ledger.ledger import Ledger

from .checkers import Violation
from .cluster import Cluster
from .merge_cluster import MergeCluster, MergeNemesis
from .merge_node import MergeNode


class RaisingNemesis(MergeNemesis):
    """All faults of nodes and publishers, and an operator who finalizes the upgrade."""

    world: "LevelledCluster"

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        super().__init__(cluster, chance)
        self._deeds += [self._raise] * 2

    def _raise(self) -> None:
        leader = self.find_leader()
        if leader is not None:
            leader.guarded(self.world.finalize, leader)


class LevelledCluster(MergeCluster):
    """Nothing is merged before the level is agreed on, and nothing above it at any time."""

    nemesis_type = RaisingNemesis

    def founding(self) -> Callable[[], Instruction] | None:
        """Each node would begin with the same level: what all that it heard can read."""
        level = Random(f"{self.seed} level").choice((OLDEST, NEWEST))
        return lambda: self._note(level, "the founding", "")

    def may_carry(self, node: MergeNode) -> bool:
        """As on a real node."""
        return may_carry(node.member.executor.ledger.notes)

    def finalize(self, leader: MergeNode) -> None:
        """Raise the level, as an operator does."""
        text = leader.member.executor.ledger.notes.get(LEVEL_NOTE, "")
        if text:
            leader.order(self._note(NEWEST, "operator ops", text))

    def demand_allowed(self, ledger: Ledger, instruction: Instruction) -> None:
        """Check that the level comes first, is never lowered, and allows what is carried."""
        level = level_of(ledger.notes)
        is_level = isinstance(instruction, Note) and instruction.name == LEVEL_NOTE
        if ledger.end == START and not ledger.notes and not is_level:
            raise Violation(f"{type(instruction).__name__} comes before the level")
        if isinstance(instruction, Note) and is_level:
            after = level_of({LEVEL_NOTE: instruction.text})
            if after < level and instruction.replaces(ledger.notes.get(LEVEL_NOTE, "")):
                raise Violation(f"the level goes back from {level} to {after}")
        slices = instruction.slices if isinstance(instruction, Merge) else ()
        if level < CARRYING and any(each.carried for each in slices):
            raise Violation(f"bytes are carried at level {level}")

    def _note(self, level: int, by: str, before: str) -> Note:
        now_ns = 1 + self.clock.now_us * 1000
        text = FormatLevel(level, by, now_ns).text()
        return Note(now_ns, LEVEL_NOTE, text, note_digest(before))
