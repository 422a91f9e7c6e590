"""A cluster with readers that follow and readers that stop, on nodes and mirrors."""

from collections import deque
from dataclasses import replace
from random import Random

from rt.position import START, Position
from sequencer.raft.core import Settings

from .checkers import Violation
from .copying import LAG_S, LOOK_S
from .merge_cluster import MergeNemesis
from .merge_node import MergeNode
from .merge_progress import MergeProgress
from .nemesis import Nemesis
from .progress import CALM_BATCH_BYTES, CALM_DELAY_US, CALM_LOSS, Progress
from .pullers import DIAL_US, Copier, Follower, Mirror, Stopper
from .read_cluster import ReadCluster

STEP_US = 4_000
COPYING_US = 2_000  # time to copy a piece of a merged log, in calm worlds
SLACK_US = 60_000  # time for steps, dials and slow checks


class PulledNemesis(MergeNemesis):
    """Makes nodes lag: cut off, paused, dead or out of room, for longer than a reader waits."""

    world: "PulledCluster"

    def __init__(self, cluster: "PulledCluster", chance: Random) -> None:
        super().__init__(cluster, chance)
        self._strike /= 4
        self._cut_inside = self._failing_sync = 0.0
        self._deeds = [
            self._partition, self._partition, self._swizzle, self._crash, self._crash_leader,
            self._pause, self._transfer, self._fill_disk, self._fill_disk, self._change_links,
            self._roll, self._retain, self._cut_reader, self._cut_reader, self._restart_mirror,
        ]  # fmt: skip
        self._pause_us = chance.choice([5, 15, 40]) * cluster.tick_us
        if cluster.is_calm:  # then a majority that can talk must keep merging
            cluster.wire.loss = min(cluster.wire.loss, CALM_LOSS)
            cluster.wire.delay_us = min(cluster.wire.delay_us, CALM_DELAY_US)
            cluster.copying_us = min(cluster.copying_us, COPYING_US)

    def _cut_reader(self) -> None:
        self.world.cut_reader(self._chance)

    def _restart_mirror(self) -> None:
        self.world.restart_reader(self._chance)


class PulledCluster(ReadCluster):
    """Checks: a reader that stops has what was merged when it began; one that follows is close.

    In the end a reader copies from a mirror that it prefers, if there is one.
    While a majority can talk, which is most of the time in these worlds, it must keep merging.
    """

    fault_ticks = 300
    nemesis_type = PulledNemesis
    cutting_share, resetting_share, leaving_share = 0.1, 0.3, 0.4

    def draw_settings(self) -> Settings:
        drawn = super().draw_settings()
        self.is_calm = self.seed // 64 % 4 > 0
        if not self.is_calm:
            return drawn
        return replace(
            drawn, election_ticks=3, chunk_bytes=4096,
            batch_bytes_max=max(drawn.batch_bytes_max, CALM_BATCH_BYTES),
        )  # fmt: skip

    def _progress(self) -> Progress:
        return MergeProgress(self)

    def make_nemesis(self, chance: Random) -> Nemesis:
        nemesis = super().make_nemesis(chance)
        self._reading = reading = Random(f"{self.seed} readers")
        self.mirrors: dict[str, Mirror] = {}
        self._cut_off = set()
        self._remembered_us = 0  # the longest lag that is checked
        self._there_since_us: dict[tuple[str, str, int], int] = {}
        self._ends: dict[str, deque[tuple[int, Position]]] = {}
        self.demanded = 0  # how often a follower was compared with a source
        self._sources = {}
        self._visitor.is_on = False  # there are enough readers
        names = list(self.names)
        for number in range(reading.choice([1, 1, 2, 3])):
            above = [*reading.sample(names, reading.randint(1, len(names))), *self.mirrors]
            sources = above if reading.random() < 0.5 or not self.mirrors else list(self.mirrors)
            name = f"mirror{number}"
            self.mirrors[name] = Mirror(name, self, sources[-reading.choice([1, 2, 9]) :])
        everyone = [*names, *self.mirrors]
        nearness = Random(f"{self.seed} near")
        self.followers = [
            Follower(
                f"follower{number}", self, self._draw_sources(reading, everyone),
                self._draw_near(nearness),
            )
            for number in range(2)
        ]  # fmt: skip
        self.stoppers = [
            Stopper(
                f"stopper{number}", self, self._draw_sources(reading, everyone),
                self._draw_near(nearness),
            )
            for number in range(2)
        ]  # fmt: skip
        late_us = max(self.late_us(len(each.sources)) for each in self.followers)
        self._remembered_us = late_us + STEP_US
        self.clock.after(STEP_US, self._read)
        return nemesis

    def _draw_sources(self, chance: Random, everyone: list[str]) -> list[str]:
        drawn = chance.random()
        if drawn < 0.5:
            return chance.sample(self.names, len(self.names))
        if drawn < 0.7:
            return [chance.choice(list(self.mirrors))]
        return chance.sample(everyone, chance.randint(1, len(everyone)))

    def _draw_near(self, chance: Random) -> list[str]:
        """Draw the mirrors that a reader prefers, in order."""
        if chance.random() < 0.5:
            return []
        return chance.sample(list(self.mirrors), chance.randint(1, len(self.mirrors)))

    def mirrors_of(self) -> dict[str, Mirror]:
        """Return all mirrors, by name."""
        return self.mirrors

    def cut_reader(self, chance: Random) -> None:
        """Cut a reader or mirror off from a source, or from all, or restore all links."""
        reader = chance.choice([*self.followers, *self.stoppers, *self.mirrors.values()])
        self.cut_off(reader.name, reader.sources, chance)

    def restart_reader(self, chance: Random) -> None:
        """Start a mirror or a reader again."""
        copiers: list[Copier] = [*self.mirrors.values(), *self.followers]
        chance.choice(copiers).restart()

    def _read(self) -> None:
        self.clock.after(STEP_US, self._read)
        for mirror in self.mirrors.values():
            mirror.step()
        for reader in (*self.followers, *self.stoppers):
            reader.step()
        self._remember()
        for follower in self.followers:
            self._demand_close(follower)

    # How far a follower may lag

    def _remember(self) -> None:
        """Record how long each reader has reached each source, and the sources' ends over time."""
        now_us = self.clock.now_us
        for name, source in self.sources.items():
            ends = self._ends.setdefault(name, deque())
            ends.append((now_us, source.merged_end if self._is_serving(source) else START))
            if ends[0][0] < now_us - self._remembered_us:
                ends.popleft()
            for follower in self.followers:
                key = (follower.name, name, source.life)
                if self._is_serving(source) and self.reads_from(follower, source):
                    self._there_since_us.setdefault(key, now_us)
                else:
                    self._there_since_us.pop(key, None)

    def _is_serving(self, source: MergeNode | Mirror) -> bool:
        return isinstance(source, Mirror) or (source.alive and source.view.refusal is None)

    def late_us(self, sources: int) -> int:
        """Return how late a follower of this many sources may be."""
        looks = (sources - 1) + 3 * sources  # the others' turn, and each of them may lag
        return int((looks * LOOK_S + sources * LAG_S) * 1e6) + SLACK_US + 2 * sources * DIAL_US

    def _demand_close(self, follower: Follower) -> None:
        """Check that a follower has what any source had that it could reach ever since."""
        now_us, late_us = self.clock.now_us, self.late_us(len(follower.sources))
        then_us = now_us - late_us
        if follower.since_us > then_us:
            return
        for name in follower.sources:
            source = self.sources[name]
            since_us = self._there_since_us.get((follower.name, name, source.life), now_us)
            if since_us > then_us:
                continue
            had = self._ends[name][-(late_us // STEP_US) - 1][1]
            if had.file in source.manifest.archived:
                continue  # emptied by lines that came with a copy, and not executed yet
            self.demanded += 1
            if follower.place < had:
                raise Violation(
                    f"{follower.name} is at {follower.place}, and {name} had {had} "
                    f"{late_us / 1000:.0f} ms ago"
                )

    def end_faults(self) -> None:
        super().end_faults()
        self._cut_off.clear()
        self._stops = [each.done for each in self.stoppers]

    def recovered(self) -> bool:
        if not super().recovered():
            return False
        copies = [*self.followers, *self.mirrors.values()]
        has_stopped = all(
            each.done > before for each, before in zip(self.stoppers, self._stops, strict=True)
        )
        if not has_stopped or any(each.place < self.stream.end for each in copies):
            return False
        if any(each.near and each.source not in each.near for each in self.followers):
            return False  # it must find out that a mirror that it prefers has everything, too
        for each in copies:
            self.stream.compare(each.name, each.disk, START, self.stream.end)
        return True

    def states(self) -> list[str]:
        copies = [*self.followers, *self.mirrors.values()]
        return [
            f"the stream ends at {self.stream.end}",
            *[
                f"{each.name} of {each.sources}, near {each.near}, at {each.source}: {each.place}"
                for each in copies
            ],
            *[f"{each.name} of {list(each.sources)}: {each.state()}" for each in self.stoppers],
            *super().states(),
        ]
