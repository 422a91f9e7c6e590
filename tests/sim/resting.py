"""A world whose publishers pause for long: nodes rest, and whatever happens has to wake them."""

from collections.abc import Callable
from random import Random

from rt.node.duties import Timing
from sequencer.raft.core import Settings

from .checkers import Violation
from .merge_cluster import MergeCluster, MergeNemesis
from .merge_node import MergeNode
from .nemesis import Nemesis
from .pulse import BEAT, SimPulse

CALM_TICKS, REST_TICKS = 8, 100
BURST, PAUSE_US = 4, 600_000  # publishes at most, and the time between two such bursts


class RestingNemesis(MergeNemesis):
    """Kills, cuts off, pauses and moves what rests; each fault lasts for some elections."""

    def __init__(self, cluster: "RestingCluster", chance: Random) -> None:
        super().__init__(cluster, chance)
        self._strike = self._cut_inside = self._failing_sync = self._regicide = 0.0
        self._rest_ticks = chance.choice([4, 40])
        self._deeds = [self._crash, self._crash_leader, self._partition, self._swizzle,
                       self._pause, self._transfer, self._roll, self._retain]  # fmt: skip
        self._pause_us = chance.choice([20, 40]) * cluster.tick_us
        cluster.wire.delay_us = min(cluster.wire.delay_us, 2_000)


class RestingNode(MergeNode):
    """A node that hears what other processes say of their rest."""

    pulse: SimPulse

    def receive(self, source: str, data: bytes) -> None:
        """A message of a member has come, or a beat of its process."""
        if data.startswith(BEAT):
            self.pulse.take(source, data)
        else:
            super().receive(source, data)

    def _step(self) -> None:
        super()._step()
        rest = self.duties._rest
        if rest.is_resting and self.raft.leads:
            assert isinstance(self.world, RestingCluster)
            self.world.demand_even(self)


class RestingCluster(MergeCluster):
    """Publishers publish a little, and then nothing for long."""

    fault_ticks = 600
    nemesis_type = RestingNemesis
    cutting_share = 0.0

    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        self.rests = 0  # steps in which a leader rested
        super().__init__(seed, log=log)

    def _draw_names(self, chance: Random) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, chance.choice((3, 3, 5)) + 1))

    def _draw_settings(self) -> Settings:
        chance = self._chance
        return Settings(heartbeat_ticks=chance.choice([1, 2]), election_ticks=chance.choice([5, 8]))

    def _make_nemesis(self, chance: Random) -> Nemesis:
        nemesis = super()._make_nemesis(chance)
        self.snapshot_chance, self.is_hasty = 0.3, False
        self.missing_us = max(self.missing_us, 8 * self.tick_us)
        self._reach = dict.fromkeys(self.publishers, self.names)
        return nemesis

    def _make_node(self, name: str, chance: Random) -> MergeNode:
        return RestingNode(name, self, chance)

    def pulse_of(self, node: MergeNode) -> SimPulse:
        """What the process of a node has to say of its rest."""
        assert isinstance(node, RestingNode)
        beat_us = self.settings.heartbeat_ticks * self.tick_us
        node.pulse = SimPulse(node, beat_us, self.settings.election_ticks * self.tick_us)
        return node.pulse

    def left(self, node: MergeNode) -> Callable[[], None]:
        """A publisher that leaves wakes a node."""
        return node.wake

    def timing(self, tick_s: float) -> Timing:
        """Rest soon, and for long."""
        return Timing(
            tick_s, self.missing_us / 1e6, tick_s, self.patience, self.settings.heartbeat_ticks,
            CALM_TICKS * tick_s, REST_TICKS * tick_s,
        )  # fmt: skip

    def demand_even(self, leader: RestingNode) -> None:
        """While a leader rests, every member has durably what is committed: none has to be told."""
        self.rests += 1
        core = leader.raft._core
        for node in self.nodes.values():
            if node.alive and not node.lost and node.raft._core.log.durable < core.commit:
                raise Violation(
                    f"{leader.name} rests at {core.commit}, and {node.name} has "
                    f"{node.raft._core.log.durable}"
                )

    def _client(self) -> None:
        """A burst, and a pause in which the nodes come to rest."""
        self.clock.after(self._chance.randrange(PAUSE_US // 2, PAUSE_US), self._client)
        for _ in range(self._chance.randint(1, BURST)):
            publisher = self._chance.choice(list(self.publishers.values()))
            if self._proposed < self._proposals_max and publisher.alive:
                publisher.publish()
        self._proposed += 1
