"""Server: lets publishers push to a node, and subscribers pull from it."""

import errno
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final

from replicator.hello import answer_hello
from replicator.host import Bell, Host, Inbox
from replicator.link import HungUp, Link, shut
from replicator.pull_connection import PullConnection
from replicator.sink_connection import SinkConnection
from replicator.wire import PUSH
from rt.errors import Misuse, PeerError, Refused, RtError, spoken
from rt.format import manifest
from rt.log.watch import Wake
from rt.names import parse_session, shown
from rt.net.identity import PeerIdentity
from rt.net.tls import Contexts, accept

_log: Final = logging.getLogger(__name__)
CONNECTIONS_MAX: Final = 512  # a thread and 100 KiB each, or 2 MiB while a backlog passes
HANDSHAKE_S: Final = 10.0
_BACKLOG: Final = 128
_STOP_S: Final = 2.0
_PATIENCE_S: Final = 0.01  # a cluster that is not overloaded has merged by then


Handler = Callable[[ssl.SSLSocket, PeerIdentity], None]


class Server:
    """Accepts connections, each with a thread of its own, and does for them what they may ask."""

    def __init__(
        self,
        address: tuple[str, int],
        contexts: Contexts,
        host: Host,
        connections_max: int = CONNECTIONS_MAX,
        others: Mapping[str, Handler] | None = None,
    ) -> None:
        """Listen; nothing is served before `start`.

        Args:
            address: host and port to listen on; port 0 takes a free one, see `address`.
            contexts: of `rt.net.tls.server_context`.
            host: the node.
            connections_max: more than these are closed at once.
            others: who takes a connection that speaks another protocol, by its ALPN name.

        Raises:
            OSError: the address cannot be had.
        """
        self._contexts = contexts
        self._host = host
        self._others = others or {}
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._listener = socket.create_server(address, family=family, backlog=_BACKLOG)
        except OSError as error:
            words = spoken(error).partition(" (while ")[0]  # Python repeats the address
            raise OSError(
                error.errno, f"cannot listen at {address[0]}:{address[1]}: {words}"
            ) from error
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._connections_max = connections_max
        self._connections: dict[threading.Thread, tuple[socket.socket, Wake]] = {}
        self._lock = threading.Lock()
        self._stopping = False
        self._acceptor = threading.Thread(target=self._accept_loop, name="accept", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._acceptor.start()

    def stop(self) -> None:
        """End all connections; what came whole is appended, and nothing is left half done."""
        self._stopping = True
        shut(self._listener)  # ends the accept; a close would not
        self._listener.close()
        with self._lock:
            connections = dict(self._connections)
        for plain, wake in connections.values():
            wake.set()
            shut(plain)
        deadline = time.monotonic() + _STOP_S
        for thread in (self._acceptor, *connections):
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._connections)

    def _accept_loop(self) -> None:
        while not self._stopping:
            try:
                plain, address = self._listener.accept()
                self._begin(plain, f"{address[0]}:{address[1]}")
            except OSError as error:
                if not self._stopping:
                    _log.error("cannot accept: %s", error)
                    time.sleep(0.1)  # no descriptor or thread is left; some connection may end

    def _begin(self, plain: socket.socket, name: str) -> None:
        with self._lock:
            if self._stopping or len(self._connections) >= self._connections_max:
                _log.warning("%s: closed, there are %d connections", name, len(self._connections))
                plain.close()
                return
            wake = Wake()
            work = partial(self._run, plain, wake, name)
            thread = threading.Thread(target=work, name=f"serve {name}", daemon=True)
            self._connections[thread] = (plain, wake)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives us no more threads
            with self._lock:
                del self._connections[thread]
            wake.close()
            plain.close()
            raise OSError(errno.EAGAIN, f"{name} was hung up on: {error}") from error

    def _run(self, plain: socket.socket, wake: Wake, name: str) -> None:
        try:
            self._talk(plain, wake, name)
        except HungUp:
            _log.info("%s has left", name)
        except (RtError, OSError) as error:
            if not self._stopping:
                _log.warning("%s: %s", name, error)
        finally:
            plain.close()
            with self._lock:
                del self._connections[threading.current_thread()]
            wake.close()

    def _talk(self, plain: socket.socket, wake: Wake, name: str) -> None:
        sock, identity = accept(plain, self._contexts.current(), HANDSHAKE_S)
        with ExitStack() as undo:
            with self._lock:
                self._connections[threading.current_thread()] = (sock, wake)
            if self._stopping:  # `stop` may have looked when only we could reach this socket
                sock.close()
                return
            if handler := self._others.get(sock.selected_alpn_protocol() or ""):
                handler(sock, identity)
                return
            link = Link(sock, wake, f"{identity.name} at {name}")
            undo.callback(link.close)
            try:
                hello = answer_hello(link, self._host.stream, identity)
                if hello.direction == PUSH:
                    self._fill(link, wake, identity)
                else:
                    PullConnection(link, wake, self._host.feed).run(lambda: self._stopping)
            except Refused as error:
                link.refuse(error.code, str(error))
                raise
            except HungUp:
                raise
            except PeerError as error:
                link.refuse("protocol", str(error))
                raise

    def _fill(self, link: Link, wake: Wake, peer: PeerIdentity) -> None:
        side = SinkConnection(
            link, wake, partial(self._claim, peer),
            settle=self._host.settle, patience_s=_PATIENCE_S, is_first=lambda: self._host.is_first,
        )  # fmt: skip
        try:
            while not self._stopping:
                side.turn()
                link.wait(side.pause_s)
        finally:
            side.close()

    def _claim(self, peer: PeerIdentity, log: manifest.LogIdentity, bell: Bell) -> Inbox:
        try:
            parse_session(log.name)
        except Misuse as error:
            raise Refused("name", str(error)) from error
        if log.kind != manifest.SESSION or log.stream != self._host.stream:
            kind = shown(log.kind)
            words = f"a session of {self._host.stream!r} is wanted, not a {kind} log of another"
            raise Refused("stream", words)
        for kind, name in (("session", log.name), ("group", log.group)):
            if name and not peer.may_push(name):
                words = f"the certificate of {peer.name!r} does not grant the {kind} {name!r}"
                raise Refused("session", words)
        return self._host.claim(log, peer.name, bell, relays=peer.is_node)
