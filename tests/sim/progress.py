"""Checks for progress during the faults: demanded whenever a majority has what it needs."""

from collections.abc import Hashable
from itertools import combinations
from typing import TYPE_CHECKING

from .checkers import Violation

if TYPE_CHECKING:
    from .cluster import Cluster
    from .node import SimNode

CALM_LOSS, CALM_DELAY_US, CALM_DISK_US = 0.1, 2_000, 3_000
CALM_RATES = 0.7, 2.0
CALM_BATCH_BYTES = 200  # with one entry in a message, comparing logs takes long
# Election timeouts: three elections may be needed. If no vote may be missing and a tenth of the
# messages is lost, every second election fails, and seven may be needed.
PATIENCE_TIMEOUTS = 10
PATIENCE_LOSS = 10  # the time is longer by this factor times the share of lost messages
# a majority may need the leader's state, sent in chunks, to two nodes at once
STATE_BYTES, CHUNK_US = 2000, 12_000


class Progress:
    """Tracks since when each node can work and each pair of nodes can talk.

    Checks: if for some election timeouts a majority is up, awake, connected to each other without a
    break and has room, and its clocks, disks and messages are not far slower than usual, then
    something is committed, or nothing needs to be: one of them leads, in its own term, or follows a
    node that does.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self._since_us: dict[Hashable, int] = {}
        self._decided = self._moved_us = 0
        self._leading: dict[str, int] = {}  # the leaders, each with its life
        self.demanded = 0  # how often a majority was able to work for long enough
        wire, settings = cluster.wire, cluster.settings
        self._is_calm = (
            cluster.has_fixed_members
            and wire.loss <= CALM_LOSS
            and wire.delay_us <= CALM_DELAY_US
            and settings.batch_bytes_max >= CALM_BATCH_BYTES
        )
        timeouts = PATIENCE_TIMEOUTS * (1 + PATIENCE_LOSS * wire.loss)
        chunks_us = STATE_BYTES // settings.chunk_bytes * CHUNK_US
        self._patience_us = round(timeouts * settings.election_ticks * cluster.tick_us) + chunks_us

    def look(self) -> bool:
        """Check every node; never the end of a run.

        Raises:
            Violation: a majority had all it needs, and committed nothing.
        """
        if self._is_calm:
            cluster, cut = self.cluster, self.cluster.wire.cut
            for node in cluster.nodes.values():
                self._note((node.name, node.life), self.is_fit(node))
            for one, other in combinations(cluster.names, 2):
                self._note((one, other), (one, other) not in cut and (other, one) not in cut)
            self._note_fallen()
            self.demand()
        return False

    def _note_fallen(self) -> None:
        """Begin to count again where a leader has died: its votes were won, and have to be again.

        A leader outside the majority that is looked at may be elected and killed in turn, with the
        votes of that majority, for as long as the faults like.
        """
        nodes = self.cluster.nodes
        if any(nodes[name].life != life for name, life in self._leading.items()):
            self._moved_us = self.cluster.clock.now_us
        self._leading = {n.name: n.life for n in nodes.values() if n.alive and n.raft.leads}

    def demand(self) -> None:
        """Raise `Violation` without progress."""
        cluster, now_us = self.cluster, self.cluster.clock.now_us
        decided = len(cluster.checker.decided)
        if decided != self._decided:
            self._decided, self._moved_us = decided, now_us
        if sum(map(self._is_led, cluster.names)) >= cluster.majority:
            # nothing needs to be committed; what comes later takes its time
            self._moved_us = now_us
        since_us = now_us - self._patience_us
        if since_us < self._moved_us:
            return
        able = self._able(since_us)
        if able:
            self.demanded += 1
            if not any(map(self._is_led, able)):
                raise Violation(f"{able} can work and talk, and have decided nothing for long")

    def _is_led(self, name: str) -> bool:
        """Whether a node leads, or can talk to a leader that it follows."""
        nodes, cut = self.cluster.nodes, self.cluster.wire.cut
        node = nodes[name]
        leader = nodes.get(node.raft.leader) if node.alive else None
        if leader is None or not (leader.alive and leader.is_idle()):
            return False
        is_same = leader.raft.status().term == node.raft.status().term
        return is_same and (name, leader.name) not in cut and (leader.name, name) not in cut

    def is_fit(self, node: "SimNode") -> bool:
        """Whether a node can work: it is up, awake, not far too slow, and has not lost its vote."""
        slowest, fastest = CALM_RATES
        return (
            node.alive
            and self.cluster.clock.now_us >= node.paused_until_us
            and slowest <= node.rate <= fastest
            and node.disk_delay_us <= CALM_DISK_US
            and node.may_decide()
        )

    def _able(self, since_us: int) -> tuple[str, ...]:
        """Return a majority that has been able to work together since then; empty if none."""
        nodes = self.cluster.nodes.values()
        names = [node.name for node in nodes if self._lasts((node.name, node.life), since_us)]
        for able in combinations(names, self.cluster.majority):
            if all(self._lasts(pair, since_us) for pair in combinations(able, 2)):
                return able
        return ()

    def _note(self, what: Hashable, holds: bool) -> None:
        if holds:
            self._since_us.setdefault(what, self.cluster.clock.now_us)
        else:
            self._since_us.pop(what, None)

    def _lasts(self, what: Hashable, since_us: int) -> bool:
        return self._since_us.get(what, since_us + 1) <= since_us
