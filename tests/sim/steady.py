"""A world whose faults leave a majority alone for long, so that it must make progress."""

from dataclasses import replace
from random import Random

from sequencer.raft.core import Settings

from .cluster import Cluster
from .nemesis import Nemesis
from .progress import CALM_BATCH_BYTES, CALM_DELAY_US, CALM_LOSS


class SteadyNemesis(Nemesis):
    """Cuts off, crashes and pauses a minority for long."""

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        super().__init__(cluster, chance)
        self._strike = self._cut_inside = self._failing_sync = self._regicide = 0.0
        self._deeds = [self._partition, self._partition, self._swizzle, self._crash,
                       self._crash_leader, self._pause, self._transfer]  # fmt: skip
        self._pause_us = chance.choice([40, 60]) * cluster.tick_us
        cluster.wire.loss = min(cluster.wire.loss, CALM_LOSS)
        cluster.wire.delay_us = min(cluster.wire.delay_us, CALM_DELAY_US)


class SteadyCluster(Cluster):
    """Few faults, each for long."""

    fault_ticks = 300

    def make_nemesis(self, chance: Random) -> Nemesis:
        return SteadyNemesis(self, chance)

    def draw_settings(self) -> Settings:
        drawn = super().draw_settings()
        return replace(drawn, batch_bytes_max=max(drawn.batch_bytes_max, CALM_BATCH_BYTES))
