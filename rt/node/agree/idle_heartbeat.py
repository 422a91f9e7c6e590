"""Idle heartbeats: one heartbeat between two processes for all streams at rest in both."""

import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rt.errors import PeerError
from rt.net.authority.certificates import CertificateFiles
from rt.net.authority.identity import PeerIdentity
from rt.net.tls import Contexts, client_context, offering
from rt.node.agree.heartbeat_codec import (
    BEAT_BYTES_MAX,
    decode_heartbeat,
    encode_heartbeat,
    group_of,
)
from rt.node.settings.agreement import AgreementSettings
from sequencer.peers.connections import Outbox
from sequencer.peers.dialling import Address, PeerDialer
from sequencer.raft.consensus import Quiescence

_log: Final = logging.getLogger("rt.node")
PULSE_ALPN: Final = "rt-pulse/1"
_LENGTH: Final = struct.Struct("<I")
_READ_BYTES: Final = 16 * 1024
# A node at rest renews its place in the heartbeat every 10 s; one that hangs is dropped from it.
SHOWN_S: Final = 14.0
_Line = tuple[str, tuple[Address, ...]]  # a node's name and possible addresses


def process_heartbeat(timing: AgreementSettings, files: CertificateFiles) -> "ProcessHeartbeat":
    """Return the pulse of a node's process: as often as a leader's heartbeat of a busy stream."""
    contexts = Contexts(files, lambda *paths: offering(client_context(*paths), PULSE_ALPN))
    return ProcessHeartbeat(contexts.current, beat_s=timing.heartbeat_s, lost_s=timing.election_s)


class HeardHeartbeats:
    """HeardHeartbeats: what another process sent on one connection.

    Threads:
        streams, at_s: written by the connection's thread; any may read, since `streams` is
        replaced.
        is_lost: used by the heartbeat thread.
    """

    def __init__(self, sender: str) -> None:
        self.sender = sender
        self.streams: Mapping[bytes, Quiescence] = {}
        self.at_s = time.monotonic()
        self.is_lost = False  # silent for too long; its streams were woken


class JoinedStream(NamedTuple):
    """JoinedStream: a stream's callbacks, called by any thread.

    Attributes:
        wake: called when another member's rest may have ended.
        fail: called with the error when heartbeats have stopped.
    """

    wake: Callable[[], None]
    fail: Callable[[Exception], None]


class HeartbeatLine(Outbox):
    """HeartbeatLine: sends heartbeats to one process; its streams' connections log failures."""

    def _note(self, problem: str) -> None:
        self.problem = problem


class ProcessHeartbeat:
    """ProcessHeartbeat: exchanges with other processes, several times a second, which streams rest.

    While nothing rests, nothing is sent. A stream here is woken when another process is silent for
    `lost_s`, disconnects, or no longer lists the stream.

    Threads:
        _lock: guards the next four; held for an update only.
        _streams, _shown, _places, _lines: any thread, with the lock held.
        _heard: replaced whole, with the lock held; any thread may read it.
        _told, _beat_told: what was last sent, and its encoding; the heartbeat thread.
        _stopping, _context, _timing, _thread: set once.
    """

    def __init__(
        self, context: Callable[[], ssl.SSLContext], *, beat_s: float, lost_s: float
    ) -> None:
        """Prepare; nothing is sent before `start`.

        Args:
            context: returns the client context for the next connection, which offers `PULSE_ALPN`.
            beat_s: time between two heartbeats.
            lost_s: after so long a silence, a process may be dead.
        """
        self._context, self._timing = context, (beat_s, lost_s)
        self._lock = threading.Lock()
        self._streams: dict[bytes, JoinedStream] = {}  # by group
        self._shown: dict[bytes, tuple[float, Quiescence]] = {}  # time and place by group
        self._places: dict[bytes, Mapping[str, Sequence[Address]]] = {}  # other members
        self._lines: dict[_Line, HeartbeatLine] = {}
        self._heard: tuple[HeardHeartbeats, ...] = ()
        self._told: Mapping[bytes, Quiescence] = {}
        self._beat_told = encode_heartbeat({})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def join(
        self, cluster: str, wake: Callable[[], None], fail: Callable[[Exception], None]
    ) -> "StreamHeartbeat":
        """Register a stream and return its part.

        Args:
            cluster: the name that all its nodes have in common.
            wake: as in `JoinedStream`.
            fail: as in `JoinedStream`.
        """
        group = group_of(cluster)
        with self._lock:
            self._streams[group] = JoinedStream(wake, fail)
        return StreamHeartbeat(self, group)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending; the server closes other processes' connections."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            lines, self._lines = self._lines, {}
        for line in lines.values():
            line.stop()

    def serve(self, sock: ssl.SSLSocket, identity: PeerIdentity) -> None:
        """Receive another process's heartbeats until it disconnects.

        Called by the thread of an accepted connection.

        Raises:
            PeerError: it broke the protocol, or is not a node.
        """
        if not identity.is_node:
            raise PeerError(f"{identity.name!r} is not a node, and has no pulse")
        heard = HeardHeartbeats(identity.name)
        with self._lock:
            self._heard = (*self._heard, heard)
        sock.settimeout(None)  # silent while nothing rests; keep-alive finds dead peers
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            last = b""
            for beat in _beats(sock):
                if beat == last:  # the usual case
                    heard.at_s = time.monotonic()
                else:
                    self._take(heard, decode_heartbeat(beat))
                last = beat
        finally:
            with self._lock:
                self._heard = tuple(each for each in self._heard if each is not heard)
            self._take(heard, {})
            sock.close()

    def leave(self, group: bytes) -> None:
        """Forget a stream, which is no longer served."""
        with self._lock:
            self._streams.pop(group, None)
            self._shown.pop(group, None)
        self.follow(group, {})

    def follow(self, group: bytes, places: Mapping[str, Sequence[Address]]) -> None:
        """Dial a stream's members at these addresses; streams share one connection per process."""
        with self._lock:
            self._places[group] = places if group in self._streams else {}
            wanted = {(name, tuple(at)) for each in self._places.values()
                      for name, at in each.items()}  # fmt: skip
            gone = [self._lines.pop(line) for line in self._lines.keys() - wanted]
            for name, at in wanted - self._lines.keys():
                dialer = PeerDialer(name, at, self._context)
                self._lines[name, at] = HeartbeatLine(f"{name} (pulse)", dialer)
        for line in gone:
            line.retire()

    def show(self, group: bytes, calm: Quiescence | None) -> None:
        """List a stream in the next heartbeats, or remove it."""
        if calm is None and group not in self._shown:
            return  # the usual case
        with self._lock:
            if calm is None or group not in self._streams:  # its thread may outlive it
                self._shown.pop(group, None)
            else:
                self._shown[group] = time.monotonic(), calm

    def heard(self, group: bytes) -> dict[str, Quiescence]:
        """Return where other members, heard lately, say that a stream rests."""
        since_s = time.monotonic() - self._timing[1]
        with self._lock:
            members = self._places.get(group, {})
        return {
            each.sender: each.streams[group]
            for each in self._heard
            if each.at_s > since_s and group in each.streams and each.sender in members
        }

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._timing[0]):
                self._beat(time.monotonic())
        except Exception as error:  # resting followers would not notice a silent leader
            with self._lock:
                streams = [*self._streams.values()]
            for each in streams:
                each.fail(error)
            raise

    def _beat(self, now_s: float) -> None:
        with self._lock:
            shown = {group: calm for group, (at_s, calm) in self._shown.items()
                     if now_s - at_s < SHOWN_S}  # fmt: skip
            lines = [*self._lines.values()]
        if shown or self._told:
            if shown != self._told:  # seldom
                self._told, self._beat_told = shown, encode_heartbeat(shown)
            for line in lines:
                if line.connected:  # a queued heartbeat would be stale
                    line.put(self._beat_told)
        for each in self._heard:
            is_lost = each.streams and now_s - each.at_s > self._timing[1]
            if is_lost and not each.is_lost:
                _log.info("node %s has no pulse any more", each.sender)
                self._wake(each.sender, each.streams)
            each.is_lost = bool(is_lost)

    def _take(self, heard: HeardHeartbeats, streams: Mapping[bytes, Quiescence]) -> None:
        """Record a heartbeat, and wake the streams whose rest may have ended there."""
        before, heard.streams, heard.at_s = heard.streams, streams, time.monotonic()
        ended = [group for group, calm in before.items() if streams.get(group) != calm]
        self._wake(heard.sender, ended)

    def _wake(self, sender: str, groups: Collection[bytes]) -> None:
        """Wake those of these streams that the sender is a member of."""
        with self._lock:
            theirs = [each for each in groups if sender in self._places.get(each, ())]
            streams = [self._streams[each] for each in theirs if each in self._streams]
        for stream in streams:
            stream.wake()


class StreamHeartbeat:
    """StreamHeartbeat: a stream's part of `ProcessHeartbeat`; any thread may call any method."""

    def __init__(self, pulse: ProcessHeartbeat, group: bytes) -> None:
        self._pulse, self._group = pulse, group

    def show(self, calm: Quiescence | None) -> None:
        """Announce where this node rests; None withdraws it."""
        self._pulse.show(self._group, calm)

    def heard(self) -> Mapping[str, Quiescence]:
        """Return where other members, heard lately, say that they rest."""
        return self._pulse.heard(self._group)

    def follow(self, places: Mapping[str, Sequence[Address]]) -> None:
        """Dial these members."""
        self._pulse.follow(self._group, places)

    def leave(self) -> None:
        """Forget the stream, which is no longer served."""
        self._pulse.leave(self._group)


def _beats(sock: ssl.SSLSocket) -> Iterator[bytes]:
    """Yield heartbeats until the peer disconnects."""
    data = bytearray()
    while chunk := _received(sock):
        data += chunk
        while len(data) >= _LENGTH.size:
            [length] = _LENGTH.unpack_from(data)
            if length > BEAT_BYTES_MAX:
                raise PeerError(f"a beat of {length} bytes; the limit is {BEAT_BYTES_MAX}")
            end = _LENGTH.size + length
            if len(data) < end:
                break
            yield bytes(data[_LENGTH.size : end])
            del data[:end]


def _received(sock: ssl.SSLSocket) -> bytes:
    """Wait for bytes; b"" if the peer has disconnected."""
    try:
        return sock.read(_READ_BYTES)
    except OSError:
        return b""
