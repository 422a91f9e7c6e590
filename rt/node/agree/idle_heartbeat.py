"""Idle heartbeats: one heartbeat between two processes for all streams at rest in both."""

import logging
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import copy_context
from typing import Final, NamedTuple

from rt.errors import PeerError
from rt.net.authority.certificates import CertificateFiles
from rt.net.authority.identity import PeerIdentity
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import Contexts, client_context, offering
from rt.node.agree.heartbeat_codec import (
    BEAT_BYTES_MAX,
    decode_heartbeat,
    encode_heartbeat,
    group_of,
)
from rt.node.settings.agreement import AgreementSettings
from sequencer.peers.connections import PeerIn, PeerOut
from sequencer.peers.dialling import Address, PeerDialer
from sequencer.peers.message_reader import MessageReader
from sequencer.raft.consensus import Quiescence

_log: Final = logging.getLogger("rt.node")
PULSE_ALPN: Final = "rt-pulse/1"
# A node shows at each step where it is calm, every 10 s; one that hangs is listed no more.
SHOWN_S: Final = 14.0
_Line = tuple[str, tuple[Address, ...]]  # a node's name and possible addresses


def process_heartbeat(
    loop: EventLoop, timing: AgreementSettings, files: CertificateFiles
) -> "ProcessHeartbeat":
    """Return the pulse of a node's process: as often as a leader's heartbeat of a busy stream."""
    contexts = Contexts(files, lambda *paths: offering(client_context(*paths), PULSE_ALPN))
    return ProcessHeartbeat(
        loop, contexts.current, beat_s=timing.heartbeat_s, lost_s=timing.election_s
    )


class HeardHeartbeats:
    """HeardHeartbeats: what another process sent on one connection.

    Threads: the loop writes; any thread may read `streams`, which is replaced whole, and `at_s`.
    """

    def __init__(self, sender: str) -> None:
        self.sender = sender
        self.last = b""  # beat
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


class HeartbeatLine(PeerOut):
    """Beats to one process. The connections of its streams say in the log why it is not reached."""

    def _note_connected(self) -> None:
        pass

    def _note(self, problem: str) -> None:
        self.problem = problem


class ProcessHeartbeat:
    """ProcessHeartbeat: exchanges with other processes, several times a second, which streams rest.

    While nothing rests, nothing is sent. A stream here is woken when another process is silent for
    `lost_s`, disconnects, or no longer lists the stream.

    Threads:
        _lock: guards the next four; held for an update only.
        _streams, _shown, _places, _lines: any thread, with the lock held.
        _heard: replaced whole, by the loop; any thread may read it.
        _told, _beat_told, _is_over: what was last said and how it is laid out, and whether it is
            over; the loop's own.
        loop, _context, _timing: set once.
    """

    def __init__(
        self,
        loop: EventLoop,
        context: Callable[[], ssl.SSLContext],
        *,
        beat_s: float,
        lost_s: float,
    ) -> None:
        """Prepare; nothing is sent before `start`.

        Args:
            loop: beats, and hears.
            context: returns the client context for the next connection, which offers `PULSE_ALPN`.
            beat_s: time between two heartbeats.
            lost_s: after so long a silence, a process may be dead.
        """
        self.loop = loop
        self._context, self._timing = context, (beat_s, lost_s)
        self._lock = threading.Lock()
        self._streams: dict[bytes, JoinedStream] = {}  # by group
        self._shown: dict[bytes, tuple[float, Quiescence]] = {}  # time and place by group
        self._places: dict[bytes, Mapping[str, Sequence[Address]]] = {}  # other members
        self._lines: dict[_Line, HeartbeatLine] = {}
        self._heard: Mapping[PeerIn, HeardHeartbeats] = {}
        self._told: Mapping[bytes, Quiescence] = {}
        self._beat_told = encode_heartbeat({})
        self._is_over = False
        self._about = copy_context()

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
        """Begin to beat."""
        self.loop.mark_last(self)

    def stop(self) -> None:
        """Beat and hear no more."""
        self.loop.call(self._stop)

    def _stop(self) -> None:
        self._is_over = True
        self.loop.forget(self)
        with self._lock:
            lines, self._lines = self._lines, {}
        for line in lines.values():
            line.retire()
        for reading in self._heard:
            reading.end()

    def serve(
        self, sock: ssl.SSLSocket, identity: PeerIdentity
    ) -> Callable[[Callable[[], None]], None]:
        """Return what hears the beats of another process in the loop, once it is called.

        Raises:
            PeerError: it is not a node.
        """
        if not identity.is_node:
            raise PeerError(f"{identity.name!r} is not a node, and has no pulse")
        return PeerIn(self, sock, identity, BEAT_BYTES_MAX).keep

    def joined(self, reading: PeerIn) -> bool:
        """Hear a process from now on."""
        if not self._is_over:
            self._heard = {**self._heard, reading: HeardHeartbeats(reading.peer.name)}
        return not self._is_over

    def take(self, reading: PeerIn, reader: MessageReader) -> None:
        """Hear what a process says; `PeerError` if it broke the protocol."""
        heard = self._heard[reading]
        for beat in reader.take():
            if beat == heard.last:  # the usual case
                heard.at_s = time.monotonic()
            else:
                self._take(heard, decode_heartbeat(beat))
            heard.last = beat

    def lost(self, reading: PeerIn) -> None:
        """A process has hung up."""
        if (heard := self._heard.get(reading)) is not None:
            self._heard = {each: of for each, of in self._heard.items() if each is not reading}
            self._take(heard, {})

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
                line = HeartbeatLine(self.loop, f"{name} (pulse)", dialer, self._about)
                self._lines[name, at] = line
                line.nudge()
        for line in gone:
            self.loop.post(line.retire)

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
            for each in self._heard.values()
            if each.at_s > since_s and group in each.streams and each.sender in members
        }

    def ready(self) -> None:
        """Send a heartbeat, and look for processes that are silent."""
        now_s = time.monotonic()
        self.loop.deadlines.set(self, now_s + self._timing[0])
        self._beat(now_s)

    def failed(self, error: Exception) -> bool:
        """End the streams: a follower at rest would not miss a leader that is silent."""
        _log.error("internal error in the pulse", exc_info=error)
        self.loop.forget(self)
        with self._lock:
            streams = [*self._streams.values()]
        for each in streams:
            each.fail(error)
        return True

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
        for each in self._heard.values():
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
