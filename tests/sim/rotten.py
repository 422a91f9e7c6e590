"""A world in which rolled files rot on a minority: they are found, not served, and repaired."""

from collections.abc import Callable
from random import Random

from replicator.repair.mend import Mended, mend_file
from replicator.repair.scrub import Scrub, ScrubPorts
from replicator.repair.scrub_record import ScrubRecord
from rt.errors import CorruptLog
from rt.format.manifest import Rolled
from rt.log.write.appender import Appender
from rt.node.ingest.damage import DamageFound
from rt.position import Position

from .copying import NodeFiles
from .merge_cluster import MergeCluster, MergeNemesis
from .merge_node import MergeNode
from .stream import OUT

SCRUB_TICKS = 4  # between two turns
TURN_BYTES = 2_000
BAD_SECTOR_SHARE = 0.4  # of what is written for a repair


class RottenNemesis(MergeNemesis):
    """Flips bits in rolled merged files."""

    world: "RottenCluster"

    def more_deeds(self) -> list[Callable[[], None]]:
        return [*super().more_deeds(), *[self._rot_rolled] * 16]

    def _rot_rolled(self) -> None:
        """Damage one file, on one node or on as many as allowed."""
        nodes = [node for node in self.world.nodes.values() if node.alive]
        frail = [node for node in nodes if node.name in self.world.frail]
        if self._chance.random() < 0.5:
            frail = frail[:1]
        if not frail:
            return
        known = frail[0].member.executor.appender.manifest
        files = [
            file
            for file in known.order
            if file not in known.archived and self._is_elsewhere(file, known.rolled[file].end)
        ]
        if not files:
            return
        file = self._chance.choice(files)
        path = f"{OUT}/{file.file_name}"
        for node in frail:
            if self._may_rot(node) and (done := node.disk.rot([path], cut=False)):
                node.rotted = True
                node.rotten_files.add(file)
                self.world.trace(f"{node.name} rots {done}")

    def _is_elsewhere(self, _file: Position, _end: int) -> bool:
        """Whether others have a file that is about to rot: no directory is lost here."""
        return True


class RottenNode(MergeNode):
    """A node that scrubs a little from time to time, as its thread would."""

    world: "RottenCluster"

    def start_duties(self) -> None:
        """Start what the node does."""
        super().start_duties()
        self.rounds = 0
        source = NodeFiles(self)

        def mend(log: Appender, line: Rolled) -> Mended | None:
            mended = mend_file(source, log, line)
            if mended is not None:
                self.world.trace(f"{self.name} repairs {line.file} from {mended.node}")
                end = Position(line.file + line.end)
                self.world.stream.compare(self.name, self.disk, line.file, end)
                self.world.repairs += 1
            return mended

        def report(damage: CorruptLog, log: Appender) -> None:
            self.alarm(str(damage))
            self._mail.damaged.append(DamageFound(damage, log, scrubbed=True))
            self.wake()

        ports = ScrubPorts(self._logs, mend, report, self.feeds.damaged, self._now_ns)
        self.scrub = Scrub(ports, ScrubRecord(), every_s=0.0)
        self._scrub_on(self.life)

    def _logs(self) -> list[Appender]:
        inboxes = sorted(self.inboxes.every(), key=lambda each: each.session)
        copy = self.view.waiting.copy
        merged = self.member.executor.appender if copy is None else copy.log
        return [*([merged] if merged else []), *(each.appender for each in inboxes)]

    def suspect(self, damage: CorruptLog) -> None:
        """Scrub a file soon, because a copy met damage in it."""
        self.scrub.suspect(damage)

    def is_writing_badly(self) -> bool:
        """Whether a disk that loses sectors has lost what was just written."""
        nemesis = self.world.nemesis
        is_bad = nemesis.active and self.name in self.world.frail and not self.world.has_cuts
        return is_bad and self.draws(BAD_SECTOR_SHARE)

    def draws(self, share: float) -> bool:
        """Return true with this probability."""
        return self._chance.random() < share

    def known_damage(self) -> set[str]:
        """The merged files that scrubbing could not repair yet."""
        return {path for path in self.scrub.state.unrepaired if path.startswith(OUT)}

    def _scrub_on(self, life: int) -> None:
        if life != self.life:
            return
        self.world.clock.after(SCRUB_TICKS * self.world.tick_us, self._scrub_on, life)
        if self.alive and self.world.clock.now_us >= self.paused_until_us:
            self.guarded(self._scrub)

    def _scrub(self) -> None:
        finished_ns = self.scrub.state.finished_ns
        for _ in range(20):
            if not self.scrub.turn(self.now_s(), TURN_BYTES):
                break
        if self.scrub.state.finished_ns != finished_ns and not self.world.nemesis.active:
            self.rounds += 1

    @property
    def is_whole(self) -> bool:
        """Whether it has read everything since the last bit flipped, and repaired all of it."""
        return self.alive and self.rounds >= 2 and not self.scrub.state.unrepaired


class RottenCluster(MergeCluster):
    """Rot in rolled files of a minority does no harm, and is gone in the end."""

    nemesis_type = RottenNemesis
    repairs = 0

    def draw_names(self, chance: Random) -> tuple[str, ...]:
        super().draw_names(chance)
        return ("n1", "n2", "n3", "n4", "n5")[: chance.choice([3, 5, 5])]

    def _make_node(self, name: str, chance: Random) -> RottenNode:
        return RottenNode(name, self, chance)

    def recovered(self) -> bool:
        nodes = [node for node in self.nodes.values() if isinstance(node, RottenNode)]
        return all(node.is_whole for node in nodes) and super().recovered()
