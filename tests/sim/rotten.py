"""A world in which rolled files rot on a minority: they are found, not served, and repaired."""

from collections.abc import Callable, Sequence
from random import Random

from replicator.local_copy import PulledLog
from replicator.mend import Mended, mend_file
from replicator.scrub import Scrub, ScrubPorts
from replicator.scrub_record import ScrubRecord
from rt.errors import CorruptLog, ManifestError, PeerError, Refused
from rt.format.manifest import Rolled
from rt.log.appender import Appender
from rt.log.archived import not_copied
from rt.log.rolled_check import line_before
from rt.node.damage import DamageFound
from rt.position import Position

from .copying import IDENTITY
from .merge_cluster import MergeCluster, MergeNemesis
from .merge_node import MergeNode
from .stream import OUT

SCRUB_TICKS = 4  # between two turns
TURN_BYTES = 2_000
PIECES_MAX = 10_000  # of one file
BAD_SECTOR_SHARE = 0.4  # of what is written for a repair
BROKEN_SHARE = 0.6  # of the connections that bring it


class RottenNemesis(MergeNemesis):
    """Flips bits in rolled merged files."""

    world: "RottenCluster"

    def _more_deeds(self) -> list[Callable[[], None]]:
        return [*super()._more_deeds(), *[self._rot_rolled] * 16]

    def _rot_rolled(self) -> None:
        """Damage one file, on one node or on all that may be."""
        nodes = [node for node in self.world.nodes.values() if node.alive]
        frail = [node for node in nodes if node.name in self.world.frail]
        if self._chance.random() < 0.5:
            frail = frail[:1]
        if not frail:
            return
        known = frail[0].member.executor.appender.manifest
        files = [file for file in known.order if file not in known.archived]
        if not files:
            return
        file = self._chance.choice(files)
        path = f"{OUT}/{file.file_name}"
        for node in frail:
            if self._may_rot(node) and (done := node.disk.rot([path], cut=False)):
                node.rotted = True
                node.rotten_files.add(file)
                self.world.trace(f"{node.name} rots {done}")


class NodeFiles:
    """Where a node's files are fetched from (`replicator.mend.FileSource`): as `FileFetch` does.

    The connection is the simulation's, from one log directory to another, within a turn.
    """

    def __init__(self, node: "RottenNode") -> None:
        self._node = node

    def nodes(self) -> Sequence[str]:
        """All others."""
        return [name for name in self._node.world.names if name != self._node.name]

    def fetch(self, node: str, log: Appender, line: Rolled) -> str:
        """Pull a file into a log of its own."""
        target = self._node
        peer = target.world.nodes[node]
        is_broken = target.world.nemesis.active and target.draws(BROKEN_SHARE)
        if is_broken or not target.world.reaches(peer, target):
            raise Refused("unrepaired", "no answer")
        target.fetches += 1
        directory = f"{OUT}/repair.{target.life}.{target.fetches}"
        copy = Appender(target.disk, directory, IDENTITY)
        before = line_before(log.manifest, line)
        if before is not None:
            copy.skip_archived(before, not_copied(before))
        try:
            self._carry(peer, copy, line)
        finally:
            copy.close()
        path = f"{directory}/{line.file.file_name}"
        if target.is_writing_badly():
            target.disk.rot([path], cut=False)
        return path

    def _carry(self, peer: MergeNode, copy: Appender, line: Rolled) -> None:
        pulled = PulledLog(copy, lambda _entry: False, lambda _end: None)
        try:
            pipe = peer.feed_pipe(pulled, relays=True)
            for _ in range(PIECES_MAX):
                peer.demand_unserved(pipe.step)
                if line.file in copy.manifest.archived:
                    raise Refused("archived", "it has archived the file")
                if copy.next_place > line.file + line.end:
                    return
                if pipe.caught_up:
                    break
        except (CorruptLog, ManifestError, PeerError) as error:
            raise Refused("corrupt", str(error)) from None
        raise Refused("behind", "it does not have the file")

    def clear(self) -> None:
        """Leave it: simulated disks remove no directories."""


class RottenNode(MergeNode):
    """A node that scrubs, as its thread would: a little now and then."""

    world: "RottenCluster"

    def _start(self) -> None:
        super()._start()
        self.fetches = self.rounds = 0
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
        return [self.member.executor.appender, *(each.appender for each in inboxes)]

    def is_writing_badly(self) -> bool:
        """Whether a disk that loses sectors has lost what was just written."""
        nemesis = self.world.nemesis
        is_bad = nemesis.active and self.name in self.world.frail and not self.world.has_cuts
        return is_bad and self.draws(BAD_SECTOR_SHARE)

    def draws(self, share: float) -> bool:
        """Whether chance wants it."""
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

    def _draw_names(self, chance: Random) -> tuple[str, ...]:
        super()._draw_names(chance)
        return ("n1", "n2", "n3", "n4", "n5")[: chance.choice([3, 5, 5])]

    def _make_node(self, name: str, chance: Random) -> RottenNode:
        return RottenNode(name, self, chance)

    def _recovered(self) -> bool:
        nodes = [node for node in self.nodes.values() if isinstance(node, RottenNode)]
        return all(node.is_whole for node in nodes) and super()._recovered()
