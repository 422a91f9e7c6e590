"""A world whose publishers pause for long: nodes become idle, and every event has to wake them."""

from collections.abc import Callable
from random import Random

from rt.node.agree.duties import Timing
from sequencer.raft.core import Settings

from .checkers import Violation
from .idle_heartbeat import BEAT, SimIdleHeartbeat
from .merge_cluster import MergeCluster, MergeNemesis
from .merge_node import MergeNode
from .nemesis import Nemesis
from .node import SimNode

CALM_TICKS, REST_TICKS = 8, 100
AWAY_TICKS = 60, 160  # ticks that a node is away, so that the others become idle without it
# A lagging node that can be reached sends something several times in this time.
PATIENCE_TICKS = 40
# messages in a burst at most, and the time between bursts
BURST, PAUSES_US = 4, (600_000, 2_400_000)


class RestingNemesis(MergeNemesis):
    """Kills, cuts off, pauses and moves idle nodes; each fault lasts for some elections."""

    def __init__(self, cluster: "RestingCluster", chance: Random) -> None:
        super().__init__(cluster, chance)
        self._strike = self._cut_inside = self._failing_sync = self._regicide = 0.0
        self._rest_ticks = chance.choice([4, 40])
        self._deeds = [self._crash, self._crash_leader, self._partition, self._swizzle,
                       self._pause, self._transfer, self._roll, self._retain,
                       *[self._send_away] * chance.choice([0, 2, 6])]  # fmt: skip
        self._away = ""  # the node that is cut off for long
        self._pause_us = chance.choice([20, 40]) * cluster.tick_us
        cluster.wire.delay_us = min(cluster.wire.delay_us, 2_000)

    def act(self) -> None:
        """Cause a fault, or heal the links; do so again later."""
        super().act()
        self._cut_away()

    def _send_away(self) -> None:
        """Stop a node for long, or cut it off; a leader as often as any other."""
        node, cluster = self._victim(), self.cluster
        if not node.alive or self._away:
            return
        delay_us = self._chance.randint(*AWAY_TICKS) * cluster.tick_us
        if self._chance.random() < 0.5:
            node.die("to be away for long", power=self._chance.random() < 0.5)
            cluster.clock.after(delay_us, self._restart, node, node.life)
        else:
            self._away = node.name
            self._cut_away()
            cluster.clock.after(delay_us, self._return)

    def _cut_away(self) -> None:
        others = [name for name in self.cluster.names if name != self._away]
        if self.active and self._away:
            self.cluster.wire.isolate([self._away], others, hears=False, speaks=False)

    def _return(self) -> None:
        self._away = ""
        self.cluster.wire.heal()


class RestingNode(MergeNode):
    """A node that hears the idle heartbeats of other processes."""

    idle_heartbeat: SimIdleHeartbeat

    def receive(self, source: str, data: bytes) -> None:
        """Handle a member's message, or its process's heartbeat."""
        if data.startswith(BEAT):
            self.idle_heartbeat.receive(source, data)
        else:
            super().receive(source, data)

    def step_duties(self) -> None:
        """Let the node's duties take a step."""
        super().step_duties()
        if self.is_resting and self.raft.leads:
            assert isinstance(self.world, RestingCluster)
            self.world.demand_even(self)

    @property
    def is_resting(self) -> bool:
        """Whether its timers are stopped."""
        return self.alive and self.duties.idle_policy.is_resting


class RestingCluster(MergeCluster):
    """Publishers publish a little, and then nothing for long."""

    fault_ticks = 600
    nemesis_type = RestingNemesis
    cutting_share = 0.0

    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        self.rests = 0  # steps in which a leader was idle
        self.short_rests = 0  # those of them in which a member was away
        self._since_us: dict[tuple[str, int, str, int], int] = {}
        super().__init__(seed, log=log)
        self._bursts_us = self._chance.choice(PAUSES_US)
        self.clock.after(self.tick_us, self._look)

    def draw_names(self, chance: Random) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, chance.choice((3, 3, 5)) + 1))

    def draw_settings(self) -> Settings:
        chance = self._chance
        return Settings(heartbeat_ticks=chance.choice([1, 2]), election_ticks=chance.choice([5, 8]))

    def make_nemesis(self, chance: Random) -> Nemesis:
        nemesis = super().make_nemesis(chance)
        self.snapshot_chance, self.is_hasty = 0.3, False
        self.missing_us = max(self.missing_us, 8 * self.tick_us)
        self._reach = dict.fromkeys(self.publishers, self.names)
        return nemesis

    def _make_node(self, name: str, chance: Random) -> MergeNode:
        return RestingNode(name, self, chance)

    def idle_heartbeat_of(self, node: MergeNode) -> SimIdleHeartbeat:
        """Return the idle heartbeats of a node's process."""
        assert isinstance(node, RestingNode)
        beat_us = self.settings.heartbeat_ticks * self.tick_us
        node.idle_heartbeat = SimIdleHeartbeat(
            node, beat_us, self.settings.election_ticks * self.tick_us
        )
        return node.idle_heartbeat

    def left(self, node: MergeNode) -> Callable[[], None]:
        """Return a function that wakes a node when a publisher leaves."""
        return node.wake

    def timing(self, tick_s: float) -> Timing:
        """Make nodes idle soon, and for long."""
        return Timing(
            tick_s, self.missing_us / 1e6, tick_s, self.patience, self.settings.heartbeat_ticks,
            CALM_TICKS * tick_s, REST_TICKS * tick_s,
        )  # fmt: skip

    def demand_even(self, leader: RestingNode) -> None:
        """Check that an idle leader has all committed, and present members have it durably."""
        core, away = leader.raft.core, leader.duties.idle_policy.away
        if core.commit < core.log.last:
            last = core.log.last
            raise Violation(f"{leader.name} rests at {core.commit}, its log ends at {last}")
        self.rests += 1
        self.short_rests += bool(away)
        for node in self.nodes.values():
            durable, is_there = node.raft.core.log.durable, node.alive and not node.lost
            if is_there and node.name not in away and durable < core.commit:
                raise Violation(f"{leader.name} rests at {core.commit}, {node.name} has {durable}")

    def _look(self) -> None:
        """Check that an idle leader's reachable members durably have what is committed."""
        self.clock.after(self.tick_us, self._look)
        since_us = self._since_us
        self._since_us = {}
        for leader in self.nodes.values():
            assert isinstance(leader, RestingNode)
            if leader.is_resting and leader.raft.leads:
                for node in self.nodes.values():
                    if self._is_behind(leader, node):
                        key = leader.name, leader.life, node.name, node.life
                        self._since_us[key] = since_us.get(key, self.clock.now_us)
        for (leader_name, _, name, _), at_us in self._since_us.items():
            if self.clock.now_us - at_us > PATIENCE_TICKS * self.tick_us:
                raise Violation(f"{leader_name} rests, and {name} is left behind")

    def _is_behind(self, leader: RestingNode, node: SimNode) -> bool:
        """Whether a node lacks what another has committed, and nothing separates them."""
        pair, cut = (leader.name, node.name), self.wire.cut
        if not node.alive or pair in cut or pair[::-1] in cut:
            return False
        is_awake = max(leader.paused_until_us, node.paused_until_us) <= self.clock.now_us
        return is_awake and node.raft.core.log.durable < leader.raft.core.commit

    def _client(self) -> None:
        """Publish a burst, then pause until the nodes are idle."""
        most_us = self._bursts_us if self.nemesis.active else min(PAUSES_US)
        self.clock.after(self._chance.randrange(most_us // 2, most_us), self._client)
        for _ in range(self._chance.randint(1, BURST)):
            publisher = self._chance.choice(list(self.publishers.values()))
            if self._proposed < self._proposals_max and publisher.alive:
                publisher.publish()
        self._proposed += 1
