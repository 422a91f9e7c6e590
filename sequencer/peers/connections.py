"""Peers: the connections to and from the other members of a cluster, in an event loop."""

import logging
import random
import socket
import ssl
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Final, Protocol

from rt.about import carried
from rt.amounts import duration_text
from rt.errors import PeerError, Refused, RtError, spoken
from rt.net.addresses import Address
from rt.net.authority.identity import NodeObjection, PeerIdentity
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.poller import READABLE, WRITABLE
from rt.net.loop.turns import ContextParty
from rt.net.tls_errors import describe_tls_error
from rt.version import SOFTWARE
from sequencer.peers.dialling import UNACKNOWLEDGED_MS, PeerDialer, UnansweredError, removed_words
from sequencer.peers.message_reader import MessageReader, framed
from sequencer.peers.send_queue import MESSAGE_BYTES_MAX, SendQueue
from sequencer.peers.versions import INTRODUCED, PeerVersion, version_of

_log: Final = logging.getLogger("sequencer.peers")
_RECORD_BYTES: Final = 16 * 1024  # the most in one TLS record, which is sent whole or not at all
_TURN_BYTES: Final = 1 << 20  # after reading this much, handle the messages before reading on
_UNREAD_S: Final = UNACKNOWLEDGED_MS / 1000
_START_S: Final = 3.0
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_LAST_S: Final = 0.5  # a node that returns is reached within an election timeout
_PAUSE_SCOUTED_S: Final = 20.0  # while another stream tries about every half second


class PeerOut(ContextParty):
    """The connection on which this node sends to one member; a short-lived thread dials it.

    Threads: any thread may call `nudge` and read `connected`, `problem` and `sent_bytes`; the loop
        calls the rest. While a thread dials, only that thread uses `dialer`, except that other
        threads may assign its `addresses` and `is_due`.
    """

    is_urgent = True

    def __init__(
        self,
        loop: EventLoop,
        name: str,
        dialer: PeerDialer,
        about: Context,
        *,
        is_quiet: bool = False,
        told: Callable[[str], None] = lambda _verdict: None,
    ) -> None:
        """Prepare without connecting; `dial` connects.

        Args:
            loop: the event loop that serves the connection.
            name: the member's name.
            dialer: connects to the member.
            about: the context variables that are set while the loop handles the connection.
            is_quiet: whether to log nothing about connecting and disconnecting, because another
                connection to the same member does.
            told: called by the dialling thread with "" after the member accepted a connection, and
                with the member's reason after it refused one.
        """
        super().__init__(about)
        self.name, self.dialer = name, dialer
        self.connected, self.problem, self.sent_bytes = False, "", 0
        self._logged, self._first_s = "", loop.clock()  # the problem that was logged last
        self._loop = loop
        self._queue = SendQueue()
        self._record = b""  # sent next; when TLS finds no room, it demands the same bytes again
        self._rest = memoryview(b"")  # sent after `_record`; already popped from the queue
        self._sock: ssl.SSLSocket | None = None
        self._began_s = self._moved_s = 0.0
        self._pause_s = _PAUSE_FIRST_S
        self._is_dialling = self._is_retired = False
        self._is_full = False  # whether the socket has no room
        self._is_quiet, self._told = is_quiet, told

    def dial(self) -> None:
        """Begin to connect, unless this is connected, already dialling, or retired."""
        if self._is_dialling or self._is_retired or self._sock is not None:
            return
        self._is_dialling, self.dialer.is_due = True, False
        made: list[ssl.SSLSocket] = []

        def dial() -> None:
            try:
                sock = self.dialer.dial(self.nudge)
            except UnansweredError:
                raise
            except (OSError, PeerError, Refused):
                if verdict := self.dialer.verdict:
                    self._told(verdict)
                raise
            made.append(sock)
            if not self._is_retired:
                self._told("")

        def late() -> None:
            for sock in made:
                sock.close()

        self._loop.ask(dial, lambda error: self.acting(self._dialled, made, error)(), late)

    def nudge(self) -> None:
        """Dial now without a pause, unless the member is connected; any thread may call this."""
        self.dialer.is_due = True
        self._loop.post(self.acting(self.dial))

    def put(self, data: bytes) -> None:
        """Send a message now, or queue it; if too much is queued, drop the oldest messages."""
        data = framed(data)
        # While connected, the queue is empty unless `_record` waits for room in the socket.
        if self._sock is not None and not self._record and len(data) <= _RECORD_BYTES:
            if self._sent(data):
                return
            if self._sock is not None:
                self._record = data
                self._await_room()
                return
        self._queue.put(data)
        if self._sock is not None:
            self._flush()

    def _turn(self) -> None:
        """Send queued messages, and notice if the member has closed the connection."""
        if self._sock is None:
            self.dial()  # the pause is over
            return
        self._flush()
        self._look()
        is_late = self._loop.clock() - self._moved_s > _UNREAD_S
        if self._sock is not None and self._has_left and is_late:
            self._lose(f"it read nothing for {duration_text(_UNREAD_S)}")

    def _fail(self, error: Exception) -> None:
        _log.error("node %s: internal error; it is dialled again", self.name, exc_info=error)
        self._lose(f"internal error: {spoken(error)}")

    def retire(self) -> None:
        """Close the connection for good: send nothing more, and do not dial again."""
        self._is_retired = True
        self.dialer.give_up(self.nudge)
        self._drop()
        self._loop.forget(self)

    def _dialled(self, made: list[ssl.SSLSocket], error: Exception | None) -> None:
        """Handle the result of a dial."""
        self._is_dialling = False
        if made:
            self._connected(made[0])
        elif error is not None:
            pause_s = _PAUSE_SCOUTED_S if isinstance(error, UnansweredError) else self._pause_s
            self._note(spoken(error))
            self._try_later(pause_s)

    def _try_later(self, pause_s: float) -> None:
        if self._is_retired:
            return
        if self.dialer.is_due:
            self.dial()
            return
        self._pause_s = min(2 * self._pause_s, _PAUSE_LAST_S)
        self._loop.deadlines.set(self, self._loop.clock() + pause_s * random.uniform(0.5, 1))

    def _connected(self, sock: ssl.SSLSocket) -> None:
        if self._is_retired:
            sock.close()
            return
        self._sock, self._began_s = sock, self._loop.clock()
        self._moved_s = self._began_s
        self.connected, self.problem, self._logged = True, "", ""
        self._first_s = float("-inf")
        if not self._is_quiet:
            _log.info("connected to node %s", self.name)
        if (version_of(sock.selected_alpn_protocol()) or 0) >= INTRODUCED:
            self._record = framed(SOFTWARE.encode())
        self._loop.watch(sock.fileno(), self, READABLE)
        self._flush()

    @property
    def _has_left(self) -> bool:
        return bool(self._record or self._rest or self._queue)

    def _flush(self) -> None:
        """Send queued messages until the socket takes no more."""
        while self._sock is not None and (self._record or self._next_record()):
            if not self._sent(self._record):
                if self._sock is not None:
                    self._await_room()
                return
            self._record = b""
        if self._is_full and self._sock is not None:
            self._is_full = False
            self._loop.watch(self._sock.fileno(), self, READABLE)
            self._loop.deadlines.clear(self)

    def _next_record(self) -> bool:
        if not self._rest and self._queue:
            self._rest = memoryview(self._queue.pop())
        self._record, self._rest = (
            bytes(self._rest[:_RECORD_BYTES]), self._rest[_RECORD_BYTES:]
        )  # fmt: skip
        return bool(self._record)

    def _sent(self, record: bytes) -> bool:
        """Send a record; False if there is no room, or the connection is lost."""
        if self._sock is None:
            return False
        try:
            self._sock.send(record)
        except ssl.SSLWantWriteError:
            return False
        except OSError as error:
            self._lose(f"the connection broke: {describe_tls_error(error)}")
            return False
        self._moved_s = self._loop.clock()
        self.sent_bytes += len(record)
        return True

    def _await_room(self) -> None:
        if self._sock is not None:
            if not self._is_full:
                self._is_full = True
                self._loop.watch(self._sock.fileno(), self, READABLE | WRITABLE)
            self._loop.deadlines.set(self, self._moved_s + 1.01 * _UNREAD_S)

    def _look(self) -> None:
        """Drop the connection if the member closed it, or broke the protocol by sending on it."""
        if self._sock is None:
            return
        try:
            said = self._sock.read(_RECORD_BYTES)
        except ssl.SSLWantReadError:
            return
        except OSError as error:
            self._lose(f"the connection broke: {describe_tls_error(error)}")
            return
        self._lose(
            "the connection broke: " + ("it sent what it must not" if said else "it hung up")
        )

    def _lose(self, problem: str) -> None:
        self._note(problem)
        # A member that hung up sooner may do so after every dial, so the pause stays long.
        if self._loop.clock() - self._began_s > _PAUSE_LAST_S:
            self._pause_s = _PAUSE_FIRST_S
        self._drop()
        self._try_later(self._pause_s)

    def _drop(self) -> None:
        sock, self._sock, self.connected, self._is_full = self._sock, None, False, False
        self._record, self._rest = b"", memoryview(b"")  # a connection starts with a whole message
        if sock is not None:
            self._loop.ignore(sock.fileno())
            sock.close()

    def _note(self, problem: str) -> None:
        self.problem = problem
        # At first, the member's process may just be starting, as this one is.
        is_early = self._loop.clock() < self._first_s + _START_S
        if problem != self._logged and not (self._is_retired or self._is_quiet or is_early):
            _log.warning("node %s: %s", self.name, problem)
            self._logged = problem


class Listener(Protocol):
    """Listener: receives from other nodes; only the loop calls it."""

    loop: EventLoop

    def joined(self, reading: "PeerIn") -> bool:
        """Start receiving from a node; return False if the listener has stopped."""

    def receive(self, reading: "PeerIn", reader: MessageReader) -> None:
        """Handle received messages; raising a `PeerError` ends the connection."""

    def lost(self, reading: "PeerIn") -> None:
        """Handle the end of a connection."""


class PeerIn(ContextParty):
    """The connection on which another node sends to this one; the loop calls all but `keep`."""

    is_urgent = True

    def __init__(
        self,
        listener: Listener,
        sock: ssl.SSLSocket,
        peer: PeerIdentity,
        most: int = MESSAGE_BYTES_MAX,
    ) -> None:
        """Prepare; nothing is read before `keep`. A message over `most` bytes is an error."""
        super().__init__()
        sock.settimeout(0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # peers may be silent for long
        self.sock, self.peer = sock, peer
        self._listener = listener
        self._left: Callable[[], None] = lambda: None
        self._reader = MessageReader(peer.name, version_of(sock.selected_alpn_protocol()), most)
        self._is_over = False

    def keep(self, left: Callable[[], None]) -> None:
        """Let the loop read from now on; call `left` when the connection or the loop has ended."""
        self._left = left
        if not self._listener.loop.post(self.acting(self._begin)):
            left()

    def _begin(self) -> None:
        if not self._listener.joined(self):
            self.end()
            return
        self._listener.loop.watch(self.sock.fileno(), self, READABLE)
        self._listener.loop.mark(self)

    def _fail(self, error: Exception) -> None:
        _log.error("node %s: internal error; it is hung up on", self.peer.name, exc_info=error)
        self.end()

    def _turn(self) -> None:
        """Read what has arrived, and pass it to the listener."""
        if self._is_over:
            return
        try:
            is_open, has_more = (True, True) if self._reader.has_more else self._receive()
            self._listener.receive(self, self._reader)
            while self._reader.has_more and not is_open:  # what came before the peer hung up
                self._listener.receive(self, self._reader)
        except (RtError, OSError) as error:
            _log.warning("node %s: %s", self.peer.name, error)
            is_open = has_more = False
        if not is_open:
            self.end()
        elif has_more or self._reader.has_more:
            self._listener.loop.mark(self)

    def _receive(self) -> tuple[bool, bool]:
        """Read up to 1 MiB; return whether the connection is open, and whether more may wait."""
        left = _TURN_BYTES
        while left > 0:
            try:
                chunk = self.sock.read(_RECORD_BYTES)
            except ssl.SSLWantReadError:
                return True, False
            except OSError:
                return False, False
            if not chunk:
                return False, False
            self._reader.add(chunk)
            left -= len(chunk)
            # A read decrypts one record at most and returns it whole, so the poller sees the rest.
            if len(chunk) < _RECORD_BYTES:
                return True, False
        return True, True

    def end(self) -> None:
        """Close the connection."""
        if self._is_over:
            return
        self._is_over = True
        self._listener.loop.ignore(self.sock.fileno())
        self._listener.loop.forget(self)
        self._listener.lost(self)
        self._left()


class Peers:
    """Connects this node with all other members of its cluster.

    Threads: any thread may call `send`, `follow`, `serve`, `stop`, `problems` and `versions`, and
        read what they return; the loop calls the rest. `_out`, `_versions`: only the loop assigns
        them, always a new dictionary that is never changed, so any thread may read them. `spoken`,
        `holders`: the loop sets single items; any thread may read single items. `_in`, `_is_over`:
        used by the loop only.
    """

    def __init__(
        self,
        loop: EventLoop,
        name: str,
        addresses: Mapping[str, Sequence[Address]],
        context: Callable[[], ssl.SSLContext],
        heard: Callable[[str, list[bytes]], None],
        *,
        gone: Callable[[str], None],
        objection: NodeObjection,
        removed: Callable[[str, bool], None] = lambda _member, _is_removed: None,
        outdated: Callable[[str], str] = lambda _alpn: "",
    ) -> None:
        """Dial every other member.

        Args:
            loop: the event loop that serves the connections.
            name: this node's name.
            addresses: one or more addresses of each member, by name.
            context: as for `PeerDialer`.
            heard: called by the loop with the sender's authenticated name and the messages that
                arrived together.
            gone: called by another thread with the name of a member whose process has ended.
            objection: returns why a node is not accepted, or "".
            removed: called by a dialling thread with a member's name, and True after the member
                refused this node as removed, or False after it accepted a connection.
            outdated: takes the ALPN name that a node speaks; returns why the node's version is too
                old for this node to send to it, or "" if it is not.
        """
        self.loop = loop
        self.spoken: dict[str, int] = {}
        self.holders: dict[str, PeerIdentity] = {}
        self._name, self._context, self._heard = name, context, heard
        self._gone, self._asked, self._removed = gone, objection, removed
        self._outdated = outdated
        self._out: dict[str, PeerOut] = {}
        self._in: dict[str, PeerIn] = {}
        self._versions: dict[str, PeerVersion] = {}
        self._is_over = False
        self._about = copy_context()  # of the stream's thread
        self.follow(addresses)

    def send(self, to: str, data: bytes) -> None:
        """Send or queue a message for a member; drop a message for any other node."""
        out = self._out.get(to)
        if out is None:
            return
        if self.loop.is_own_thread:
            out.put(data)
        else:
            self.loop.post(out.acting(out.put, data))

    def follow(self, addresses: Mapping[str, Sequence[Address]]) -> None:
        """Connect to these members and no others; new addresses are tried at the next dial."""
        self.loop.call(partial(self._follow, addresses))

    def _follow(self, addresses: Mapping[str, Sequence[Address]]) -> None:
        if self._is_over:
            return
        is_other = partial(self._asked, greets=True, is_live=True)  # why a node is refused
        before, every = self._out, dict[str, PeerOut]()
        for member, places in addresses.items():
            if member in before:
                out = every[member] = before[member]
                if out.dialer.addresses != tuple(places):
                    out.dialer.addresses = tuple(places)
                    out.nudge()
            elif member != self._name:
                dialer = PeerDialer(
                    member, places, self._context, is_other, outdated=self._outdated
                )
                told = partial(self._told, member)
                out = every[member] = PeerOut(self.loop, member, dialer, self._about, told=told)
                out.nudge()
        self._out = every
        for member in before.keys() - every.keys():
            before[member].retire()

    def _told(self, member: str, verdict: str) -> None:
        """Report that a member accepts this node, or refuses it as removed."""
        if verdict in {"", removed_words(self._name)}:
            self._removed(member, bool(verdict))

    @property
    def sent_bytes(self) -> int:
        """The bytes sent to all present members, before encryption."""
        return sum(out.sent_bytes for out in self._out.values())

    def problems(self, members: Container[str]) -> dict[str, str]:
        """Return, by name, the problem of each of these members that is not connected."""
        return {
            name: out.problem or "not connected yet"
            for name, out in self._out.items()
            if name in members and not out.connected
        }

    def versions(self) -> dict[str, PeerVersion]:
        """Return the versions of the members that are connected to this node, by name."""
        return self._versions

    def serve(
        self, sock: ssl.SSLSocket, identity: PeerIdentity
    ) -> Callable[[Callable[[], None]], None]:
        """Accept a member's connection; return the function that lets the loop begin to read it.

        Raises:
            Refused: the certificate is not another member's.
        """
        if not identity.is_node or identity.name == self._name:
            raise Refused("not-a-member", f"{identity.name!r} is not another node of this cluster")
        if why := self._asked(identity, greets=True, is_live=False):
            raise Refused("not-a-member", why)
        return PeerIn(self, sock, identity).keep

    def joined(self, reading: PeerIn) -> bool:
        """Receive from a member on this connection, and close the member's older connection.

        Do nothing and return False if `stop` was called.
        """
        if self._is_over:
            return False
        name = reading.peer.name
        before, self._in[name] = self._in.get(name), reading
        self.holders[name] = reading.peer
        self._forget_version(name)
        if before is not None:
            before.end()  # the member gave up the old one; the kernel may not notice for hours
        return True

    def receive(self, reading: PeerIn, reader: MessageReader) -> None:
        """Pass on what a member has sent.

        Raises:
            PeerError: the member broke the protocol, or is no longer accepted.
        """
        peer = reading.peer
        if why := self._asked(peer, greets=True, is_live=True):
            raise PeerError(f"it is heard no more: {why}")
        messages = reader.pop_messages()
        if reader.version is not None and peer.name not in self._versions:
            self._versions = {**self._versions, peer.name: reader.version}
            self.spoken[peer.name] = reader.version.protocol
            if reader.version.differs:
                _log.info("node %s: %s", peer.name, reader.version.differs)
        if messages:
            self._heard(peer.name, messages)

    def lost(self, reading: PeerIn) -> None:
        """Handle the end of a member's connection; call `gone` if the member's process ended."""
        name = reading.peer.name
        if self._in.get(name) is not reading:
            return
        del self._in[name]
        self._forget_version(name)
        out = self._out.get(name)
        if out is None or self._is_over:
            return

        def ask() -> None:
            if out.dialer.is_refused() and not self._is_over:
                self._gone(name)

        with suppress(RuntimeError):  # no thread can start; an election begins later by itself
            threading.Thread(target=carried(ask), name=f"gone {name}", daemon=True).start()

    def stop(self) -> None:
        """End all connections."""
        self.loop.call(self._stop)

    def _stop(self) -> None:
        self._is_over = True
        for reading in list(self._in.values()):
            reading.end()
        for out in self._out.values():
            out.retire()

    def _forget_version(self, member: str) -> None:
        self._versions = {each: known for each, known in self._versions.items() if each != member}
