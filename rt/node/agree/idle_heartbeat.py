"""Idle heartbeats: one heartbeat between two processes for all streams at rest in both."""

import logging
import ssl
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Final

from rt.errors import PeerError
from rt.net.addresses import Address
from rt.net.authority.identity import PeerIdentity
from rt.net.loop.event_loop import EventLoop
from rt.node.agree.heartbeat_codec import (
    BEAT_BYTES_MAX,
    decode_heartbeat,
    encode_heartbeat,
    group_of,
)
from sequencer.peers.connections import PeerIn, PeerOut
from sequencer.peers.dialling import PeerDialer
from sequencer.peers.message_reader import MessageReader
from sequencer.raft.consensus import Quiescence

_log: Final = logging.getLogger("rt.node")
IDLE_HEARTBEAT_ALPN: Final = "rt-pulse/1"
# A node at rest repeats its idle position every 10 s. If it has not done so for this long, the node
# hangs, so the process stops announcing that position.
SHOWN_S: Final = 14.0
_Line = tuple[str, tuple[Address, ...]]  # a node's name and possible addresses


class HeardHeartbeats:
    """HeardHeartbeats: the heartbeats that another process has sent on one connection.

    Threads: the loop writes; any thread may read `streams`, which is replaced whole, and `at_s`.
    """

    def __init__(self, sender: str, at_s: float) -> None:
        self.sender, self.at_s = sender, at_s
        self.last = b""  # the bytes of the last heartbeat
        self.streams: Mapping[bytes, Quiescence] = {}
        self.is_lost = False  # silent for too long; its streams were woken


class StreamHeartbeat:
    """StreamHeartbeat: a stream's part of `ProcessHeartbeat`.

    Threads: any thread may call any method. The methods replace the values of `members` and `rests`
    whole, and the loop reads them.

    Attributes:
        group: the digest that identifies the stream's cluster.
        wake: called by the loop when another member may no longer be idle.
        fail: called by the loop with the error that has stopped all heartbeats.
        members: the addresses of the cluster's other members, by name.
        rests: when this node last said that it is idle, in seconds of a monotonic clock, and at
            which position; None while it is not idle.
    """

    def __init__(
        self,
        process: "ProcessHeartbeat",
        group: bytes,
        wake: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._process, self.group, self.wake, self.fail = process, group, wake, fail
        self.members: Mapping[str, Sequence[Address]] = {}
        self.rests: tuple[float, Quiescence] | None = None

    def show(self, quiescence: Quiescence | None) -> None:
        """Announce this node's idle position in the next heartbeats; None withdraws it."""
        self.rests = None if quiescence is None else (self._process.clock(), quiescence)

    def heard(self) -> dict[str, Quiescence]:
        """Return the idle position that each other member announced recently."""
        return self._process.heard(self.group, self.members)

    def follow(self, members: Mapping[str, Sequence[Address]]) -> None:
        """Connect to these members; all streams share one connection to each other process."""
        self.members = members
        self._process.loop.post(self._process.dial)

    def leave(self) -> None:
        """Remove this stream, because its node ends; the node's last step may still be running."""
        self._process.loop.post(partial(self._process.forget, self))


class ProcessHeartbeat:
    """ProcessHeartbeat: tells other processes several times a second which streams rest here.

    While no stream rests, nothing is sent. A stream here is woken when another process that listed
    the stream is silent for `lost_s`, disconnects, or no longer lists it at the same position.

    Threads: any thread may call `join`, `start`, `stop`, `serve` and `heard`; only the loop calls
        the other methods, and uses the fields not named here.
        _heard: replaced whole; any thread may read it.
        loop, clock, _context, _timing, _about: set once.
    """

    is_urgent = True

    def __init__(
        self,
        loop: EventLoop,
        context: Callable[[], ssl.SSLContext],
        *,
        beat_s: float,
        lost_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is sent before `start`.

        Args:
            loop: the event loop that sends and receives.
            context: returns the TLS client context for the next connection; the context offers
                `IDLE_HEARTBEAT_ALPN`.
            beat_s: time between two heartbeats.
            lost_s: how long a process may be silent before it counts as lost.
            clock: a monotonic clock, in seconds.
        """
        self.loop, self.clock = loop, clock
        self._context, self._timing = context, (beat_s, lost_s)
        self._streams: dict[bytes, StreamHeartbeat] = {}  # by group
        self._lines: dict[_Line, PeerOut] = {}
        self._heard: Mapping[PeerIn, HeardHeartbeats] = {}
        self._told: Mapping[bytes, Quiescence] = {}  # announced last
        self._beat_told = encode_heartbeat({})
        self._is_over = False
        self._about = copy_context()

    def join(
        self, cluster: str, wake: Callable[[], None], fail: Callable[[Exception], None]
    ) -> StreamHeartbeat:
        """Register a stream; return the object through which it announces that it is idle.

        Args:
            cluster: the name of the stream's cluster, the same on all its nodes.
            wake: as in `StreamHeartbeat`.
            fail: as in `StreamHeartbeat`.
        """
        stream = StreamHeartbeat(self, group_of(cluster), wake, fail)
        self.loop.post(lambda: self._streams.update({stream.group: stream}))
        return stream

    def start(self) -> None:
        """Start sending heartbeats."""
        self.loop.mark_last(self)

    def stop(self) -> None:
        """Stop sending and receiving heartbeats."""
        self.loop.call(self._stop)

    def _stop(self) -> None:
        self._is_over = True
        self.loop.forget(self)
        self._streams.clear()
        self.dial()
        for reading in self._heard:
            reading.end()

    def serve(
        self, sock: ssl.SSLSocket, identity: PeerIdentity
    ) -> Callable[[Callable[[], None]], None]:
        """Accept a process's connection; return the function that lets the loop begin to read it.

        Raises:
            PeerError: the peer is not a node.
        """
        if not identity.is_node:
            raise PeerError(f"{identity.name!r} is not a node, and sends no idle heartbeats")
        return PeerIn(self, sock, identity, BEAT_BYTES_MAX).keep

    def joined(self, reading: PeerIn) -> bool:
        """Start receiving a process's heartbeats on a connection; return False after `stop`."""
        if not self._is_over:
            heard = HeardHeartbeats(reading.peer.name, self.clock())
            self._heard = {**self._heard, reading: heard}
        return not self._is_over

    def receive(self, reading: PeerIn, reader: MessageReader) -> None:
        """Receive bytes from a process; `PeerError` if they break the protocol."""
        heard = self._heard[reading]
        for beat in reader.pop_messages():
            if beat == heard.last:  # the usual case
                heard.at_s = self.clock()
            else:
                self._record(heard, decode_heartbeat(beat))
            heard.last = beat

    def lost(self, reading: PeerIn) -> None:
        """Wake the streams of a process that has closed its connection."""
        if (heard := self._heard.get(reading)) is not None:
            self._heard = {each: of for each, of in self._heard.items() if each is not reading}
            self._record(heard, {})

    def forget(self, stream: StreamHeartbeat) -> None:
        """Remove a stream, and the connections that only it needed."""
        if self._streams.get(stream.group) is stream:
            del self._streams[stream.group]
        self.dial()

    def dial(self) -> None:
        """Connect to the members of all streams, and close the connections to any other nodes."""
        wanted = {(name, tuple(at)) for stream in self._streams.values()
                  for name, at in stream.members.items()}  # fmt: skip
        for gone in self._lines.keys() - wanted:
            self._lines.pop(gone).retire()
        for name, at in wanted - self._lines.keys():
            dialer = PeerDialer(name, at, self._context)
            line = self._lines[name, at] = PeerOut(
                self.loop, f"{name} (idle heartbeat)", dialer, self._about, is_quiet=True
            )
            line.nudge()

    def heard(self, group: bytes, members: Container[str]) -> dict[str, Quiescence]:
        """Return the idle positions that these members announced recently for a stream, by name."""
        since_s = self.clock() - self._timing[1]
        return {
            each.sender: each.streams[group]
            for each in self._heard.values()
            if each.at_s > since_s and group in each.streams and each.sender in members
        }

    def ready(self) -> None:
        """Send a heartbeat, and wake the streams of processes that have fallen silent."""
        now_s = self.clock()
        self.loop.deadlines.set(self, self.loop.clock() + self._timing[0])
        self._beat(now_s)
        for each in self._heard.values():
            is_lost = bool(each.streams) and now_s - each.at_s > self._timing[1]
            if is_lost and not each.is_lost:
                _log.info("node %s sends no idle heartbeats any more", each.sender)
                self._wake(each.sender, each.streams)
            each.is_lost = is_lost

    def failed(self, error: Exception) -> bool:
        """Stop the streams: without heartbeats, an idle follower would not notice a dead leader.

        Return True: the process itself goes on.
        """
        _log.error("internal error in the idle heartbeats", exc_info=error)
        self.loop.forget(self)
        for each in [*self._streams.values()]:
            each.fail(error)
        return True

    def _beat(self, now_s: float) -> None:
        shown = {
            group: stream.rests[1]
            for group, stream in self._streams.items()
            if stream.rests is not None and now_s - stream.rests[0] < SHOWN_S
        }
        if shown or self._told:
            if shown != self._told:  # seldom
                self._told, self._beat_told = shown, encode_heartbeat(shown)
            for line in self._lines.values():
                if line.connected:  # a queued heartbeat would be stale
                    line.put(self._beat_told)

    def _record(self, heard: HeardHeartbeats, streams: Mapping[bytes, Quiescence]) -> None:
        """Record a heartbeat; wake each stream that the last one listed and this one does not.

        A stream that is listed at another position is woken too.
        """
        before, heard.streams, heard.at_s = heard.streams, streams, self.clock()
        ended = [group for group, was in before.items() if streams.get(group) != was]
        self._wake(heard.sender, ended)

    def _wake(self, sender: str, groups: Iterable[bytes]) -> None:
        """Wake each of these streams that has the sender as a member."""
        for group in groups:
            stream = self._streams.get(group)
            if stream is not None and sender in stream.members:
                stream.wake()
