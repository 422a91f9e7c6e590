"""Connections between nodes: bounded, and independent of each other's speed."""

import logging
import random
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from rt.about import carried
from rt.errors import PeerError, Refused, spoken
from rt.net.authority.identity import NodeObjection, PeerIdentity
from rt.net.tls_errors import describe_tls_error
from rt.version import SOFTWARE
from sequencer.peers.dialling import UNACKNOWLEDGED_MS, Address, PeerDialer, UnansweredError
from sequencer.peers.send_queue import MESSAGE_BYTES_MAX, SendQueue
from sequencer.peers.versions import (
    INTRODUCED,
    PEER_VERSIONS,
    PeerVersion,
    decode_software,
    version_of,
)

_log: Final = logging.getLogger("sequencer.peers")

_LENGTH: Final = struct.Struct("<I")
_READ_BYTES: Final = 16 * 1024  # a whole TLS record, so none of it remains to be read
_TURN_BYTES: Final = 1 << 20  # with more than this, messages are handled before reading on
_NOW_BYTES_MAX: Final = 8 * 1024  # half a TLS record; the outbox's own thread sends anything larger
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_LAST_S: Final = 0.5  # a node that returns is reached within an election timeout
_PAUSE_SCOUTED_S: Final = 20.0  # while another stream tries as often as that


class Outbox:
    """Messages to one member, and the thread that sends them.

    A small message is sent at once by the thread that puts it, unless others wait before it.

    Threads:
        _lock: of `_queue`, `_is_idle`, `_stopping` and `dialer.is_due`.
        _changed: the condition over `_lock` that one of them changed.
        _queue, _is_idle, _stopping: any thread, with the lock held. The own thread also reads
            `_stopping` without it: it is set once and never reset.
        _sock: set by the own thread. Any thread may send on it, with the lock held and while
            `_is_idle`, since the own thread then waits; and shut it down at any time.
        connected, problem: written by the own thread; anyone may read them.
        sent_bytes: written by whichever thread is sending, so never by two at once.
        name, dialer, _thread: set once.
    """

    def __init__(self, name: str, dialer: PeerDialer) -> None:
        """Start dialling.

        Args:
            name: the member.
            dialer: connects to it.
        """
        self.name = name
        self.connected = False
        self.problem = ""
        self.sent_bytes = 0
        self.dialer = dialer
        self._queue = SendQueue()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._is_idle = False  # connected, and everything was sent
        self._stopping = False
        self._sock: ssl.SSLSocket | None = None
        self._thread = threading.Thread(target=carried(self._run), name=f"to {name}", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Send a message, or queue it; the oldest are dropped if too much is waiting."""
        data = framed(data)
        with self._lock:
            if self._is_idle and self._sent_now(data):
                return
            self._is_idle = False  # later messages queue up after this one, however small
            self._queue.put(data)
            self._changed.notify()

    def nudge(self) -> None:
        """Dial again now, if the member is not connected."""
        with self._changed:
            self.dialer.is_due = True
            self._changed.notify()

    def stop(self) -> None:
        """End the thread; waiting messages are dropped."""
        self.retire()
        self._thread.join()

    def retire(self) -> None:
        """Tell the thread to end, without waiting for it."""
        self.dialer.give_up(self.nudge)
        with self._changed:
            self._stopping = True
            self._changed.notify()
            sock = self._sock
        if sock is not None:
            _shut(sock)

    def _run(self) -> None:
        pause_s = _PAUSE_FIRST_S
        while not self._stopping:
            wait_s = pause_s
            try:
                self._sock = self.dialer.dial(self.nudge)
            except UnansweredError as error:
                wait_s = _PAUSE_SCOUTED_S
                self._note(spoken(error))
            except (OSError, PeerError, Refused) as error:
                self._note(spoken(error))
            else:
                began_s = time.monotonic()
                self._pump(self._sock)
                if time.monotonic() - began_s > _PAUSE_LAST_S:  # else it may hang up every time
                    wait_s = pause_s = _PAUSE_FIRST_S
            self._pause(wait_s * random.uniform(0.5, 1))
            pause_s = min(2 * pause_s, _PAUSE_LAST_S)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self.dialer.is_due, seconds)
            self.dialer.is_due = False

    def _pump(self, sock: ssl.SSLSocket) -> None:
        self.connected, self.problem = True, ""
        _log.info("connected to node %s", self.name)
        try:
            if (version_of(sock.selected_alpn_protocol()) or 0) >= INTRODUCED:
                _send_all(sock, framed(SOFTWARE.encode()))
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
        """Send a message if it is small and the socket takes all of it; the lock is held."""
        if self._sock is None or len(data) > _NOW_BYTES_MAX:
            return False
        try:
            self.sent_bytes += self._sock.send(data)
        except OSError:
            return False  # no room, or the connection broke: the own thread will find out
        return True

    def _take(self) -> bytes | None:
        """Wait for messages and return them all; None to stop."""
        with self._changed:
            self._is_idle = not self._queue
            self._changed.wait_for(lambda: self._queue or self._stopping)
            self._is_idle = False
            return None if self._stopping else self._queue.take()

    def _note(self, problem: str) -> None:
        if problem != self.problem and not self._stopping:
            _log.warning("node %s: %s", self.name, problem)
        self.problem = problem


class Peers:
    """All other members of this node's cluster.

    Threads:
        _lock: of `_serving` and `_versions`.
        _serving, _versions: any connection's thread, with the lock held.
        spoken, holders: any connection's thread sets an item, with the lock held; any thread may
            read one.
        _outboxes: replaced whole by the thread that calls `follow`, and never changed; any thread
            may read it. An outbox has rules of its own.
        _stopping: set by `stop`, and never reset; any thread may read it.
        _heard, _gone, _name, _context: set once.
    """

    def __init__(
        self,
        name: str,
        addresses: Mapping[str, Sequence[Address]],
        context: Callable[[], ssl.SSLContext],
        heard: Callable[[str, list[bytes]], None],
        *,
        gone: Callable[[str], None] = lambda _member: None,
        objection: NodeObjection | None = None,
    ) -> None:
        """Dial every other member.

        Args:
            name: this node.
            addresses: of all members; of each, one or more.
            context: as for `PeerDialer`.
            heard: called with the sender's authenticated name and the messages that arrived
                together, by a connection's thread.
            gone: called with the name of a member whose process has ended, by the thread of its
                last connection.
            objection: why a node is not heard; None if the server that accepts has asked already.
        """
        self._asked = objection
        self._heard, self._name, self._context = heard, name, context
        self._gone, self._stopping = gone, False
        self._outboxes: dict[str, Outbox] = {}
        self.follow(addresses)
        self._serving: dict[str, ssl.SSLSocket] = {}  # by member
        self._versions: dict[str, PeerVersion] = {}  # of the same
        self.spoken: dict[str, int] = {}  # by member, the protocol of its last connection
        self.holders: dict[str, PeerIdentity] = {}  # the same, by its certificate
        self._lock = threading.Lock()

    def send(self, to: str, data: bytes) -> None:
        """Queue a message for a member; for any other node it is lost."""
        outbox = self._outboxes.get(to)
        if outbox is not None:
            outbox.put(data)

    def follow(self, addresses: Mapping[str, Sequence[Address]]) -> None:
        """Dial these members and no others; one that moved, at its next attempt."""
        before, outboxes = self._outboxes, dict[str, Outbox]()
        for member, places in addresses.items():
            if member in before:
                outbox = outboxes[member] = before[member]
                if outbox.dialer.addresses != tuple(places):
                    outbox.dialer.addresses = tuple(places)
                    outbox.nudge()
            elif member != self._name:
                dialer = PeerDialer(member, places, self._context, self._is_other)
                outboxes[member] = Outbox(member, dialer)
        self._outboxes = outboxes
        for member in before.keys() - outboxes.keys():
            before[member].retire()

    @property
    def sent_bytes(self) -> int:
        """The bytes sent to all of them, before encryption."""
        return sum(outbox.sent_bytes for outbox in self._outboxes.values())

    def problems(self, members: Container[str]) -> dict[str, str]:
        """Return, for each of these members that cannot be reached, why.

        A node that was removed is dialled for a while, to learn of it, and is not one of them.
        """
        return {
            name: outbox.problem or "not connected yet"
            for name, outbox in self._outboxes.items()
            if name in members and not outbox.connected
        }

    def versions(self) -> dict[str, PeerVersion]:
        """Return the version of each member that is connected to us."""
        with self._lock:
            return dict(self._versions)

    def serve(self, sock: ssl.SSLSocket, identity: PeerIdentity) -> None:
        """Read what a member sends until it hangs up, or connects again.

        Called by the thread of an accepted connection.

        A node may connect that this one has not heard of yet, while it is on its own; who listens
        decides what a message is worth.

        Raises:
            Refused: the certificate is not another member's.
            PeerError: it broke the protocol, or is heard no more.
        """
        if not identity.is_node or identity.name == self._name:
            raise Refused("not-a-member", f"{identity.name!r} is not another node of this cluster")
        if why := self._objection(identity, is_live=False):
            raise Refused("not-a-member", why)
        sock.settimeout(None)  # a follower may be silent for long; keep-alive finds dead peers
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with self._lock:
            before, self._serving[identity.name] = self._serving.get(identity.name), sock
            self.holders[identity.name] = identity
        if before is not None:
            _shut(before)  # the member has given it up; the kernel may not notice for hours
        try:
            self._read(sock, identity)
        finally:
            with self._lock:
                is_last = self._serving.get(identity.name) is sock
                if is_last:
                    del self._serving[identity.name]
                    self._versions.pop(identity.name, None)
            sock.close()
        outbox = self._outboxes.get(identity.name)
        if is_last and outbox is not None and not self._stopping and outbox.dialer.is_refused():
            self._gone(identity.name)

    def stop(self) -> None:
        """End all connections."""
        self._stopping = True
        with self._lock:
            serving = list(self._serving.values())
        for sock in serving:
            _shut(sock)
        for outbox in self._outboxes.values():
            outbox.stop()

    def _is_other(self, peer: PeerIdentity) -> str:
        """Return why what answers at a member's address is not that member."""
        return self._objection(peer, is_live=True)

    def _objection(self, peer: PeerIdentity, *, is_live: bool) -> str:
        """Return why a node is not heard; "" if it is."""
        return self._asked(peer, greets=True, is_live=is_live) if self._asked is not None else ""

    def _read(self, sock: ssl.SSLSocket, peer: PeerIdentity) -> None:
        reader, is_noted = (
            MessageReader(peer.name, version_of(sock.selected_alpn_protocol())),
            False,
        )
        poller = select.poll()
        poller.register(sock.fileno(), select.POLLIN)
        while chunk := _received(sock):
            if reader.add(chunk) < _TURN_BYTES and poller.poll(0):
                continue  # handle together what arrived in the meantime
            if why := self._objection(peer, is_live=True):
                raise PeerError(f"it is heard no more: {why}")
            messages = reader.take()
            if not is_noted and reader.version is not None:
                self._note_version(sock, peer.name, reader.version)
                is_noted = True
            if messages:
                self._heard(peer.name, messages)

    def _note_version(self, sock: ssl.SSLSocket, sender: str, version: PeerVersion) -> None:
        with self._lock:
            if self._serving.get(sender) is sock:
                self._versions[sender] = version
                self.spoken[sender] = version.protocol
        if version.differs:
            _log.info("node %s: %s", sender, version.differs)


def _send_all(sock: ssl.SSLSocket, data: bytes) -> None:
    """Send everything; `PeerError` if the peer reads nothing for too long."""
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLOUT)
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except ssl.SSLWantWriteError:
            if not poller.poll(UNACKNOWLEDGED_MS):
                raise PeerError(f"it read nothing for {UNACKNOWLEDGED_MS / 1000:g} s") from None


def _received(sock: ssl.SSLSocket) -> bytes:
    """Wait for bytes; none if the peer has gone."""
    try:
        return sock.read(_READ_BYTES)
    except OSError:
        return b""


class MessageReader:
    """Cuts what one member sends into messages, the first of which may introduce it."""

    def __init__(self, sender: str, protocol: int | None) -> None:
        """Begin a connection.

        Args:
            sender: the member.
            protocol: the version that both sides chose.
        """
        self._sender = sender
        self._protocol = protocol or PEER_VERSIONS[-1]
        self._data = bytearray()
        is_silent = self._protocol < INTRODUCED
        self.version = PeerVersion(self._protocol) if is_silent else None  # once it is known

    def add(self, chunk: bytes) -> int:
        """Take what has arrived; return how much waits for `take`."""
        self._data += chunk
        return len(self._data)

    def take(self) -> list[bytes]:
        """Return the messages that are complete; `PeerError` if one is too long."""
        messages = _cut(self._data, self._sender)
        if messages and self.version is None:
            self.version = PeerVersion(self._protocol, decode_software(messages.pop(0)))
        return messages


def framed(message: bytes) -> bytes:
    """Return a message as it goes onto the wire."""
    return _LENGTH.pack(len(message)) + message


def _cut(data: bytearray, sender: str) -> list[bytes]:
    """Remove the complete messages from the front of the received data."""
    messages, offset, there = [], 0, len(data)
    while there - offset >= _LENGTH.size:
        [length] = _LENGTH.unpack_from(data, offset)
        if length > MESSAGE_BYTES_MAX:
            raise PeerError(f"node {sender} announces a message of {length} bytes")
        end = offset + _LENGTH.size + length
        if end > there:
            break
        messages.append(bytes(data[offset + _LENGTH.size : end]))
        offset = end
    del data[:offset]
    return messages


def _shut(sock: ssl.SSLSocket) -> None:
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        return  # closed already
