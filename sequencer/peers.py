"""Peers: the connections between nodes; bounded, and no slow one holds up another."""

import logging
import random
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from rt.errors import PeerError, Refused, spoken
from rt.net.identity import PeerIdentity
from rt.net.tls import connect
from rt.net.tls_errors import describe_tls_error

_log: Final = logging.getLogger("sequencer.peers")

ALPN: Final = "rt-peer/1"  # tells these connections from those of replicators on the same port
_LENGTH: Final = struct.Struct("<I")
_READ_BYTES: Final = 64 * 1024
_TURN_BYTES: Final = 1 << 20  # more is not awaited before what came is heard
MESSAGE_BYTES_MAX: Final = 16 << 20  # a whole report of 100,000 sessions, or entries and a chunk
# What may wait for a peer. Raft sends again what it misses, so the oldest is dropped beyond this:
# 7 nodes hold at most 6 x 32 MiB for dead ones.
_QUEUE_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX
_NOW_BYTES_MAX: Final = 8 * 1024  # one TLS record; more is sent by the outbox's own thread
_CONNECT_S: Final = 2.0
_UNACKNOWLEDGED_MS: Final = 2000  # a black hole is noticed after this, and dialled again
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_LAST_S: Final = 0.5  # a node that comes back is heard within an election timeout


class Outbox:
    """What is to be sent to one member, and the thread that sends it.

    What is little goes out at once, by the thread that brings it, while nothing else waits.
    """

    def __init__(
        self, name: str, address: tuple[str, int], context: Callable[[], ssl.SSLContext]
    ) -> None:
        """Begin to dial `address`, where the member `name` must answer.

        Args:
            name: of the member.
            address: where it listens.
            context: gives the client context for the next connection, which offers `ALPN`.
        """
        self.name = name
        self.connected = False
        self.problem = ""
        self.dropped = 0
        self.sent_bytes = 0
        self._address = address
        self._context = context
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._is_idle = False  # connected, and all was sent
        self._stopping = False
        self._sock: ssl.SSLSocket | None = None
        self._thread = threading.Thread(target=self._run, name=f"to {name}", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Send a message, or queue it; the oldest are dropped where too much waits."""
        data = _LENGTH.pack(len(data)) + data
        with self._changed:
            if self._is_idle and self._sent_now(data):
                return
            self._is_idle = False  # what comes now goes behind this, be it little
            self._queue.append(data)
            self._bytes += len(data)
            while self._bytes > _QUEUE_BYTES_MAX:
                self._bytes -= len(self._queue.popleft())
                self.dropped += 1
            self._changed.notify()

    def stop(self) -> None:
        """End the thread; what waits is dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
            sock = self._sock
        if sock is not None:
            _shut(sock)
        self._thread.join()

    def _run(self) -> None:
        pause_s = _PAUSE_FIRST_S
        while not self._stopping:
            try:
                self._sock = self._dial()
            except (OSError, PeerError, Refused) as error:
                self._note(spoken(error))
            else:
                began_s = time.monotonic()
                self._pump(self._sock)
                if time.monotonic() - began_s > _PAUSE_LAST_S:  # else it may hang up on each
                    pause_s = _PAUSE_FIRST_S
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, pause_s * random.uniform(0.5, 1))
            pause_s = min(2 * pause_s, _PAUSE_LAST_S)

    def _dial(self) -> ssl.SSLSocket:
        sock, identity = connect(self._address, self._context(), _CONNECT_S)
        if not identity.is_node or identity.name != self.name:
            sock.close()
            raise PeerError(f"{identity.name!r} answers at {self._address[0]}:{self._address[1]}")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        sock.settimeout(0)
        return sock

    def _pump(self, sock: ssl.SSLSocket) -> None:
        self.connected, self.problem = True, ""
        _log.info("connected to node %s", self.name)
        try:
            while (data := self._take()) is not None:
                _send_all(sock, data)
                self.sent_bytes += len(data)
        except PeerError as error:
            self._note(str(error))
        except OSError as error:
            self._note(f"the connection broke: {describe_tls_error(error)}")
        finally:
            self.connected = False
            sock.close()

    def _sent_now(self, data: bytes) -> bool:
        """Send a message if it is little and goes out whole; the lock is held."""
        if self._sock is None or len(data) > _NOW_BYTES_MAX:
            return False
        try:
            self.sent_bytes += self._sock.send(data)
        except OSError:
            return False  # no room, or the connection broke: the thread meets it again
        return True

    def _take(self) -> bytes | None:
        """Wait for messages and return all of them as they go onto the wire; None to stop."""
        with self._changed:
            self._is_idle = not self._queue
            self._changed.wait_for(lambda: self._queue or self._stopping)
            self._is_idle = False
            if self._stopping:
                return None
            data = b"".join(self._queue)
            self._queue.clear()
            self._bytes = 0
            return data

    def _note(self, problem: str) -> None:
        if problem != self.problem and not self._stopping:
            _log.warning("node %s: %s", self.name, problem)
        self.problem = problem


class Peers:
    """All other members of this node's cluster."""

    def __init__(
        self,
        name: str,
        addresses: Mapping[str, tuple[str, int]],
        context: Callable[[], ssl.SSLContext],
        heard: Callable[[str, list[bytes]], None],
    ) -> None:
        """Dial every other member.

        Args:
            name: this node.
            addresses: of all members.
            context: gives a client context that offers `ALPN`.
            heard: is given the sender's proved name and the messages that came as one, by a
                connection's thread.
        """
        self._heard = heard
        self._members = frozenset(addresses)
        self._outboxes = {
            member: Outbox(member, address, context)
            for member, address in addresses.items()
            if member != name
        }
        self._serving: dict[str, ssl.SSLSocket] = {}  # by member
        self._lock = threading.Lock()

    def send(self, to: str, data: bytes) -> None:
        """Queue a message for a member."""
        self._outboxes[to].put(data)

    @property
    def sent_bytes(self) -> int:
        """What was sent to all of them, before it was encrypted."""
        return sum(outbox.sent_bytes for outbox in self._outboxes.values())

    def problems(self) -> dict[str, str]:
        """Return why a member cannot be reached, for each that cannot."""
        return {
            name: outbox.problem or "not connected yet"
            for name, outbox in self._outboxes.items()
            if not outbox.connected
        }

    def serve(self, sock: ssl.SSLSocket, identity: PeerIdentity) -> None:
        """Read what a member sends until it hangs up, or dials anew.

        For the thread of an accepted connection.

        Raises:
            Refused: the certificate is not a member's.
            PeerError: it sent what no member sends.
        """
        if not identity.is_node or identity.name not in self._members:
            raise Refused("not-a-member", f"{identity.name!r} is not a node of this cluster")
        sock.settimeout(None)  # a follower says nothing for long; the kernel finds dead peers
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with self._lock:
            before, self._serving[identity.name] = self._serving.get(identity.name), sock
        if before is not None:
            _shut(before)  # who dials anew has given it up, and the kernel may not know for hours
        try:
            self._read(sock, identity.name)
        finally:
            with self._lock:
                if self._serving.get(identity.name) is sock:
                    del self._serving[identity.name]
            sock.close()

    def stop(self) -> None:
        """End all connections."""
        with self._lock:
            serving = list(self._serving.values())
        for sock in serving:
            _shut(sock)
        for outbox in self._outboxes.values():
            outbox.stop()

    def _read(self, sock: ssl.SSLSocket, sender: str) -> None:
        data = bytearray()
        poller = select.poll()
        poller.register(sock.fileno(), select.POLLIN)
        while chunk := _received(sock):
            data += chunk
            is_behind = sock.pending() or poller.poll(0)
            if is_behind and len(data) < _TURN_BYTES:
                continue  # what came meanwhile is taken up at once
            if messages := _cut(data, sender):
                self._heard(sender, messages)


def _send_all(sock: ssl.SSLSocket, data: bytes) -> None:
    """Send everything; `PeerError` if the peer takes nothing for too long."""
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLOUT)
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except ssl.SSLWantWriteError:
            if not poller.poll(_UNACKNOWLEDGED_MS):
                raise PeerError(f"it took nothing for {_UNACKNOWLEDGED_MS / 1000:g} s") from None


def _received(sock: ssl.SSLSocket) -> bytes:
    """Wait for bytes; none if the peer has gone."""
    try:
        return sock.recv(_READ_BYTES)
    except OSError:
        return b""


def _cut(data: bytearray, sender: str) -> list[bytes]:
    """Take the whole messages off the front of what was received."""
    messages, offset = [], 0
    while len(data) - offset >= _LENGTH.size:
        [length] = _LENGTH.unpack_from(data, offset)
        if length > MESSAGE_BYTES_MAX:
            raise PeerError(f"node {sender} announces a message of {length} bytes")
        end = offset + _LENGTH.size + length
        if end > len(data):
            break
        messages.append(bytes(data[offset + _LENGTH.size : end]))
        offset = end
    del data[:offset]
    return messages


def _shut(sock: ssl.SSLSocket) -> None:
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        return  # it was closed already
