"""Server: lets publishers push to a node, and subscribers pull from it."""

import errno
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from replicator.host import Bell, Inbox
from replicator.limits.admission import Admission, ServerLimits
from replicator.serve.client_record import PULLS, PUSHES, ServedClient
from replicator.serve.looped_client import Hold, LoopedClient, LoopedConnection
from replicator.serve.pull_connection import PullConnection
from replicator.serve.streams import Kept, ServedStream, Streams
from replicator.sink.ack_schedule import AckSchedule
from replicator.sink.columns_check import ColumnsCheck
from replicator.sink.connection import SinkConnection
from replicator.wire.codec import VERSION, VERSION_MIN, encode
from replicator.wire.hello import check_hello, check_log, common_version, send_successions
from replicator.wire.large_messages import LargeMessages
from replicator.wire.link import HungUp, Link, Passed, Patience, pause, shut
from replicator.wire.messages import PUSH, Hello
from rt.about import carried, speak_of
from rt.amounts import size_text
from rt.errors import PeerError, Refused, RtError
from rt.format.manifest import LogIdentity
from rt.log.notify.watch import Wake
from rt.net.addresses import listen_at
from rt.net.authority.grants import Grants, grants_path
from rt.net.authority.identity import PeerIdentity
from rt.net.certificate_watch import certificate_watch
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.turns import ContextParty
from rt.net.repeated import RepeatedLines
from rt.net.tls import Contexts, accept
from rt.text import printable
from rt.version import SOFTWARE

Answer = TypeVar("Answer")
_log: Final = logging.getLogger(__name__)
_STOP_S: Final = 2.0
_BACKLOG: Final = 128
_FLUSH_S: Final = 1.0  # how often summaries of repeated log lines are written
_NO_RESOURCE_S: Final = 0.1
# A handshake costs a millisecond of processor time, so refusals are delayed to slow down peers that
# dial again at once.
_REFUSAL_S: Final = 0.5
_PATIENCE_S: Final = 0.01  # a leader that is not overloaded has merged by then
_LATER_S: Final = 0.025  # other nodes have merged by then, too: at the latest at their next tick


@dataclass(slots=True, eq=False)
class ServedConnection:
    """One accepted connection, from TCP to its end."""

    name: str  # host:port
    host: str
    sock: socket.socket  # the plain one, then the TLS one
    wake: Wake
    is_ended: bool = False  # ended by this server; the connection's thread may not know yet
    is_admitted: bool = False  # whether the peer's certificate was accepted
    title: str = ""  # the certificate's name and the address; "" until the certificate is known
    alpn: str = ""  # ALPN name of the protocol, once known; "" for replication
    stream: str = ""  # the stream that the peer has named, once known
    about: str = ""  # how log lines begin once the stream is known, if there are several
    gone: Future[None] = field(default_factory=Future)  # done once the server has closed it


class Server:
    """Accepts connections, and has an event loop serve each once both sides have greeted.

    Threads: the loop accepts connections, calls `admission`, and changes `_connections`, and the
    records and quotas of streams. Each connection has a thread for its handshake and greeting, and
    another for its end; any other thread may call `stop`. A connection's thread sets `sock` and
    then looks at `is_ended`; a thread that ends it sets `is_ended` and then shuts `sock`, so that
    one of them notices the other. In the same way it sets `stream` and then looks whether that was
    dropped. Only a connection's own threads use its `about`. `_lines` has a lock of its own.
    `_stopping` is set once and read by all. `__init__` sets the other fields.
    """

    def __init__(
        self,
        address: tuple[str, int],
        contexts: Contexts,
        streams: Streams,
        limits: ServerLimits | None = None,
        columns: ColumnsCheck | None = None,
        *,
        loop: EventLoop | None = None,
        patience: Patience | None = None,
    ) -> None:
        """Listen on an address; `start` begins to serve.

        Args:
            address: host and port to listen on; for port 0 the system chooses a port, which the
                attribute `address` has.
            contexts: contexts made by `rt.net.tls.server_context`.
            streams: the streams that are served.
            limits: how much unauthenticated peers, and the holders of one certificate, may use over
                all streams.
            columns: checks that publishers' frames can be decoded; a new one is made if None.
            loop: the event loop that serves connections; a new one is made if None.
            patience: the deadlines of each connection.

        Raises:
            OSError: the address is not available.
            Misuse: the file of grants cannot be read.
        """
        self._contexts, self._columns = contexts, columns or ColumnsCheck()
        self._grants = Grants(grants_path(contexts.files.ca))
        certificate_watch.remind(os.path.abspath(self._grants.path), self._grants.warning)
        self._streams, self._patience = streams, patience
        self._listener = listen_at(address, _BACKLOG)
        self._listener.setblocking(False)  # no `accept` waits
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        limits = limits or ServerLimits()
        self.admission = Admission(limits)
        self.memory = LargeMessages(limits.identity_memory_bytes)
        self._lines = RepeatedLines(_log)
        self._connections: dict[ServedConnection, threading.Thread] = {}
        self._owns_loop = loop is None
        self._loop = EventLoop() if loop is None else loop
        self._stopping = False
        self._flush_s = 0.0  # when to write summaries next
        self._accepting = _Accepting(self._loop, self._listener, self._accept)

    def start(self) -> None:
        """Begin to serve."""
        self._loop.call(self._accepting.begin)

    def stop(self) -> None:
        """End all connections, after appending the whole messages that were received."""
        self._stopping = True
        self._loop.call(self._accepting.end)
        self._listener.close()
        self._end_all(lambda _connection: True)
        if self._owns_loop:
            self._loop.stop()

    def end(self, stream: str) -> None:
        """End the connections of a stream that is no longer served."""
        self._end_all(lambda connection: connection.stream == stream)

    def _end_all(self, is_meant: Callable[[ServedConnection], bool]) -> None:
        """End connections, and wait a short time until the event loop has closed them."""
        ended: dict[ServedConnection, threading.Thread] = {}

        def end() -> None:
            ended.update({each: this for each, this in self._connections.items() if is_meant(each)})
            for connection in ended:
                _end(connection)
                connection.wake.set()

        if not self._loop.call(end):
            end()
        _join(ended.values())
        wait([each.gone for each in ended], _STOP_S)

    def use_limits(self, limits: ServerLimits) -> None:
        """Apply these limits from now on; connections that exceed them are not ended."""
        self.admission.limits = limits
        self.memory.share_bytes = limits.identity_memory_bytes

    def ask_admission(self, question: Callable[[Admission], Answer]) -> Answer:
        """Have the loop charge a peer or admit it; return what `question` returned.

        Raises:
            Refused: the admission refuses the peer, or the loop has ended.
        """
        answers: list[Answer] = []
        if not self._loop.call(lambda: answers.append(question(self.admission))):
            raise Refused("stopping", "the server has ended")
        return answers[0]

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def _accept(self) -> bool:
        """Begin a connection if a peer dials; return whether the system has room for another."""
        self._flush()
        try:
            try:
                plain, address = self._listener.accept()
            except BlockingIOError:  # only summaries were due, or the peer has gone
                return True
            self._begin(plain, address[0], f"{address[0]}:{address[1]}")
        except OSError as error:
            self._lines.say(logging.ERROR, "accept", f"cannot accept: {error}")
            return False  # no descriptor or thread is left; one may end
        return True

    def _flush(self) -> None:
        """Write summaries of repeated log lines that are due."""
        now_s = time.monotonic()
        if now_s >= self._flush_s:
            self._flush_s = now_s + _FLUSH_S
            self._lines.flush()
            for served in self._streams.every:
                served.record.lines.flush()

    def _is_about(self, connection: ServedConnection, stream: str) -> None:
        """Record a connection's stream; the connection ends if the stream was dropped meanwhile."""
        connection.stream = stream
        if stream:
            speak_of(self._streams.named(stream).record.about)

    def _begin(self, plain: socket.socket, host: str, name: str) -> None:
        connection = ServedConnection(name, host, plain, Wake())
        thread = threading.Thread(
            target=self._run, args=(connection,), name=f"serve {name}", daemon=True
        )
        if len(self._connections) >= self._threads_max or self._stopping:
            self._drop(connection)
            self._lines.warn("full", f"{name}: closed, all threads are taken")
            return
        self._connections[connection] = thread
        self._displace(self.admission.knock(connection, host))
        try:
            thread.start()
        except RuntimeError as error:  # the system gives us no more threads
            self._drop(connection)
            raise OSError(errno.EAGAIN, f"{name} was hung up on: {error}") from error

    @property
    def _threads_max(self) -> int:
        """The maximum number of connections and handshakes together.

        Handshakes count twice: one that was ended for a newer one still takes a moment to go.
        """
        limits = self.admission.limits
        return limits.connections + 2 * limits.handshakes

    def _displace(self, connection: object) -> None:
        if isinstance(connection, ServedConnection):
            _end(connection)
            kind = f"displaced {connection.host}"
            self._lines.warn(kind, f"{connection.name}: its handshake was ended for a newer one")

    def _drop(self, connection: ServedConnection) -> None:
        if not self._loop.post(partial(self._forget, connection)):
            self._forget(connection)
        connection.wake.close()

    def _forget(self, connection: ServedConnection) -> None:
        self.admission.leave(connection)
        with suppress(OSError):
            connection.sock.close()
        if self._connections.pop(connection, None) is not None:
            connection.gone.set_result(None)

    def _run(self, connection: ServedConnection) -> None:
        kept = None
        try:
            kept = self._talk(connection)
        except (RtError, OSError) as error:
            self._report(connection, error)
        finally:
            if kept is None:
                self._drop(connection)
            else:
                kept(partial(self._drop, connection))

    def _report(self, connection: ServedConnection, error: Exception) -> None:
        """Log why a connection has ended, unless the peer hung up or this server ended it."""
        if isinstance(error, HungUp) or connection.is_ended:
            return
        self._count(connection, error)
        title = connection.title or connection.name
        words = str(error).removeprefix(f"{title}: ")
        line = f"{connection.about}{title}: {words}"
        self._lines.warn(f"{connection.host} {words}", line)

    def _count(self, connection: ServedConnection, error: Exception) -> None:
        """Count a refusal; an admitted connection that broke is not a refusal, and is not counted.

        The refusal counts for the connection's stream, or for the first stream if the peer has not
        named one yet, so that a sum over all streams counts it once.
        """
        code = error.code if isinstance(error, Refused) else "tls"
        if isinstance(error, Refused) or not connection.is_admitted:
            every = self._streams.every
            its = [each for each in every if each.host.stream == connection.stream]
            for served in its or list(every)[:1]:
                self._tell(served.record.refuse, code)

    def _tell(self, act: Callable[..., None], *arguments: object) -> None:
        """Have the loop change a stream's record."""
        self._loop.post(carried(partial(act, *arguments)))

    def _talk(self, connection: ServedConnection) -> Kept | None:
        """Serve a connection until it ends, or return a function that gives it to another owner."""
        sock, peer = accept(
            connection.sock, self._contexts.current(),
            self.admission.limits.handshake_s,
            admit=partial(self._admit, connection), grants=self._grants,
            wrapped=partial(self._take_over, connection),
            change=partial(self._has_left, connection),
        )  # fmt: skip
        if route := self._streams.speaking(sock.selected_alpn_protocol()):
            stream, handler = route
            self._is_about(connection, stream)
            return handler(sock, peer)
        connection.title = f"{peer.name} at {connection.name}"
        link = Link(sock, connection.title, self.memory.of(peer.title), self._patience)
        kept = None
        try:
            kept = self._replicate(connection, link, peer)
        finally:
            if kept is None:
                link.close()
        return kept

    def _take_over(self, connection: ServedConnection, sock: ssl.SSLSocket) -> None:
        """Record the TLS socket in place of the plain one, so that a stop closes it."""
        connection.sock = sock
        if connection.is_ended:
            raise PeerError("the connection was ended before TLS began")

    def _admit(self, connection: ServedConnection, peer: PeerIdentity) -> None:
        try:
            sock = connection.sock
            alpn = sock.selected_alpn_protocol() if isinstance(sock, ssl.SSLSocket) else None
            connection.alpn = alpn or ""
            if peer.is_node and (why := self._streams.objection(peer, connection.alpn)):
                raise Refused("not-a-member", why)
            self.ask_admission(lambda each: each.admit(connection, peer))
            connection.is_admitted = True
        except Refused:
            pause(connection.wake, _REFUSAL_S)
            raise

    def _has_left(self, connection: ServedConnection, peer: PeerIdentity) -> str:
        """Return why an admitted node is no longer admitted, or ""."""
        if not peer.is_node:
            return ""
        alpn, stream = connection.alpn, connection.stream
        return self._streams.objection(peer, alpn, stream, is_live=True)

    def _replicate(
        self, connection: ServedConnection, link: Link, peer: PeerIdentity
    ) -> Kept | None:
        looped = None
        try:
            hello, served = self._greet(link, peer)
            self._is_about(connection, hello.stream)
            connection.about = served.record.about
            link.name = f"{connection.about}{link.name}"
            pushes = hello.direction == PUSH
            client = ServedClient(
                peer.name, PUSHES if pushes else PULLS, connection.name,
                software=printable(hello.software),
            )  # fmt: skip
            self._tell(served.record.join, client)
            try:
                looped = self._looped(connection, link, peer, served, client)
            finally:
                if looped is None:
                    self._tell(served.record.leave, client)
        except (Refused, PeerError) as error:
            _say_why(link, error)
            raise
        return None if looped is None else partial(self._hand_over, connection, looped)

    def _greet(self, link: Link, peer: PeerIdentity) -> tuple[Hello, ServedStream]:
        """Receive a peer's greeting and answer it; return the greeting and the stream it names.

        Raises:
            Refused: the peer may not do what it asks for.
            PeerError: the peer does not speak the protocol.
        """
        hello = link.expect(Hello)
        link.version = common_version(hello)
        served = self._streams.named(hello.stream, peer)
        check_hello(hello, peer, is_own=served.is_own)
        if peer.is_node and (why := served.objection(peer)):
            raise Refused("not-a-member", why)
        link.send(encode(Hello(VERSION_MIN, VERSION, hello.direction, hello.stream, SOFTWARE)))
        send_successions(link, served.says())
        return hello, served

    def _looped(
        self,
        connection: ServedConnection,
        link: Link,
        peer: PeerIdentity,
        served: ServedStream,
        client: ServedClient,
    ) -> LoopedConnection:
        """Return the connection in the form that an event loop takes over."""
        fills = feeds = None
        if client.kind == PUSHES:
            fills = self._sink_of(connection, link, peer, served)
        else:
            feeds = self._source_of(connection, link, peer, served, client)

        def held() -> Hold:
            if feeds is None:
                return self._held(link, peer, served)
            return Hold(self._charge(peer, link.take_passed()))

        return LoopedConnection(
            link, connection.wake, fills, feeds, held, connection,
            left=lambda: self._tell(served.record.leave, client),
        )  # fmt: skip

    def _hand_over(
        self, connection: ServedConnection, looped: LoopedConnection, drop: Callable[[], None]
    ) -> None:
        """Have the event loop serve a connection; once it has ended, report why, and `drop` it."""

        def over(error: Exception | None) -> None:
            try:
                looped.left()
                if isinstance(error, Refused | PeerError):
                    _say_why(looped.link, error)
                if error is not None:
                    self._report(connection, error)
            finally:
                looped.link.close()
                drop()

        LoopedClient(self._loop, looped, over).begin()

    def _sink_of(
        self, connection: ServedConnection, link: Link, peer: PeerIdentity, served: ServedStream
    ) -> SinkConnection:
        host = served.host
        schedule = AckSchedule(connection.wake, _PATIENCE_S, host, later_s=_LATER_S)
        claim = partial(self._claim, peer, served)
        # Not for a node: it has accepted what it relays, which may already have been merged.
        columns = None if peer.is_node else self._columns
        return SinkConnection(
            link, schedule, claim, columns=columns, handle_appends=host.handle_appends,
            refused=lambda why: self._tell(served.record.refuse, why.code),
            headers=None if peer.is_node else host.why_no_headers, heard=served.hears,
            loop=self._loop,
        )  # fmt: skip

    def _held(self, link: Link, peer: PeerIdentity, served: ServedStream) -> Hold:
        """Charge a pusher for its traffic; return for how long to pause it."""
        passed, quotas = link.take_passed(), served.quotas
        held_s, quota = self._charge(peer, passed), quotas.quota(peer.name)
        if not peer.is_node and (quota_s := quotas.spend(peer.name, passed.bytes)):
            held_s = max(held_s, quota_s)
            line = f"{served.record.about}{peer.title} is slowed down to {quota}"
            served.record.lines.warn(f"quota {peer.title}", line)
        return Hold(held_s, lambda: quotas.quota(peer.name) != quota)

    def _charge(self, peer: PeerIdentity, passed: Passed) -> float:
        """Charge for traffic; return for how many seconds to pause the connection."""
        held_s = self.admission.spend(peer, passed.bytes, passed.messages)
        if held_s:
            limits = self.admission.limits
            most = f"{size_text(limits.identity_bytes_s)} (identity_bytes_s)"
            most += f" and {limits.identity_messages_s} messages (identity_messages_s) a second"
            self._lines.warn(f"spent {peer.title}", f"{peer.title} is slowed down to {most}")
        return held_s

    def _source_of(
        self,
        connection: ServedConnection,
        link: Link,
        peer: PeerIdentity,
        served: ServedStream,
        client: ServedClient,
    ) -> PullConnection:
        host = served.host
        feed = partial(host.feed, relays=peer.is_node)
        pulling = PullConnection(
            link,
            connection.wake,
            feed,
            host.damaged,
            client.sent,
            loop=self._loop,
            heard=served.hears,
        )
        client.ends = lambda: (pulling.position, pulling.acked)
        return pulling

    def _claim(
        self, peer: PeerIdentity, served: ServedStream, log: LogIdentity, bell: Bell
    ) -> Inbox:
        host = served.host
        check_log(log, host.stream, peer)

        def charge(admission: Admission) -> None:
            admission.claim_session(peer, f"{host.stream}/{log.name}")
            served.quotas.claim_session(peer.name, log.name)

        if not peer.is_node:
            self.ask_admission(charge)
        return host.claim(log, peer.name, bell, relays=peer.is_node)


class _Accepting(ContextParty):
    """Calls `accept` for each dialling peer, one a turn, and otherwise once a second."""

    def __init__(
        self, loop: EventLoop, listener: socket.socket, accept: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._loop, self._fd, self._accept = loop, listener.fileno(), accept
        self._is_watched = False

    def begin(self) -> None:
        """Accept from now on."""
        if not self._is_watched:
            self._is_watched = True
            self._loop.watch(self._fd, self)
        self._look_within(_FLUSH_S)

    def end(self) -> None:
        """Accept no more."""
        self._loop.ignore(self._fd)
        self._loop.forget(self)

    def _turn(self) -> None:
        if self._accept():
            self.begin()
        else:
            self._pause()

    def _fail(self, error: Exception) -> None:
        _log.error("internal error while a connection was accepted", exc_info=error)
        self._pause()

    def _pause(self) -> None:
        self._is_watched = False
        self._loop.ignore(self._fd)
        self._look_within(_NO_RESOURCE_S)

    def _look_within(self, seconds: float) -> None:
        self._loop.deadlines.set(self, self._loop.clock() + seconds)


def _join(threads: Iterable[threading.Thread]) -> None:
    deadline = time.monotonic() + _STOP_S
    for thread in threads:
        if thread.is_alive():
            thread.join(max(0.0, deadline - time.monotonic()))


def _end(connection: ServedConnection) -> None:
    """End a connection, waking its thread."""
    connection.is_ended = True
    shut(connection.sock)


def _say_why(link: Link, error: Refused | PeerError) -> None:
    """Send a peer the reason why its connection ends, unless it hung up."""
    if isinstance(error, Refused):
        link.refuse(error.code, str(error))
    elif not isinstance(error, HungUp):
        link.refuse("protocol", str(error))
