"""Link: one TLS connection that carries messages, with its deadlines."""

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from replicator.wire.codec import encode
from replicator.wire.decoder import Decoder
from replicator.wire.large_messages import HeldMemory
from replicator.wire.messages import CONNECTION, Heartbeat, Message, Refusal
from replicator.wire.outlet import Outlet, broken
from rt import errors
from rt.amounts import duration_text
from rt.errors import PeerError
from rt.limits import KIB, MIB
from rt.log.notify.watch import Wake
from rt.text import printable

HEARTBEAT_S: Final = 5.0
DEAD_S: Final = 15.0  # three heartbeats were missed
GREETING_S: Final = 10.0
# A message must arrive at this rate; otherwise a peer that sends a byte now and then could hold
# memory for ever. A line of 256 kbit/s keeps up.
MESSAGE_BYTES_PER_S: Final = 32 * KIB
# Bytes received in one turn: few enough for frequent acknowledgements, enough for cheap turns.
_TURN_BYTES: Final = 2 * MIB

# 2 MiB of heartbeats would hold the interpreter for half a second, so messages are limited too.
_TURN_MESSAGES: Final = 1000

_OVERTAKEN_IS: Final = 8  # skipping so many costs less than decoding one

_RECORD_BYTES: Final = 16 * KIB  # TLS returns no more at once

_REST_S: Final = 1.0  # without a byte, after which the memory of large messages is given back
_LINGER_S: Final = 1.0  # a peer that wants to know why reads it in a round trip
_LINGER_READ_BYTES: Final = 64 * 1024

_HEARTBEAT: Final = encode(Heartbeat())
_MessageType = TypeVar("_MessageType", bound=Message)


class Patience(NamedTuple):
    """Patience: a link's heartbeat interval, and how long it waits for its peer, in seconds."""

    heartbeat_s: float = HEARTBEAT_S
    dead_s: float = DEAD_S
    greeting_s: float = GREETING_S


PATIENCE: Final = Patience()


@dataclass(slots=True)
class Passed:
    """Passed: traffic on a connection, as bytes in both directions and messages received."""

    bytes: int = 0
    messages: int = 0
    charged: int = 0  # extra messages charged for the last one returned, and not yet seen


class HungUp(PeerError):  # noqa: N818 - an ending, not always an error
    """The peer ended the connection, as it may at any time."""


class Link:
    """Link: a connection whose `send` and `receive` never wait for the peer.

    Only `expect` and `refuse` wait, for a short time. One thread at a time uses a link.

    Attributes:
        has_more: whether there may be something to receive. An event loop sets it when it finds the
            socket readable; polling the socket would not report what TLS has read already.
        has_left: whether something to send is still queued, because the socket has no room.
        beat_by_s: when `beat` must be called again at the latest, by the link's clock.
        passed: the traffic since `take_passed`.
    """

    def __init__(
        self,
        sock: ssl.SSLSocket,
        name: str,
        large: HeldMemory | None = None,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over a connection after its handshake.

        Args:
            sock: a socket from `rt.net.tls.connect` or `accept`.
            name: the peer's name, for error messages.
            large: the budget for large messages; unlimited if not given.
            patience: its deadlines; `PATIENCE` if not given.
            clock: a monotonic clock, in seconds.
        """
        self._patience, self._clock = patience or PATIENCE, clock
        self.name = name
        self.memory = large
        self.version = 0  # protocol version; like `software`, known once greeted
        self.software = ""
        self._sock = sock
        self._outlet = Outlet(sock, self._clock)
        self._decoder = Decoder(greeting=True, large=large)
        self._began_s: float | None = None  # when the arriving message began
        self.passed = Passed()
        self.has_more, self.has_left = True, False
        self._heard_s = self._spoke_s = self._clock()
        self.beat_by_s = self._heard_s + min(self._patience.heartbeat_s, self._patience.dead_s)
        self._poller = select.poll()
        self._poller.register(sock.fileno(), select.POLLIN)
        sock.settimeout(0)

    def take_passed(self) -> Passed:
        """Return the traffic since the last call."""
        passed, self.passed = self.passed, Passed()
        return passed

    def take_no_frames(self) -> None:
        """Refuse messages that only a source sends: the peer is a sink."""
        self._decoder.from_sink = True

    def charge(self, messages: int) -> None:
        """Count this many more messages, because the last one costs so much more to handle."""
        self.passed.messages += messages
        self.passed.charged += messages

    def send(self, data: bytes | memoryview) -> None:
        """Send what the socket accepts, and queue the rest.

        Raises:
            PeerError: the peer has accepted nothing for `DEAD_S`, or the connection is broken.
        """
        self.has_left = self._outlet.send(data, self._patience.dead_s)
        self.passed.bytes += len(data)
        self._spoke_s = self._clock()

    def post(self, data: bytes | memoryview) -> None:
        """Send like `send`, without checking whether the peer has stopped reading.

        If this leaves bytes in the queue (`has_left`), the caller must wake the event loop. The
        loop calls `beat`, which sends the rest and makes the check.

        Raises:
            PeerError: the connection is broken.
        """
        self.has_left = self._outlet.post(data)
        self.passed.bytes += len(data)
        self._spoke_s = self._clock()

    def receive(self, most: int = _TURN_MESSAGES, *, last_acks: bool = False) -> Iterator[Message]:
        """Yield what has arrived; the payload of `Data` is valid until the next message.

        Args:
            most: how many messages to yield, counting charged ones; the next call yields the rest.
            last_acks: whether to skip acknowledgements that a later one replaces.

        Raises:
            PeerError: what arrived is not a message, the peer hung up, or the connection is broken.
            Refused: a large message came while too many others are arriving.
        """
        decoder, left, messages = self._decoder, _TURN_BYTES, 0
        while True:
            while (message := decoder.next()) is not None:
                self._began_s = None
                overtaken = decoder.skip_overtaken() if last_acks else 0
                self.passed.messages += 1 + overtaken
                messages += 1 + overtaken // _OVERTAKEN_IS
                yield message
                if charged := self.passed.charged:
                    self.passed.charged = 0
                    messages += charged
                if messages >= most:
                    self.has_more = True  # the decoder may hold further ones
                    return
            if left <= 0 or not self.has_more:
                return
            space = decoder.space()
            try:
                # `recv_into` needs four more calls; with a buffer, `read` returns a number
                count: int = self._sock.read(len(space), space)  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                self.has_more = False
                return
            except OSError as error:
                raise broken(error) from error
            if count == 0:
                raise HungUp("the other side hung up")
            # A read returns one record, such as one small message. Further records that have
            # arrived are read in this turn, too, so that one sync and one answer serve all.
            if not (count == _RECORD_BYTES or self._sock.pending() or self._poller.poll(0)):
                self.has_more = False
            left -= count
            self.passed.bytes += count
            decoder.end += count
            self._heard_s = self._clock()
            self._began_s = self._began_s or self._heard_s

    def fileno(self) -> int:
        """The socket's descriptor, for an event loop that polls it."""
        return self._sock.fileno()

    def beat(self) -> None:
        """Send queued bytes and a heartbeat if one is due, and enforce the peer's deadlines.

        A peer does not count as silent while bytes from it wait to be read, since this side reads
        nothing while it sends for a long time over a slow line.

        Raises:
            PeerError: the peer has been silent for `DEAD_S`, or is too slow with a message.
        """
        now, dead_s = self._clock(), self._patience.dead_s
        if now - self._heard_s > dead_s and not self._has_come():
            raise PeerError(f"nothing was received from it for {duration_text(dead_s)}")
        if self._began_s is not None and (needed := self._decoder.needed):
            limit_s = dead_s + needed / MESSAGE_BYTES_PER_S
            if now - self._began_s > limit_s and not self._has_come():
                raise PeerError(
                    f"a message of {needed} bytes did not arrive within {duration_text(limit_s)}"
                )
        if now - self._heard_s > _REST_S:
            self._decoder.rest()
        if self.has_left:
            self.send(b"")
        if now - self._spoke_s >= self._patience.heartbeat_s:
            self.send(_HEARTBEAT)
        self.beat_by_s = min(self._spoke_s + self._patience.heartbeat_s, self._heard_s + dead_s)

    def _has_come(self, timeout_s: float = 0.0) -> bool:
        return bool(self._poller.poll(timeout_s * 1000))

    def expect(self, kind: type[_MessageType]) -> _MessageType:
        """Wait for the next message, which must be of this kind.

        Raises:
            PeerError: a message of another kind came, or none came in time.
            Refused: the peer refuses the connection.
        """
        deadline = self._clock() + self._patience.greeting_s
        while (left := deadline - self._clock()) > 0:
            for message in self.receive():
                if isinstance(message, Refusal):
                    raise refusal_of(message)
                if not isinstance(message, kind):
                    found = type(message).__name__
                    raise PeerError(f"{kind.__name__} was expected, not {found}")
                self._decoder.greeting = False
                return message
            self.has_more = self._has_come(left)  # no heartbeat is due before the greeting
        raise PeerError(
            f"no {kind.__name__} came within {duration_text(self._patience.greeting_s)}"
        )

    def refuse(self, code: str, words: str) -> None:
        """Send the reason why the connection ends, if the peer still listens."""
        try:
            self.send(encode(Refusal(CONNECTION, code, words)))
            self._linger()
        except (PeerError, OSError):
            return  # the peer has gone; this side's log has the reason

    def close(self) -> None:
        """Release the socket and the memory."""
        self._decoder.close()
        self._sock.close()

    def _linger(self) -> None:
        """Stop writing and let the peer read the reason, which closing at once might discard."""
        self._sock.shutdown(socket.SHUT_WR)
        deadline = self._clock() + _LINGER_S
        while (left := deadline - self._clock()) > 0:
            self._sock.settimeout(left)
            if not self._sock.recv(_LINGER_READ_BYTES):
                return


def refusal_of(message: Refusal) -> errors.Refused:
    """Return a peer's refusal with its text escaped, so that the text cannot forge log lines."""
    return errors.Refused(
        printable(message.code), f"the other side says: {printable(message.words)}"
    )


def shut(sock: socket.socket) -> None:
    """Interrupt another thread's use of a socket, without touching its TLS object."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def pause(wake: Wake, seconds: float) -> None:
    """Wait for this many seconds, or until the wake is set."""
    poller = select.poll()
    poller.register(wake.fileno(), select.POLLIN)
    if poller.poll(seconds * 1000):
        wake.clear()
