"""Dialer: keeps a connection to one of several nodes, served by the turns of an event loop."""

import logging
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import ExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final, Protocol

from replicator.wire.backoff import LAST_S, Backoff, Complaint
from replicator.wire.hello import send_hello, send_successions
from replicator.wire.link import Link, shut
from replicator.wire.messages import BEHIND, PUSH
from replicator.wire.rotation import Rotation
from rt.errors import PeerError, Refused, RtError, spoken
from rt.net.addresses import Address, address_text
from rt.net.authority.identity import SERVING, CertificateRole
from rt.net.authority.successions import Greeting
from rt.net.loop.deadlines import NEVER_S
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.poller import READABLE, WRITABLE
from rt.net.loop.turns import ContextParty
from rt.net.tls import Contexts, connect

_log: Final = logging.getLogger(__name__)
_NOT_YET: Final = "not connected yet"
_REST_S: Final = 60.0  # without a reason to connect; `set` ends it
_PAUSE_LEAST_S: Final = 0.001  # so that nothing that is due keeps the loop from waiting


@dataclass(frozen=True, slots=True)
class Destination:
    """Destination: the nodes that a dialer connects to, and the purpose of the connection.

    Attributes:
        nodes: host and port of each node; one is used at a time, and the next if that one fails.
        contexts: contexts made by `rt.net.tls.client_context`.
        direction: `PUSH` or `PULL`.
        stream: name of the stream.
        member: name that the node's certificate must prove; "" accepts any node.
    """

    nodes: Sequence[Address]
    contexts: Contexts
    direction: int
    stream: str
    member: str = ""

    @property
    def roles(self) -> tuple[CertificateRole, ...]:
        """The roles that a server may have: `node` and, for a pull, also `mirror`."""
        return (CertificateRole.NODE,) if self.direction == PUSH else SERVING

    def title(self, node: Address) -> str:
        """Return the name of a connection to `node` for log lines and errors."""
        verb = "push to" if self.direction == PUSH else "pull from"
        return f"{verb} {f'node {self.member}' if self.member else address_text(node)}"


class Served(Protocol):
    """The user of a dialer's connection; the loop calls all of its methods."""

    def is_wanted(self) -> bool:
        """Whether a connection is needed; asked at each turn and whenever the dialer is woken."""

    def avoids(self, node: Address) -> bool:
        """Whether to dial this node only if no other can be reached."""

    def begin(self, link: Link) -> None:
        """Take over a connection on which both sides have greeted; the first turn follows."""

    def turn(self) -> float:
        """Do what is due; return the seconds until the next turn.

        Raises:
            RtError: the connection must end; the dialer then dials again.
            OSError: like `RtError`.
        """

    def aside(self) -> Callable[[], None] | None:
        """Return work that the last turn left to a thread, which may wait for a disk; or None."""

    def end(self) -> None:
        """Release what the connection used."""


class Dialer(ContextParty):
    """Dials a node, has an event loop serve the connection, and dials again when it has ended.

    A dialer is a `replicator.host.Bell`: `set` has the connection take a turn.

    Threads: the loop calls `ready`, `failed` and all private methods except `_connect`. One of the
    loop's threads for peers calls `_connect`, which sets `_sock`. Any thread may call `start`,
    `set`, `stop` and `join`, and read `node`, `holder`, `error` and `stopping`: each is one
    reference or flag, replaced as a whole. `codes` is written one entry at a time. `progressed` is
    called in a turn, or by the thread that does the work of `aside`.
    """

    def __init__(self, destination: Destination, served: Served) -> None:
        """Prepare; `start` begins to dial. `served` uses the connection."""
        super().__init__()
        self.node = ""  # connected to it now
        self.holder = ""  # the name in the certificate of the last node that answered
        self.error = _NOT_YET  # why there is no connection; "" while there is one
        self.stopping = False
        self.codes: dict[Address, str] = {}  # code of each node's last refusal, or ""
        self._destination = destination
        self._served = served
        self._rotation = Rotation(destination.nodes)
        self._backoff = Backoff(Random())
        self._complaints: dict[Address, Complaint] = {}
        self._loop: EventLoop | None = None
        self._ended: Future[None] = Future()
        self._sock: socket.socket | None = None
        self._link: Link | None = None
        self._used = destination.nodes[0]  # the node that was dialled last
        self._watched = 0  # which events of the socket
        self._is_dialling = False
        self._is_away = False  # a thread does what was put aside
        self._next: Callable[[], None] | None = None  # set by it, for the turn that follows
        self._began_s = self._rest_to_s = 0.0
        self.greeting = Greeting(destination.contexts.successions)

    def start(self, loop: EventLoop) -> None:
        """Begin to dial; idempotent."""
        if self._loop is None:
            self._run = copy_context().run  # its log lines name the stream
            self._loop = loop
            loop.add_failing(self._lost)
            self.set()

    def follow(self, nodes: Sequence[Address]) -> None:
        """Dial these nodes, at least one, from now on; keep an open connection. Loop only."""
        if not self._ended.done():
            self._destination = replace(self._destination, nodes=nodes)
            self._rotation = Rotation(nodes)
            self.set()

    def set(self) -> None:
        """Have the connection take a turn soon."""
        if self._loop is None or self._loop.rouse(self):
            return
        if not self._ended.done():
            self._lost(RuntimeError("the event loop of this process has ended"))

    def stop(self) -> None:
        """End the connection soon; `join` waits for that, but not for a dial under way."""
        self.stopping = True
        if (sock := self._sock) is not None and (self._is_away or self._is_dialling):
            shut(sock)  # a thread may be waiting for the peer
        self.set()

    def join(self, timeout_s: float) -> bool:
        """Wait until a stopped connection has ended; return whether it has."""
        loop = self._loop
        if loop is None or wait([self._ended], 0.0 if loop.has_ended else timeout_s).done:
            return True
        if loop.has_ended:  # nothing uses the connection any more, nor will
            self._lost(RuntimeError("the event loop of this process has ended"))
        return self._ended.done()

    def abandon(self) -> None:
        """In a forked child: close the socket without a message to the parent's peer."""
        self.stopping, self._loop = True, None
        if (sock := self._sock) is not None:
            socket.socket.close(sock)

    def progressed(self) -> None:
        """Record that the connection was useful: the next failure is retried soon."""
        self._rotation.progressed()
        self._backoff.reset()
        if self._complaints:
            for complaint in self._complaints.copy().values():
                complaint.reset()

    def _fail(self, error: Exception) -> None:
        _log.error("internal error while a connection was served; it ends", exc_info=error)
        self._rest_to_s = time.monotonic() + LAST_S
        self._is_away = False  # or no thread could be begun for what was put aside
        why = PeerError(f"internal error: {type(error).__name__}")
        if self._link is not None:
            self._end(why)
        else:
            self._over(why)

    def _turn(self) -> None:
        if self._next is not None:
            step, self._next, self._is_away = self._next, None, False
            step()
        elif self._is_away or self._loop is None or (self._is_dialling and not self.stopping):
            return
        elif self._link is not None:
            self._serve(self._loop, self._link)
        elif self.stopping:
            self._finish(self._loop)
        else:
            self._dial_if_due(self._loop)

    def _lost(self, error: Exception) -> None:
        """Record that the loop has ended, so nothing is sent until the program is restarted."""
        self.node, self.error = "", f"{spoken(error)}; the program has to be started again"
        self._has_ended()
        if (sock := self._sock) is not None:
            sock.close()

    def _finish(self, loop: EventLoop) -> None:
        if not self._ended.done():
            loop.forget(self)
            loop.drop_failing(self._lost)
            del self._destination  # the certificates may be removed now without a warning
            self._has_ended()

    def _has_ended(self) -> None:
        with suppress(InvalidStateError):  # the loop ends, too
            self._ended.set_result(None)

    # Dialling

    def _dial_if_due(self, loop: EventLoop) -> None:
        """Dial the next node, unless a pause is not over yet: a turn must not shorten a pause."""
        now_s = time.monotonic()
        if now_s < self._rest_to_s:
            loop.deadlines.set(self, self._rest_to_s)
        elif not self._served.is_wanted():
            loop.deadlines.set(self, now_s + _REST_S)
        elif (node := self._rotation.next(self._served.avoids)) is None:
            self._rest_to_s = now_s + self._backoff.next_s()
            loop.deadlines.set(self, self._rest_to_s)
        else:
            self._dial(loop, node)

    def _dial(self, loop: EventLoop, node: Address) -> None:
        self._used, self._began_s = node, time.monotonic()
        if self.error == _NOT_YET:  # a silent address takes ten seconds to fail
            self.error = f"no answer from {address_text(node)} yet"
        self._is_dialling = True
        texts = self.greeting.begin()
        made: list[tuple[Link, str]] = []
        connect_to = partial(self._connect, self._destination, node, texts)
        loop.ask(
            lambda: made.append(connect_to()),
            lambda error: self.acting(self._dialled, made, error)(),
            partial(_close, made),
        )

    def _dialled(self, made: list[tuple[Link, str]], error: Exception | None) -> None:
        """Handle the result of a dial; close the connection if the dialer has ended meanwhile."""
        self._is_dialling = False
        if self._ended.done():
            _close(made)
        elif error is not None:
            self._over(error)
        else:
            self._arrived(*made[0])

    def _connect(self, where: Destination, node: Address, texts: Sequence[str]) -> tuple[Link, str]:
        """Return a connection on which both sides have greeted, and the name of the peer."""
        text = address_text(node)
        sock, identity = connect(node, where.contexts.current(), roles=where.roles)
        with ExitStack() as undo:
            link = Link(sock, text)
            undo.callback(link.close)
            if where.member and not (identity.is_node and identity.name == where.member):
                raise PeerError(f"{identity.name!r} answers at {text}, not {where.member!r}")
            self._sock = sock
            send_hello(link, where.direction, where.stream)
            send_successions(link, texts)
            if self.stopping:  # nothing may be left that would use it, or close it
                raise PeerError("it was stopped meanwhile")
            undo.pop_all()
        return link, identity.name

    def _arrived(self, link: Link, holder: str) -> None:
        node = self._used
        self._link, self.holder = link, holder
        self.node, self.error, self.codes[node] = address_text(node), "", ""
        _log.info("%s: connected", self._destination.title(node))
        try:
            self._served.begin(link)
        except (RtError, OSError) as error:
            self._end(error)
        else:
            self._turn()

    # The connection

    def _serve(self, loop: EventLoop, link: Link) -> None:
        try:
            # Dialled again, so that the node has the statement before it confirms anything more.
            is_begun_again = self.greeting.is_outdated
            is_over = self.stopping or is_begun_again or not self._served.is_wanted()
            link.has_more = True
            pause_s = 0.0 if is_over else self._served.turn()
        except (RtError, OSError) as error:
            self._end(error)
            return
        if is_over:
            self._end(None)
        elif (work := self._served.aside()) is not None:
            self._go_away(loop, work)
        else:
            self._rest(loop, link, pause_s)

    def _rest(self, loop: EventLoop, link: Link, pause_s: float) -> None:
        """Have the loop call again when something arrives, there is room to send, or time is up."""
        if link.has_left:  # nothing more is sent before there is room
            pause_s = NEVER_S
        if link.has_more or not pause_s:
            loop.mark(self)
        self._watch(loop, link, READABLE | WRITABLE * link.has_left)
        now_s = time.monotonic()
        at_s = min(now_s + pause_s, link.beat_by_s)
        loop.deadlines.set(self, max(now_s + _PAUSE_LEAST_S, at_s))

    def _go_away(self, loop: EventLoop, work: Callable[[], None]) -> None:
        """Have a thread do work that may wait for a disk; meanwhile the socket is not watched."""
        self._is_away = True
        if (link := self._link) is not None:
            self._watch(loop, link, 0)
        loop.deadlines.clear(self)
        loop.away(lambda: work() if self._link is link else None, self._returned)

    def _returned(self, error: Exception | None) -> None:
        self._next = partial(self._go_on, error)
        self.set()

    def _go_on(self, error: Exception | None) -> None:
        if error is None:
            self._turn()
        elif isinstance(error, RtError | OSError):
            self._end(error)
        else:
            self._fail(error)

    def _watch(self, loop: EventLoop, link: Link, events: int) -> None:
        if events != self._watched:
            self._watched = events
            if events:
                loop.watch(link.fileno(), self, events)
            else:
                loop.ignore(link.fileno())

    def _end(self, error: Exception | None) -> None:
        link, self._link = self._link, None
        if self._loop is None or link is None:
            return
        self._watch(self._loop, link, 0)
        try:
            self._served.end()
        except (RtError, OSError) as failed:
            error = error or failed
        finally:
            link.close()
            self._over(error)

    def _over(self, error: Exception | None) -> None:
        """Record why the connection has ended, and continue with the next node."""
        node = self._used
        self.node, self._sock = "", None
        if error is not None:
            self.error = spoken(error)
            self.codes[node] = error.code if isinstance(error, Refused) else ""
            if not self.stopping:
                is_behind = isinstance(error, Refused) and error.code == BEHIND
                level = logging.INFO if is_behind else logging.WARNING  # it will catch up
                self._complaint(node).say(self._reason(node), level=level)
        else:  # it was not needed, and the next one is not kept waiting for that
            self._rotation = Rotation(self._destination.nodes)
            self._backoff.reset()
        # one that lasted longer than the longest pause is not part of a loop that hammers a node
        if time.monotonic() - self._began_s > LAST_S:
            self._backoff.reset()
        self.set()

    def _reason(self, node: Address) -> str:
        """Return the error, without the address if the log line begins with it."""
        return self.error if self._destination.member else without(address_text(node), self.error)

    def _complaint(self, node: Address) -> Complaint:
        found = self._complaints.get(node)
        if found is None:
            found = self._complaints[node] = Complaint(_log, self._destination.title(node))
        return found


def _close(made: Sequence[tuple[Link, str]]) -> None:
    for link, _holder in made:
        link.close()


def without(address: str, error: str) -> str:
    """Return an error without the address, for a line that begins with the address.

    >>> without("a:1", "no answer from a:1 (connection refused)")
    'no answer (connection refused)'
    """
    return error.removeprefix(f"{address}: ").replace(f"no answer from {address}", "no answer")
