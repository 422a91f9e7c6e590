"""Faults: drawn once per seed, then injected at random times until the faulty phase ends."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from .disk import PowerCut

if TYPE_CHECKING:
    from .cluster import Cluster
    from .node import SimNode

ROTTING = ["entries", "ballot.0", "ballot.1", "snapshot", "identity"]


class Nemesis:
    """Draws which faults a seed has and how often; many seeds have few kinds, some have all."""

    def __init__(self, cluster: "Cluster", chance: Random) -> None:
        self.cluster, self._chance = cluster, chance
        self.active = True
        self._strike = self._rarely(0.05)
        self._cut_inside = self._rarely(0.03)
        self._failing_sync = self._rarely(0.01)
        self._regicide = self._rarely(0.6)
        self._rest_ticks = chance.choice([1, 4, 30])
        deeds: list[Callable[[], None]] = [
            self._partition,
            self._crash,
            self._crash_leader,
            self._pause,
            self._bend_clock,
            self._transfer,
            self._slow_disk,
            self._lose_state,
            self._swizzle,
            self._crash_all,
            self._replay,
            *self.more_deeds(),
        ]
        self._deeds = [deed for deed in deeds if chance.random() < 0.5] or deeds
        cluster.wire.loss = self._rarely(0.3)
        cluster.wire.repeat = self._rarely(0.4)
        cluster.wire.delay_us = chance.choice([500, 2_000, 8_000, 20_000])
        self._pause_us = chance.choice([2, 5, 12]) * cluster.tick_us
        cluster.clock.after(self._pause_us, self.act)

    def more_deeds(self) -> list[Callable[[], None]]:
        """Return additional faults for this kind of world."""
        return []

    def _rarely(self, most: float) -> float:
        return self._chance.random() * most if self._chance.random() < 0.7 else 0.0

    def strikes(self, point: str) -> bool:
        """Whether a node dies at this point; twice as likely just after it has sent something."""
        chance = self._strike if point == "after speaking" else self._strike / 4
        return self.active and chance > 0 and self._chance.random() < chance

    def disk_fault(self, node: "SimNode") -> Callable[[str], None] | None:
        """Return the fault of a node's next disk operations, if any."""
        if not self.active or not (self._cut_inside or self._failing_sync):
            return None

        def fault(operation: str) -> None:
            drawn = self._chance.random()
            if drawn < self._cut_inside:
                raise PowerCut
            if operation == "sync" and drawn > 1 - self._failing_sync:
                raise OSError(5, "Input/output error")

        return fault

    def restart_later(self, node: "SimNode") -> None:
        """Start a dead node again after a while."""
        delay = self._chance.random() * self._rest_ticks * self.cluster.tick_us
        self.cluster.clock.after(int(delay), self._restart, node, node.life)

    def leader_writes(self, node: "SimNode") -> None:
        """Maybe kill a leader before, or just after, its engine's own entries are sent."""
        if self.active and self._chance.random() < self._regicide:
            wait = self._chance.randrange(2 * self.cluster.wire.delay_us)
            self.cluster.clock.after(wait, self._end_reign, node, node.life)

    def admission_commits(self, leader: "SimNode") -> None:
        """Maybe lose a leader for good as a member is admitted: the others must carry on alone.

        No follower knows the commit index yet, and the admitted one may lack the entry.
        """
        cluster, core = self.cluster, leader.raft.core
        others = [node for node in cluster.nodes.values() if node is not leader]
        counted = [n for n in others if core.roster.counts(n.name, n.incarnation)]
        is_whole = bool(others) and len(counted) == len(others)
        is_whole = is_whole and core.roster.changed_at <= core.commit
        if self.active and cluster.may_bury and is_whole and self._chance.random() < 0.5:
            cluster.clock.after(0, self._bury, leader, leader.life)

    def _bury(self, node: "SimNode", life: int) -> None:
        if self.active and node.life == life:
            node.die("for good", power=True)
            self.cluster.buried = self.cluster.wire.gone = node.name
            self.end()

    def _end_reign(self, node: "SimNode", life: int) -> None:
        if self.active and node.life == life:
            self._kill(node, power=self._chance.random() < 0.5)

    def _restart(self, node: "SimNode", life: int) -> None:
        if not node.alive and node.life == life:
            node.start()

    def end(self) -> None:
        """Stop causing faults; undo what would not end by itself."""
        self.active = False
        wire = self.cluster.wire
        wire.heal()
        wire.loss = wire.repeat = 0.0
        wire.delay_us = 2_000
        for node in list(self.cluster.nodes.values()):
            node.rate, node.paused_until_us, node.disk_delay_us = 1.0, 0, 500
            if not node.alive and node.name != self.cluster.buried:
                node.start()

    def act(self) -> None:
        """Cause a fault, or heal the links; do so again later."""
        if not self.active:
            return
        self.cluster.clock.after(self._chance.randint(1, 2 * self._pause_us), self.act)
        if self._chance.random() < 0.35:
            self.cluster.wire.heal()
        else:
            self._chance.choice(self._deeds)()

    def _victim(self) -> "SimNode":
        return self.cluster.nodes[self._chance.choice(self.cluster.names)]

    def find_leader(self) -> "SimNode | None":
        leading = [n for n in self.cluster.nodes.values() if n.alive and n.raft.leads]
        return self._chance.choice(leading) if leading else None

    def _partition(self) -> None:
        names = list(self.cluster.names)
        self._chance.shuffle(names)
        leader = self.find_leader()
        if leader is not None and self._chance.random() < 0.5:
            names.remove(leader.name)
            names.insert(0, leader.name)
        size = self._chance.randint(1, max(1, len(names) // 2))
        hears, speaks = self._chance.choice([(False, False), (True, False), (False, True)])
        self.cluster.wire.isolate(names[:size], names[size:], hears=hears, speaks=speaks)

    def _swizzle(self) -> None:
        """Cut each node off from one other, so that no two see the same network."""
        for name in self.cluster.names:
            other = self._chance.choice(self.cluster.names)
            if other != name:
                self.cluster.wire.cut[name, other] = True

    def _kill(self, node: "SimNode", *, power: bool) -> None:
        if node.alive:
            node.die("at any moment", power=power)
            self.restart_later(node)

    def _replay(self) -> None:
        self.cluster.wire.replay(self._chance.randint(5, 60))

    def _crash(self) -> None:
        self._kill(self._victim(), power=self._chance.random() < 0.7)

    def _crash_leader(self) -> None:
        leader = self.find_leader()
        if leader is not None:
            self._kill(leader, power=self._chance.random() < 0.7)

    def _crash_all(self) -> None:
        for node in list(self.cluster.nodes.values()):
            self._kill(node, power=True)

    def _pause(self) -> None:
        node = self._victim()
        pause = self._chance.randint(1, 40) * self.cluster.tick_us
        node.paused_until_us = self.cluster.clock.now_us + pause

    def _bend_clock(self) -> None:
        self._victim().rate = self._chance.choice([0.5, 0.7, 1.0, 1.4, 2.0])

    def _slow_disk(self) -> None:
        self._victim().disk_delay_us = self._chance.choice([100, 500, 3_000, 30_000])

    def _transfer(self) -> None:
        leader = self.find_leader()
        if leader is not None:
            leader.guarded(self.cluster.transfer, leader, self._chance.choice(self.cluster.names))

    def _lose_state(self) -> None:
        """Damage or empty one node's disk, if the others are enough to restore it.

        Never in the same downtime as a power cut: a tear and rot in the last batch look the same.
        """
        nodes = self.cluster.nodes.values()
        gone = [node for node in nodes if node.lost]
        victim = self._victim()
        if (
            not victim.alive
            or victim.lost
            or not self._may_rot(victim)
            or len(gone) >= len(self.cluster.names) - self.cluster.majority
        ):
            return
        self._kill(victim, power=False)
        victim.lost = True
        if self._chance.random() < 0.5:
            victim.disk.wipe()
            self.cluster.trace(f"{victim.name} wiped")
        else:
            victim.disk.settle_all()
            done = self._rot(victim)
            self.cluster.trace(f"{victim.name} rots {done}")

    def _may_rot(self, _node: "SimNode") -> bool:
        """Whether a node's disk may be damaged."""
        return True

    def _rot(self, node: "SimNode") -> str:
        return node.disk.rot([f"state/{name}" for name in ROTTING])
