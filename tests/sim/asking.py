"""Requests of simulated clients, carried to nodes and answered in steps by the code that ships."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from rt.errors import Misuse, PeerError, Refused, RtError
from rt.log.files.directory import LogDirectory
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.net.exchange import Fields
from rt.node.admin.asked_stream import demand_stream
from rt.node.agree.latest import confirmed, decided, latest
from rt.node.agree.steps import Ask, Need, Order, Steps, Until
from rt.node.readers.claims_heard import ClaimsHeard
from rt.node.readers.cursors import NodeCursors
from rt.node.readers.groups import NodeGroups

from .publisher import STREAM
from .stream import OUT

if TYPE_CHECKING:
    from .reading import ReadingCluster, ReadingNode

READER = PeerIdentity("spark", CertificateRole.SUBSCRIBER, streams=("*",), leases=True)
POLL_US = 1_000
ELSEWHERE = ("not-leader", "stopping")
LOST_US = 30_000  # how long a client waits before it gives an answer up

Reply = Callable[[Fields | None, Exception | None], None]


class Answering:
    """The requests answered during one life of a node (`rt.node.admin.node_admin.NodeAdmin`)."""

    def __init__(self, node: "ReadingNode") -> None:
        self._node, self._world, self._life = node, node.world, node.life

        def log() -> LogDirectory:
            return LogDirectory(OUT, node.disk)

        self.groups = NodeGroups(
            self._view, self._decided, self._latest, log, lambda _identity: True,
            heard=ClaimsHeard(node.now_s), now_ns=self._world.next_ns,
        )  # fmt: skip
        self.cursors = NodeCursors(
            self._view, self._decided, self._latest, lambda: "flights", log,
            steady_s=node.now_s, now_ns=self._world.next_ns,
        )  # fmt: skip
        self._waiting: list[Callable[[], None]] = []  # one request at a time changes groups
        self._is_busy = False

    def _view(self) -> Any:
        return self._node.view

    def _latest(self) -> Steps[None]:
        return latest(self._view, self._node.member.reads)

    def _decided(
        self, note: Any, is_done: Callable[[], bool], /, *, may_repeat: bool
    ) -> Steps[None]:
        return decided(self._view, self._latest, note, is_done, may_repeat=may_repeat)

    def take(self, request: Fields, reply: Reply) -> None:
        """Answer a request; `reply` is called once, unless the node dies."""
        kind, _, verb = str(request["do"]).partition("-")
        try:
            demand_stream(STREAM, request, is_change=verb in ("reset", "forget"))
        except Refused as refusal:
            reply(None, refusal)
            return
        does: Any = getattr(self.groups if kind == "group" else self.cursors, verb)
        steps = confirmed(partial(does, request, READER), self._view, self._latest, request)
        if kind != "group":
            self._go(steps, reply)
            return
        if verb == "work":
            self.groups.hear(request, READER)
        self._waiting.append(partial(self._go, steps, partial(self._next, reply)))
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        self._is_busy = bool(self._waiting)
        if self._waiting:
            self._waiting.pop(0)()

    def _next(self, reply: Reply, answer: Fields | None, error: Exception | None) -> None:
        reply(answer, error)
        self._begin()

    def _go(self, steps: Steps[Fields], reply: Reply, error: Exception | None = None) -> None:
        """Run steps until they wait or end."""
        try:
            while True:
                need: Need = next(steps) if error is None else steps.throw(error)
                error = None
                if isinstance(need, Until):
                    end_s = self._node.now_s() + need.timeout_s
                    self._wait(steps, reply, need, end_s)
                    return
                try:
                    self._carry_out(need)
                except Refused as refusal:
                    error = refusal
        except StopIteration as end:
            reply(end.value, None)
        except (RtError, OSError) as failure:
            reply(None, failure)

    def _carry_out(self, need: Need) -> None:
        if isinstance(need, Order):
            if not self._node.view.leads:
                raise Refused("not-leader", "another node leads")
            self._node.order(need.instruction)
        elif isinstance(need, Ask):
            need.question()
            self._node.wake()

    def _wait(self, steps: Steps[Fields], reply: Reply, need: Until, end_s: float) -> None:
        def look() -> None:
            if self._node.life != self._life or not self._node.alive:
                steps.close()
            elif self._world.clock.now_us < self._node.paused_until_us:
                self._world.clock.after(POLL_US, look)
            elif need.is_over():
                self._node.guarded(self._go, steps, reply)
            elif self._node.now_s() > end_s:
                refusal = Refused("undecided", need.words)
                self._node.guarded(self._go, steps, reply, refusal)
            else:
                self._world.clock.after(POLL_US, look)

        look()


class SimAsking:
    """Sends requests to the leader, one at a time (`rt.net.admin.AdminClient`)."""

    def __init__(self, world: "ReadingCluster", chance: Random) -> None:
        self._world, self._chance = world, chance
        self._place = chance.randrange(len(world.names))

    def ask(self, request: Fields, done: Reply) -> None:
        """Ask the node that answered last, then each other one, about a stream."""
        request = {"stream": STREAM, **request}
        self._try(request, done, len(self._world.names))

    def _try(self, request: Fields, done: Reply, left: int) -> None:
        """Ask one node, and the next one if it does not lead or does not answer."""

        def take(answer: Fields | None, error: Exception | None) -> None:
            is_final = isinstance(error, Refused) and error.code not in ELSEWHERE
            if error is not None and not is_final:
                self._place = (self._place + 1) % len(self._world.names)
                if left > 1:
                    self._try(request, done, left - 1)
                    return
            done(answer, error)

        Attempt(self._world, self._chance, self._world.nodes[self._world.names[self._place]], take)(
            request
        )


class Attempt:
    """One request to one node; ends once, with the answer or with its loss."""

    def __init__(
        self, world: "ReadingCluster", chance: Random, node: "ReadingNode", done: Reply
    ) -> None:
        self._world, self._chance, self._node = world, chance, node
        self._done: Reply | None = done
        self._life = 0

    def __call__(self, request: Fields) -> None:
        """Send the request."""
        self._after_a_way(self._arrive, request)

    def _after_a_way(self, act: Callable[..., None], *arguments: Any) -> None:
        if self._world.nemesis.active and self._chance.random() < self._world.losing:
            self._world.clock.after(LOST_US, self._end, None, PeerError("nothing came back"))
        else:
            self._world.clock.after(self._chance.randint(100, 3_000), act, *arguments)

    def _end(self, answer: Fields | None, error: Exception | None) -> None:
        if self._done is not None:
            done, self._done = self._done, None
            done(answer, error)

    def _arrive(self, request: Fields) -> None:
        now_us, node = self._world.clock.now_us, self._node
        if not node.alive:
            self._end(None, PeerError(f"{node.name} is not there"))
        elif now_us < node.paused_until_us:
            self._world.clock.after(node.paused_until_us - now_us, self._arrive, request)
        else:
            self._life = node.life
            node.guarded(node.answering.take, request, self._reply)
            self._watch()

    def _reply(self, answer: Fields | None, error: Exception | None) -> None:
        if error is not None and not isinstance(error, Refused | Misuse):
            error = PeerError(str(error))  # the thread ended, and so did the connection
        self._after_a_way(self._end, answer, error)

    def _watch(self) -> None:
        """End when the node's process ends."""
        if self._node.life != self._life or not self._node.alive:
            self._end(None, PeerError(f"{self._node.name} hung up"))
        elif self._done is not None:
            self._world.clock.after(LOST_US, self._watch)
