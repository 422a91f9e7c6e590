"""Pulse: the heartbeat between two processes for all the streams that rest in them."""

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
# A node shows at each step where it is calm, every 10 s; one that hangs is listed no more.
SHOWN_S: Final = 14.0
_Line = tuple[str, tuple[Address, ...]]  # the name of a node, and where it may listen


def process_heartbeat(timing: AgreementSettings, files: CertificateFiles) -> "ProcessHeartbeat":
    """Return the pulse of a node's process: as often as a leader's heartbeat of a busy stream."""
    contexts = Contexts(files, lambda *paths: offering(client_context(*paths), PULSE_ALPN))
    return ProcessHeartbeat(contexts.current, beat_s=timing.heartbeat_s, lost_s=timing.election_s)


class HeardHeartbeats:
    """What a connection of another process has said.

    Threads:
        streams, at_s: the connection's thread writes, the first replaced whole; any may read.
        is_lost: the thread that beats.
    """

    def __init__(self, sender: str) -> None:
        self.sender = sender
        self.streams: Mapping[bytes, Quiescence] = {}
        self.at_s = time.monotonic()
        self.is_lost = False  # it was silent for too long, and its streams were woken


class JoinedStream(NamedTuple):
    """A stream that a pulse serves; any thread may call either.

    Attributes:
        wake: another member's rest may have ended.
        fail: there is no pulse any more, because of this error.
    """

    wake: Callable[[], None]
    fail: Callable[[Exception], None]


class HeartbeatLine(Outbox):
    """Beats to one process. The connections of its streams say in the log why it is not reached."""

    def _note(self, problem: str) -> None:
        self.problem = problem


class ProcessHeartbeat:
    """Tells other processes which streams rest here, several times a second, and hears theirs.

    While nothing rests, nothing is sent. A process that is silent for `lost_s`, or hangs up, or
    lists a stream no more, wakes the stream here.

    Threads:
        _lock: of the four below; held for an update only.
        _streams, _shown, _places, _lines: any thread, with the lock held.
        _heard: replaced whole, with the lock held; any thread may read it.
        _told, _beat_told: what was last said and how it is laid out; the thread that beats.
        _stopping, _context, _timing, _thread: set once.
    """

    def __init__(
        self, context: Callable[[], ssl.SSLContext], *, beat_s: float, lost_s: float
    ) -> None:
        """Prepare; nothing is sent before `start`.

        Args:
            context: returns the client context for the next connection, which offers `PULSE_ALPN`.
            beat_s: between two beats.
            lost_s: a process that was silent for so long is not known to live.
        """
        self._context, self._timing = context, (beat_s, lost_s)
        self._lock = threading.Lock()
        self._streams: dict[bytes, JoinedStream] = {}  # by group
        self._shown: dict[bytes, tuple[float, Quiescence]] = {}  # by group, and when
        self._places: dict[bytes, Mapping[str, Sequence[Address]]] = {}  # of other members
        self._lines: dict[_Line, HeartbeatLine] = {}
        self._heard: tuple[HeardHeartbeats, ...] = ()
        self._told: Mapping[bytes, Quiescence] = {}
        self._beat_told = encode_heartbeat({})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def join(
        self, cluster: str, wake: Callable[[], None], fail: Callable[[Exception], None]
    ) -> "StreamHeartbeat":
        """Return a stream's part.

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
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """End; the connections of others are ended by the server."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            lines, self._lines = self._lines, {}
        for line in lines.values():
            line.stop()

    def serve(self, sock: ssl.SSLSocket, identity: PeerIdentity) -> None:
        """Take the beats of another process until it hangs up.

        Called by the thread of an accepted connection.

        Raises:
            PeerError: it broke the protocol, or is not a node.
        """
        if not identity.is_node:
            raise PeerError(f"{identity.name!r} is not a node, and has no pulse")
        heard = HeardHeartbeats(identity.name)
        with self._lock:
            self._heard = (*self._heard, heard)
        sock.settimeout(None)  # it is silent while nothing rests; keep-alive finds dead peers
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
        """Forget a stream, which is served no more."""
        with self._lock:
            self._streams.pop(group, None)
            self._shown.pop(group, None)
        self.follow(group, {})

    def follow(self, group: bytes, places: Mapping[str, Sequence[Address]]) -> None:
        """Dial the members of a stream at these addresses, each process once for all streams."""
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
        """List a stream from the next beat on, or no more."""
        if calm is None and group not in self._shown:
            return  # the usual case
        with self._lock:
            if calm is None or group not in self._streams:  # its thread may go on for a moment
                self._shown.pop(group, None)
            else:
                self._shown[group] = time.monotonic(), calm

    def heard(self, group: bytes) -> dict[str, Quiescence]:
        """Return where other members say that a stream rests, of those heard lately."""
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
        except Exception as error:  # a follower at rest would not miss a leader that is silent
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
                if line.connected:  # later, it would say what is not so any more
                    line.put(self._beat_told)
        for each in self._heard:
            is_lost = each.streams and now_s - each.at_s > self._timing[1]
            if is_lost and not each.is_lost:
                _log.info("node %s has no pulse any more", each.sender)
                self._wake(each.sender, each.streams)
            each.is_lost = bool(is_lost)

    def _take(self, heard: HeardHeartbeats, streams: Mapping[bytes, Quiescence]) -> None:
        """Take a beat, and wake the streams whose rest may have ended there."""
        before, heard.streams, heard.at_s = heard.streams, streams, time.monotonic()
        ended = [group for group, calm in before.items() if streams.get(group) != calm]
        self._wake(heard.sender, ended)

    def _wake(self, sender: str, groups: Collection[bytes]) -> None:
        """Wake streams, if a member of theirs says so, and not just any node."""
        with self._lock:
            theirs = [each for each in groups if sender in self._places.get(each, ())]
            streams = [self._streams[each] for each in theirs if each in self._streams]
        for stream in streams:
            stream.wake()


class StreamHeartbeat:
    """One stream's part of a pulse; any thread may call any method."""

    def __init__(self, pulse: ProcessHeartbeat, group: bytes) -> None:
        self._pulse, self._group = pulse, group

    def show(self, calm: Quiescence | None) -> None:
        """Tell the other members that this node rests there; None takes it back."""
        self._pulse.show(self._group, calm)

    def heard(self) -> Mapping[str, Quiescence]:
        """Return where other members say that they rest, of those heard lately."""
        return self._pulse.heard(self._group)

    def follow(self, places: Mapping[str, Sequence[Address]]) -> None:
        """Dial these members."""
        self._pulse.follow(self._group, places)

    def leave(self) -> None:
        """The stream is served no more."""
        self._pulse.leave(self._group)


def _beats(sock: ssl.SSLSocket) -> Iterator[bytes]:
    """Yield what comes, beat by beat, until the peer has gone."""
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
    """Wait for bytes; none if the peer has gone."""
    try:
        return sock.read(_READ_BYTES)
    except OSError:
        return b""
