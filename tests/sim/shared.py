"""Two whole streams on the same nodes: what befalls one leaves the other alone, or befalls both."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from random import Random

from archiver.policy import Policy, parse_policy
from rt.errors import Refused
from rt.format.manifest import MERGED, LogIdentity
from rt.net.admin import ADMIN_ALPN
from rt.node.retain.retention import POLICY_NOTE
from sequencer.peers.versions import alpn_of

from .checkers import Violation
from .clock import Clock
from .merge_cluster import MergeCluster, MergeNemesis
from .merge_progress import MergeProgress
from .progress import CALM_BATCH_BYTES, CALM_DELAY_US, CALM_LOSS, Progress
from .shared_machine import CLUSTER, STREAMS, SharedMachine
from .shared_node import SharedNode
from .stream import OUT
from .wire import Wire

ASKING_US = 20_000
DOWN_TICKS = (40, 120)  # how long a stream that has failed on most nodes stays so
COPYING_US = 2_000
# bytes kept by the policies of each stream, which nothing else may set
LIMITS = {"flights": (1_500, 3_000, 6_000), "trains": (1_501, 3_001, 6_001)}


class SharedNemesis(MergeNemesis):
    """Adds streams that fail by themselves, on one node or on most."""

    def __init__(self, side: "Side", chance: Random) -> None:
        super().__init__(side, chance)
        if side.is_calm:  # then a majority that can talk must keep merging
            self._strike = self._cut_inside = self._failing_sync = self._regicide = 0.0
            self._deeds = [
                self._partition, self._crash, self._crash_leader, self._pause, self._transfer,
                self._fill_disk, self._fill_disk, self._roll, self._retain,
                *[self._fail_stream] * 4,
            ]  # fmt: skip
            self._pause_us = chance.choice([15, 40]) * side.tick_us
            side.wire.loss = min(side.wire.loss, CALM_LOSS)
            side.wire.delay_us = min(side.wire.delay_us, CALM_DELAY_US)
            side.copying_us = min(side.copying_us, COPYING_US)
            batch_bytes = max(side.settings.batch_bytes_max, CALM_BATCH_BYTES)
            side.settings = replace(
                side.settings, election_ticks=3, chunk_bytes=4096, batch_bytes_max=batch_bytes
            )
        else:
            self._deeds = [*self._deeds, self._fail_stream]

    def _fail_stream(self) -> None:
        """End this stream on most nodes, or on one, and let the process serve the other."""
        names = self.cluster.names
        count = len(names) if self._chance.random() < 0.5 else 1
        for name in self._chance.sample(names, count):
            node = self.cluster.nodes[name]
            if node.alive:
                node.die("at a failed sync", power=False)
                down_us = self._chance.randint(*DOWN_TICKS) * self.cluster.tick_us
                self.cluster.clock.after(down_us, self._restart, node, node.life)


class Side(MergeCluster):
    """One of the streams: a cluster of its own, on machines that it shares."""

    may_have_outsider = may_fill_last = False
    nemesis_type = SharedNemesis

    def __init__(
        self, world: "SharedCluster", stream: str, log: Callable[[str], None] | None
    ) -> None:
        self.machines, self._shared = world.machines, world
        self.stream_name, self.founding_name = stream, f"sim/{stream}"
        self.is_calm = world.is_calm
        log_id = f"{STREAMS.index(stream) + 5}" * 32
        self.merged_identity = LogIdentity(MERGED, stream, OUT, log_id, 0)
        self._alpn = alpn_of(f"{CLUSTER}/{stream}").encode()
        told = None if log is None else partial(_told, log, stream)
        super().__init__(world.seed * len(STREAMS) + STREAMS.index(stream), log=told)

    def draw_names(self, chance: Random) -> tuple[str, ...]:
        del chance
        return tuple(self.machines)

    def _make_clock(self) -> Clock:
        return self._shared.clock

    def _make_wire(self, chance: Random) -> Wire:
        del chance
        return self._shared.wire

    def _make_node(self, name: str, chance: Random) -> SharedNode:
        return SharedNode(name, self, chance)

    def draw_policy(self, chance: Random) -> Policy:
        """Draw one of this stream's own policies."""
        return Policy(time=chance.choice([0, 1]), limit=chance.choice(LIMITS[self.stream_name]))

    def _progress(self) -> Progress:
        return MergeProgress(self) if self.is_calm else Progress(self)

    def carry(self, source: str, target: str, data: bytes) -> None:
        """Send a message on the connection of this stream."""
        self.wire.send(source, target, self._alpn + b"\n" + data)

    def begin(self) -> Callable[[], bool]:
        """Return what looks for progress during the faults."""
        return self._progress().look

    def recovered(self) -> bool:
        """Whether everything is merged everywhere; also checks that no policy is another's."""
        self.demand_own_policies()
        return super().recovered()

    def demand_own_policies(self) -> None:
        """Check that the policy that a node has executed was asked for in this stream."""
        for node in self.nodes.values():
            assert isinstance(node, SharedNode)
            text = node.member.executor.ledger.notes.get(POLICY_NOTE) if node.alive else None
            limit = None if text is None else parse_policy(text).limit
            if limit is not None and limit not in LIMITS[self.stream_name]:
                raise Violation(f"{node.name} keeps {limit} bytes of {self.stream_name}")

    def states(self) -> list[str]:
        """Return what each node has."""
        return [f"{self.stream_name} {state}" for state in super().states()]

    def hash(self) -> bytes:
        """Return the hash of the trace."""
        return self._trace.digest()


class Operator:
    """Sets policies, and sometimes names one stream on a connection for another, or none."""

    def __init__(self, world: "SharedCluster", chance: Random) -> None:
        self._world, self._chance = world, chance
        world.clock.after(ASKING_US, self._ask)

    def _ask(self) -> None:
        world, chance = self._world, self._chance
        if not world.sides[0].nemesis.active:
            return
        world.clock.after(ASKING_US, self._ask)
        machine = world.machines[chance.choice(list(world.machines))]
        stream, named = chance.choice(STREAMS), chance.choice([*STREAMS, None])
        alpn = ADMIN_ALPN if chance.random() < 0.3 else f"{ADMIN_ALPN}/{stream}"
        found = machine.streams.speaking(alpn)
        if found is None or not found[0] or world.clock.now_us < machine.paused_until_us:
            return  # not served, or refused since it is not known which stream is meant
        about = named or stream
        policy = Policy(time=1, limit=chance.choice(LIMITS[about])).text()
        request = {"policy": policy} if named is None else {"policy": policy, "stream": named}
        try:
            machine.nodes[found[0]].administer(request)
        except Refused:
            return
        if named != found[0]:
            raise Violation(f"a change of {named} was taken for one of {found[0]}")


class SharedCluster:
    """Two streams with a node each on every machine.

    They share the clock, the network and what befalls a machine: it is paused and slowed, loses its
    power, or its process ends. They share the disk, or have one each, which may be full. Each has
    its own consensus, ledger, sessions of the same names, publishers, readers and archiving, and
    may fail by itself. What the process serves is looked up as a node does (`Streams`): messages by
    the protocol of their connection, pushers and pullers by the stream that they name, changes by
    both.

    Checks, besides all that one stream promises: no message, copy or policy of a stream gets into
    the other; and while a majority of the nodes of a stream can work, it goes on, whatever the
    other lacks.
    """

    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        self.seed, self.events = seed, 0
        chance = Random(f"{seed} shared")
        self.clock = Clock()
        self.is_calm = seed // 64 % 2 == 0
        self.wire = Wire(self.clock, Random(chance.getrandbits(32)), self.deliver)
        has_a_disk_each = chance.random() < 0.5
        names = ("n1", "n2", "n3", "n4", "n5")[: chance.choice([3, 3, 3, 5])]
        self.machines = {
            name: SharedMachine(Random(chance.getrandbits(32)), has_a_disk_each=has_a_disk_each)
            for name in names
        }
        self.sides = [Side(self, stream, log) for stream in STREAMS]
        Operator(self, Random(chance.getrandbits(32)))

    def deliver(self, source: str, target: str, data: bytes) -> None:
        """Hand a message to the stream that its connection is about, if it is served."""
        alpn, _, message = data.partition(b"\n")
        take = self.machines[target].speaking(alpn.decode())
        if take is not None:
            take(source, message)

    def run(self) -> str:
        """Run the faults, then demand progress; return the hash of the trace."""
        first = self.sides[0]
        looks = [side.begin() for side in self.sides]
        ticks = max(side.fault_ticks for side in self.sides) * (3 if self.is_calm else 1)
        self.until(ticks * first.tick_us, lambda: sum(look() for look in looks) > 0)
        for side in self.sides:
            side.end_faults()
        timeouts = [side.heal_timeouts * side.settings.election_ticks for side in self.sides]
        if not self.until(
            max(timeouts) * first.tick_us,
            lambda: sum(side.recovered() for side in self.sides) == len(self.sides),
        ):
            states = [state for side in self.sides for state in side.states()]
            raise Violation(f"no progress after the faults: {states}")
        return blake2b(b"".join(side.hash() for side in self.sides), digest_size=8).hexdigest()

    def until(self, time_us: int, done: Callable[[], bool]) -> bool:
        end_us = self.clock.now_us + time_us
        while self.clock.now_us < end_us:
            self.clock.step(50)
            self.events += 50
            for side in self.sides:
                side.demand_own_policies()
            if done():
                return True
        return False


def _told(log: Callable[[str], None], stream: str, line: str) -> None:
    log(f"{stream:8}{line}")
