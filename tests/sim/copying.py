"""Copies of the merged log, pulled from node to node by a node or by a subscriber."""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol

from replicator.pull.lag_watch import LagWatch
from replicator.pull.local_copy import PulledLog, set_end_aside
from replicator.wire.rotation import Rotation
from rt.errors import CorruptLog, ManifestError, PeerError, Refused
from rt.format.manifest import MERGED, LogIdentity, Rolled
from rt.log.files.archived import finish_archiving, not_copied
from rt.log.write.appender import Appender
from rt.log.write.rolled_check import line_before
from rt.position import START, Position

from .checkers import Violation
from .disk import SimDisk
from .publisher import STREAM, Pipe
from .stream import OUT

if TYPE_CHECKING:
    from .merge_cluster import MergeCluster
    from .merge_node import MergeNode

LOOK_S, LAG_S = 0.03, 0.06  # as the product's, a hundred times faster
VISITING_SHARE = 0.3
VISITING_HASTE = 10  # pieces copied at once
PIECES_MAX = 10_000  # pieces of a fetched file, at most
BROKEN_SHARE = 0.6  # share of repair connections that break where disks lose sectors
IDENTITY = LogIdentity(MERGED, STREAM, OUT, "5" * 32, 0)


News = tuple[int, Position, Position]


class Puller(Protocol):
    """The owner of a copy."""

    name: str
    world: "MergeCluster"
    disk: SimDisk
    rotted: bool
    relays: bool  # whether it is a node

    def caught_up(self, peer: "MergeNode", end: Position) -> None:
        """Note that a node calls the copy complete."""

    def suspect(self, damage: CorruptLog) -> None:
        """Note that a rolled file of the copy is damaged."""


class Pull:
    """Copies the merged log from one node after another, as `replicator.pull.client` does."""

    def __init__(self, puller: Puller, chance: Random, begin: int = 0) -> None:
        """Begin to copy; the copy is useful once it is past `begin`."""
        self._puller, self._chance = puller, chance
        self._copy = self._open()
        self._begin = begin
        self._pipe: Pipe | None = None
        self._peer: MergeNode | None = None
        self._is_ahead = False  # of the node that was asked last
        self._life = 0
        self.has_ended = False
        self._first = chance.randrange(len(puller.world.names))
        self._learn()

    def _open(self) -> PulledLog:
        disk = self._puller.disk
        appender = Appender(disk, OUT, self._puller.world.merged_identity)
        appender.recover()
        finish_archiving(disk, OUT, appender.manifest)
        return PulledLog(appender, lambda _entry: False, lambda _end: None)

    @property
    def log(self) -> Appender:
        """Return the log that it writes."""
        return self._copy.appender

    def step(self) -> None:
        """Copy a little more."""
        self._look()
        world, peer = self._puller.world, self._peer
        if peer is None or not (world.reaches(peer, self._puller) and peer.life == self._life):
            self.hang_up()
        try:
            if self._pipe is None or peer is None:
                self._connect()
            elif self._chance.random() < 0.05 and world.nemesis.active:
                self.hang_up()
            elif self._seen != (news := peer.news) or not self._pipe.caught_up:
                self._carry(self._pipe, peer, news)
                if self._chance.random() < 0.05:
                    self._copy.sync()
        except (Refused, CorruptLog, PeerError, ManifestError) as error:
            assert self._peer is not None
            world.trace(f"{self._puller.name} cannot copy from {self._peer.name}: {error}")
            self._is_ahead = getattr(error, "code", "") == "behind"
            if getattr(error, "code", "") == "diverged":
                self._copy.doubted()  # as the real connection does
            if not (self._puller.rotted or self._peer.rotted or "behind" in str(error.args)):
                world.demand_behind(self._puller.name, self._peer.name, error)
            self.hang_up()

    def _learn(self) -> None:
        """Learn of the nodes that there are now."""
        self._names = names = self._puller.world.names
        turned = (*names[self._first :], *names[: self._first])
        others = [each for each in turned if each != self._puller.name]
        self._rotation: Rotation[str] = Rotation(others)
        self._watch: LagWatch[str] = LagWatch(others, look_s=LOOK_S, lag_s=LAG_S)

    def _look(self) -> None:
        """See how far the others are, now and then, and leave a node that lags."""
        world, now_s = self._puller.world, self._now_s
        self._watch.grown(self.log.next_place, now_s)
        if (name := self._watch.due(now_s)) is not None:
            node = world.nodes.get(name)
            is_there = node is not None and world.reaches(node, self._puller)
            end = node.merged_end if node is not None and is_there else None
            self._watch.heard(name, end, now_s)
        if why := self._watch.why_leave(now_s):
            assert self._peer is not None
            world.trace(f"{self._puller.name} leaves {self._peer.name}: {why}")
            self.hang_up()

    @property
    def _now_s(self) -> float:
        return self._puller.world.clock.now_us / 1e6

    def _carry(self, pipe: Pipe, peer: "MergeNode", news: News) -> None:
        was_caught_up, before = pipe.caught_up, self.log.next_place
        if not all(peer.demand_unserved(pipe.step) for _ in range(self._puller.world.haste)):
            self._seen = news
        if pipe.caught_up or self.log.next_place > before:
            self._rotation.progressed()
        if pipe.caught_up and not was_caught_up:
            self._puller.caught_up(peer, self.log.next_place)

    def _connect(self) -> None:
        world = self._puller.world
        if self._names != world.names:
            self._learn()
        name = self._rotation.next(lambda node: self._watch.puts_off(node, self._now_s))
        peer = None if name is None else world.nodes.get(name)
        if peer is None or not world.reaches(peer, self._puller):
            return
        self._peer, self._life = peer, peer.life
        damage, self._copy.damage = self._copy.damage, None
        if damage is not None and set_end_aside(self.log, damage):
            self._copy = self._open()
        elif damage is not None:
            self._puller.suspect(damage)
        self._pipe = peer.feed_pipe(self._copy, relays=self._puller.relays)
        self._is_ahead = False
        self._seen = (-1, START, START)
        self._watch.connected(peer.name, self._now_s)

    def hang_up(self) -> None:
        """Close the connection, if there is one."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
            self._watch.connected(None, self._now_s)

    def is_done(self, ledger_end: Position) -> bool:
        """Whether merging can continue."""
        caught_up = self._pipe is not None and self._pipe.caught_up
        return (caught_up or self._is_ahead) and max(
            ledger_end, self._begin + 1
        ) <= self.log.next_place

    @property
    def position(self) -> Position:
        """How far it is copied."""
        return self.log.end

    waits_for = ""

    def end(self) -> bool:
        """Ask it to end; if it is busy, ask again later."""
        if self._chance.random() < 0.3:
            return False
        self.stop()
        return True

    def stop(self, *, sync: bool = True) -> None:
        """End the copy."""
        self.has_ended = True
        self.hang_up()
        if sync:
            self._copy.sync()
        self.log.close()


class NodeFiles:
    """The nodes that a node fetches files from (`FileSource`), as `FileFetch` does.

    The connection is simulated: it copies from one log directory to another within a turn.
    """

    def __init__(self, node: "MergeNode") -> None:
        self._node = node

    def nodes(self) -> Sequence[str]:
        """Return all other nodes."""
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
        copy = Appender(target.disk, directory, target.world.merged_identity)
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

    def _carry(self, peer: "MergeNode", copy: Appender, line: Rolled) -> None:
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
        """Leave the directory: simulated disks remove none."""


class Subscriber:
    """A copy of the merged log that changes its source, on a machine that may lose its power."""

    rotted = relays = False

    def __init__(self, world: "MergeCluster", chance: Random) -> None:
        self.name, self.world, self._chance = "subscriber", world, chance
        self.disk = SimDisk(Random(chance.getrandbits(32)))
        self.pull = Pull(self, chance)
        self.is_complete = self.is_over = False

    def stop(self) -> None:
        """Copy no more: the copy was promoted."""
        self.is_over = True
        self.pull.stop()

    def step(self) -> None:
        """Copy a little more, or start again."""
        if self.is_over:
            return
        if self.world.nemesis.active and self._chance.random() < 0.01:
            self.pull.stop(sync=False)
            if self._chance.random() < 0.5:
                self.disk.cut_power()
            self.world.trace(f"{self.name} starts")
            self.pull = Pull(self, self._chance)
        self.pull.step()

    def caught_up(self, peer: "MergeNode", end: Position) -> None:
        """Check that a copy which a node calls complete is complete."""
        peer.demand_complete(end)
        self.is_complete = True

    def suspect(self, damage: CorruptLog) -> None:
        """Fail: only nodes' disks rot."""
        raise Violation(str(damage))

    def connect_again(self) -> None:
        """Reconnect, so that a node must again say that the copy is complete."""
        self.is_complete = False
        if not self.is_over:
            self.pull.hang_up()


class Visitor:
    """Makes one copy after another in a new directory, as `rt pull --once` does."""

    rotted = relays = False

    def __init__(self, world: "MergeCluster") -> None:
        self.name, self.world = "visitor", world
        self._chance = Random(f"{world.seed} visitor")  # independent of all other random choices
        self.is_on = self._chance.random() < VISITING_SHARE
        self.disk = SimDisk(self._chance)
        self._pull: Pull | None = None

    def step(self) -> None:
        """Copy a little more, or begin a copy."""
        if not self.is_on or not self.world.nemesis.active:
            return
        if self._pull is None or self._pull.has_ended:
            self.disk = SimDisk(self._chance)
            self._pull = Pull(self, self._chance)
        for _ in range(VISITING_HASTE):
            if not self._pull.has_ended:
                self._pull.step()

    def caught_up(self, peer: "MergeNode", end: Position) -> None:
        """Check that the copy is complete, as a node says, and end this visit."""
        assert self._pull is not None
        self._pull.stop(sync=False)
        peer.demand_complete(end)

    def suspect(self, damage: CorruptLog) -> None:
        """Fail: only nodes' disks rot."""
        raise Violation(str(damage))
