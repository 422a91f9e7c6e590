"""A world without faults, in which each publisher reaches only the nodes it is given."""

from collections.abc import Mapping, Sequence
from random import Random

from rt.position import START
from sequencer.raft.core import Settings

from .merge_cluster import MergeCluster, MergeNemesis
from .nemesis import Nemesis
from .publisher import SESSIONS

_SETTLING_TICKS = 50  # until every node knows the leader and was reported whole
_SHIP_US = 200
_RELAYED_SHARE = 100  # one check in this many also looks at relays: every 20 ms


class FaultlessNemesis(MergeNemesis):
    """Does nothing."""

    def __init__(self, cluster: MergeCluster, chance: Random) -> None:
        super().__init__(cluster, chance)
        self._strike = self._cut_inside = self._failing_sync = self._regicide = 0.0
        self._deeds = [lambda: None]
        cluster.wire.loss = cluster.wire.repeat = 0.0
        cluster.wire.delay_us = 200

    def act(self) -> None:
        """Do nothing, not even heal: links that are cut stay cut."""


class FaultlessCluster(MergeCluster):
    """Three nodes, of which the first leads.

    Args:
        seed: the seed of the delays.
        reach: the nodes that each session's publisher reaches; all nodes by default.
    """

    nemesis_type = FaultlessNemesis

    def __init__(self, seed: int, reach: Mapping[str, Sequence[str]] | None = None) -> None:
        self._reachable = reach or {}
        self._shipped = 0
        super().__init__(seed)
        for publisher in self.publishers.values():
            vars(publisher)["roll_file"] = lambda **_: (
                None
            )  # reports are needed before the next file
        assert self.until(500, lambda: any(each.is_idle() for each in self.nodes.values()))
        self.lead("n1")
        self.until(_SETTLING_TICKS, lambda: False)

    def draw_names(self, chance: Random) -> tuple[str, ...]:
        return ("n1", "n2", "n3")

    def draw_settings(self) -> Settings:
        return Settings(heartbeat_ticks=5, election_ticks=25)

    def make_nemesis(self, chance: Random) -> Nemesis:
        nemesis = super().make_nemesis(chance)
        self.file_bytes, self.snapshot_chance, self.is_hasty = 1 << 20, 0.0, False
        self.missing_us, self.patience = 100 * self.tick_us, 100
        nemesis.active = self.has_cuts = self.has_restores = False
        return nemesis

    def draw_links(self, chance: Random) -> None:
        """Let each publisher always reach the nodes it is given, and no others."""
        for session in SESSIONS:
            for name in self.names:
                reached = name in self._reachable.get(session, self.names)
                self.links[session, name] = 1.0 if reached else 0.0

    def _client(self) -> None:
        """Publish nothing by itself."""

    def _ship(self) -> None:
        """Carry what is there at once; let relays look for more from time to time."""
        self.clock.after(_SHIP_US, self._ship)
        for (session, name), quality in self.links.items():
            node, publisher = self.nodes[name], self.publishers[session]
            if quality and node.alive and publisher.end and not node.has_all_of(publisher):
                node.guarded(node.ship, session)
        self._shipped += 1
        if not self._shipped % _RELAYED_SHARE:
            for node in self.nodes.values():
                if node.alive:
                    node.pass_on()

    def lead(self, name: str) -> None:
        """Make a node the leader."""
        node = self.nodes[name]
        if not node.raft.leads:
            leader = next(each for each in self.nodes.values() if each.raft.leads)
            leader.guarded(self.transfer, leader, name)
        assert self.until(500, lambda: node.raft.leads)

    def merged_within_us(self, *sessions: str, ticks: int = 2_000) -> int:
        """Publish a frame in each session; return the time until the last of them is merged."""
        begin = self.clock.now_us
        for session in sessions:
            self.publishers[session].publish()

        def is_merged() -> bool:
            return all(
                self.stream.merged.get(each, START)
                >= self.publishers[each].last_byte(self.publishers[each].end)
                for each in sessions
            )

        while not is_merged():
            assert self.clock.now_us < begin + ticks * self.tick_us, self.states()
            self.clock.step(1)
        return self.clock.now_us - begin
