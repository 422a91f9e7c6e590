"""Dialer: keeps a connection to one of several nodes, on its own thread."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Final

from replicator.wire.backoff import LAST_S, Backoff, Complaint
from replicator.wire.hello import send_hello
from replicator.wire.link import Link, pause, shut
from replicator.wire.messages import BEHIND, PUSH
from replicator.wire.rotation import Rotation
from rt.about import carried
from rt.errors import PeerError, Refused, RtError, spoken
from rt.log.notify.watch import Wake
from rt.net.authority.identity import SERVING, CertificateRole
from rt.net.tls import Contexts, connect

Address = tuple[str, int]
_log: Final = logging.getLogger(__name__)
_NOT_YET: Final = "not connected yet"
_REST_S: Final = 60.0  # pause while no connection is needed; `wake` ends it


@dataclass(frozen=True, slots=True)
class Destination:
    """Destination: what to connect to, and what for.

    Attributes:
        nodes: host and port of each node; one is used at a time, the next when it fails.
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
        """The roles that may answer: only nodes accept messages, but mirrors also serve them."""
        return (CertificateRole.NODE,) if self.direction == PUSH else SERVING

    def title(self, node: Address) -> str:
        """Name one of the nodes in a message."""
        verb = "push to" if self.direction == PUSH else "pull from"
        return f"{verb} {f'node {self.member}' if self.member else address_text(node)}"


class Dialer:
    """Dialer: dials, greets, lets `serve` use the connection, and dials again when it ends.

    Threads: the dialer's thread runs `_run` and everything below it, including `serve`. It alone
        writes `node`, `holder`, `error` and `_sock`, and uses `_complaints` and `_rotation` (except
        in `progressed`); it drops `_destination` when it ends. `start` is called once. Any thread
        may set `wake`, call `stop`, `join` and `progressed`, and read `node`, `error` and
        `stopping`: each is one reference or flag, replaced as a whole. Its thread writes `codes`,
        an entry at a time; any thread may read it.
    """

    def __init__(
        self,
        destination: Destination,
        serve: Callable[[Link], None],
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        avoids: Callable[[Address], bool] = lambda _node: False,
    ) -> None:
        """Dial nothing before `start`.

        Args:
            destination: what to connect to.
            serve: uses a connection until it ends or `stopping` is set; returns normally if the
                connection is no longer needed.
            is_wanted: whether a connection is needed; asked again whenever `wake` is set.
            avoids: whether to dial a node only after no other could be reached.
        """
        self.wake = Wake()
        self.node = ""  # connected to it now
        self.holder = ""  # the name in the certificate of the last node that answered
        self.error = _NOT_YET  # why there is no connection; "" while there is one
        self.stopping = False
        self.codes: dict[Address, str] = {}  # code of each node's last refusal, or ""
        self._destination = destination
        self._serve = serve
        self._is_wanted = is_wanted
        self._avoids = avoids
        self._rotation = Rotation(destination.nodes)
        self._backoff = Backoff(Random())
        self._complaints: dict[Address, Complaint] = {}
        self._sock: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start dialling; idempotent.

        Raises:
            RuntimeError: the system allows no further thread; it may be called again.
        """
        if self._thread is None:
            title = self._destination.title(self._destination.nodes[0])
            thread = threading.Thread(target=carried(self._run), name=title, daemon=True)
            thread.start()
            self._thread = thread

    def stop(self) -> None:
        """End the connection soon; `join` waits for it."""
        self.stopping = True
        self.wake.set()
        if (sock := self._sock) is not None:
            shut(sock)  # it may be blocked by a peer that reads nothing

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; return whether it has."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(timeout_s)
            if thread.is_alive():
                return False  # it closes `wake` itself when it ends
        self.wake.close()
        return True

    def abandon(self) -> None:
        """In a forked child: close the socket without a message to the parent's peer."""
        self.stopping, self._thread = True, None
        self.wake.renew_lock()
        self.wake.close()
        if (sock := self._sock) is not None:
            socket.socket.close(sock)

    def progressed(self) -> None:
        """Record that the connection was useful: the next failure is retried soon."""
        self._rotation.progressed()
        self._backoff.reset()
        if self._complaints:
            for complaint in self._complaints.copy().values():
                complaint.reset()

    def _run(self) -> None:
        while not self.stopping:
            node = self._rotation.next(self._avoids)
            if node is None:
                self._rest(self._backoff.next_s())
            else:
                self._use(node)
        self.wake.close()
        del self._destination  # from now on, removed certificates cause no warning

    def _use(self, node: Address) -> None:
        while not (self.stopping or self._is_wanted()):
            pause(self.wake, _REST_S)
        if self.stopping:
            return
        began_s = time.monotonic()
        if self.error == _NOT_YET:  # a silent address takes ten seconds to fail
            self.error = f"no answer from {address_text(node)} yet"
        try:
            self._connect(node)
        except (RtError, OSError) as error:
            self.error = spoken(error)
            self.codes[node] = error.code if isinstance(error, Refused) else ""
            if not self.stopping:
                is_behind = isinstance(error, Refused) and error.code == BEHIND
                level = logging.INFO if is_behind else logging.WARNING  # it will catch up
                self._complaint(node).say(self._reason(node), level=level)
        self.node, self._sock = "", None
        # a connection longer than the longest pause is not part of a tight loop
        if time.monotonic() - began_s > LAST_S:
            self._backoff.reset()

    def _connect(self, node: Address) -> None:
        where, text = self._destination, address_text(node)
        sock, identity = connect(node, where.contexts.current(), roles=where.roles)
        with ExitStack() as undo:
            link = Link(sock, self.wake, text)
            undo.callback(link.close)
            if where.member and not (identity.is_node and identity.name == where.member):
                raise PeerError(f"{identity.name!r} answers at {text}, not {where.member!r}")
            self._sock = sock
            send_hello(link, where.direction, where.stream)
            self.node, self.holder, self.error = text, identity.name, ""
            self.codes[node] = ""
            _log.info("%s: connected", where.title(node))
            self._serve(link)

    def _rest(self, seconds: float) -> None:
        """Pause for the whole time unless stopped: `wake` must not shorten the back-off."""
        end_s = time.monotonic() + seconds
        while not self.stopping and (left_s := end_s - time.monotonic()) > 0:
            pause(self.wake, left_s)

    def _reason(self, node: Address) -> str:
        """Return the error, without the address if the log line begins with it."""
        return self.error if self._destination.member else without(address_text(node), self.error)

    def _complaint(self, node: Address) -> Complaint:
        found = self._complaints.get(node)
        if found is None:
            found = self._complaints[node] = Complaint(_log, self._destination.title(node))
        return found


def without(address: str, error: str) -> str:
    """Return an error without the address, for a line that begins with the address.

    >>> without("a:1", "no answer from a:1 (connection refused)")
    'no answer (connection refused)'
    """
    return error.removeprefix(f"{address}: ").replace(f"no answer from {address}", "no answer")


def address_text(node: Address) -> str:
    """Return `host:port`."""
    return f"{node[0]}:{node[1]}"
