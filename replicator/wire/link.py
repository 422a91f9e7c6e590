"""Link: one TLS connection that carries messages, with its deadlines."""

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from replicator.wire.codec import encode
from replicator.wire.decoder import Decoder
from replicator.wire.large_messages import HeldMemory
from replicator.wire.messages import CONNECTION, Heartbeat, Message, Refusal
from replicator.wire.outlet import Outlet, broken
from rt import errors
from rt.errors import PeerError
from rt.limits import KIB, MIB
from rt.log.notify.watch import Wake

HEARTBEAT_S: Final = 5.0
DEAD_S: Final = 15.0  # three heartbeats were missed
GREETING_S: Final = 10.0
# A message that has begun has to arrive at this rate, or a byte now and then would hold its memory
# for ever. A line of 256 kbit/s keeps up.
MESSAGE_BYTES_PER_S: Final = 32 * KIB
# Received in one turn: often enough between acknowledgements, far enough apart to be cheap.
_TURN_BYTES: Final = 2 * MIB

# So is a turn of short messages: 2 MiB of heartbeats would keep the interpreter for half a second.
_TURN_MESSAGES: Final = 1000

_OVERTAKEN_IS: Final = 8  # so many that are passed over cost less than one that is decoded

_RECORD_BYTES: Final = 16 * KIB  # TLS returns no more at once

# Less is accounted for with what follows it, since an account costs six calls of Python. Of the
# smallest budget of bytes, 1 MiB a second, this is 16 ms.
_METERED_BYTES: Final = 16 * KIB
_METERED_MESSAGES: Final = 8

_REST_S: Final = 1.0  # without a byte, after which the memory of large messages is given back
_HOLD_S: Final = 0.5  # between two looks whether a heartbeat of a slowed connection is due
_LINGER_S: Final = 1.0  # a peer that wants to know why reads it in a round trip
_LINGER_READ_BYTES: Final = 64 * 1024

_HEARTBEAT: Final = encode(Heartbeat())
_MessageType = TypeVar("_MessageType", bound=Message)


@dataclass(slots=True)
class Passed:
    """What has passed on a connection: bytes in both directions, and messages received."""

    bytes: int = 0
    messages: int = 0
    charged: int = 0  # of these messages, since the one that was given out last

    def take_charged(self) -> int:
        """Return how many were charged for the message that was given out last."""
        charged, self.charged = self.charged, 0
        return charged


class HungUp(PeerError):  # noqa: N818 - an ending, not always an error
    """The peer ended the connection, which it may at any time."""


class Link:
    """Reads without blocking, so that a peer in the middle of a message holds nothing up.

    Writes block for up to `DEAD_S`. A side that is about to write much has to read first, or both
    could wait for each other. One thread at a time uses a link; `replicator.push.connection`,
    `replicator.serve.pull_connection` and `replicator.sink.connection` take turns.
    """

    def __init__(
        self,
        sock: ssl.SSLSocket,
        wake: Wake | None,
        name: str,
        large: HeldMemory | None = None,
        outlet: Outlet | None = None,
    ) -> None:
        """Take over a connection after its handshake.

        Args:
            sock: from `rt.net.tls.connect` or `accept`.
            wake: ends a wait; None where an event loop waits.
            name: of the peer, for messages.
            large: the memory that its messages may take; unlimited if not given.
            outlet: sends on it; one that waits for the peer if not given.
        """
        self.name = name
        self.memory = large
        self.version = 0  # of the protocol, and what the other side runs: known once greeted
        self.software = ""
        self._sock = sock
        self._outlet = outlet or Outlet(sock)
        self._wake = wake
        self._decoder = Decoder(greeting=True, large=large)
        self._began_s: float | None = None  # when the message that is arriving began to
        self._passed = Passed()
        self._more = True  # there may be bytes that were not received yet
        self._is_behind = True  # more arrived while the last was handled: not a lone message
        self._heard_s = self._spoke_s = time.monotonic()
        self._poller = select.poll()
        self._poller.register(sock.fileno(), select.POLLIN)
        if wake is not None:
            self._poller.register(wake.fileno(), select.POLLIN)
        sock.settimeout(0)

    @property
    def is_metered(self) -> bool:
        """Whether enough has passed to be accounted for; less is, with what follows it."""
        passed = self._passed
        return passed.bytes >= _METERED_BYTES or passed.messages >= _METERED_MESSAGES

    def take_passed(self) -> Passed:
        """Return what has passed since this was asked last."""
        passed, self._passed = self._passed, Passed()
        return passed

    def take_no_frames(self) -> None:
        """Refuse what only a source sends: the peer is a sink."""
        self._decoder.from_sink = True

    def charge(self, messages: int) -> None:
        """Count the message that was given out last as so many more; it costs as much to take."""
        self._passed.messages += messages
        self._passed.charged += messages

    def listen(self, fd: int) -> None:
        """Let this descriptor end a wait too."""
        if fd >= 0:
            self._poller.register(fd, select.POLLIN)

    def send(self, data: bytes | memoryview) -> None:
        """Send all of `data`.

        Raises:
            PeerError: the peer reads nothing, or the connection is broken.
        """
        self._outlet.send(data, DEAD_S)
        self._passed.bytes += len(data)
        self._spoke_s = time.monotonic()

    def post(self, data: bytes | memoryview) -> None:
        """Send what the socket takes at once; the rest goes before whatever is sent next.

        For a thread that must not wait for the peer. `beat` sends the rest at the latest, so the
        connection's own thread has to be woken if `has_left`.

        Raises:
            PeerError: the connection is broken.
        """
        self._outlet.post(data)
        self._passed.bytes += len(data)
        self._spoke_s = time.monotonic()

    @property
    def has_left(self) -> bool:
        """Whether something that was posted is still to be sent."""
        return self._outlet.has_left

    def can_send(self) -> bool:
        """Whether something short can be sent without waiting for the peer."""
        return self._outlet.can_send()

    def receive(self, most: int = _TURN_MESSAGES, *, last_acks: bool = False) -> Iterator[Message]:
        """Yield what has arrived; the payload of `Data` is valid until the next is asked for.

        Args:
            most: how many messages to yield at once, with what is charged for them; what is left
                ends the next wait.
            last_acks: whether to pass over acknowledgements that were overtaken by another.

        Raises:
            PeerError: it is not a message, the peer hung up, or the connection is broken.
            Refused: it is a large message, and too many others are on their way.
        """
        decoder, left, messages = self._decoder, _TURN_BYTES, 0
        while True:
            while (message := decoder.next()) is not None:
                self._began_s = None
                overtaken = decoder.skip_overtaken() if last_acks else 0
                self._passed.messages += 1 + overtaken
                messages += 1 + overtaken // _OVERTAKEN_IS
                yield message
                messages += self._passed.take_charged()
                if messages >= most:
                    self._more = True  # the decoder may hold further ones
                    return
            if left <= 0 or not self._more:
                return
            count = self._receive_into(decoder.space())
            if not count or not (self._is_behind or count == _RECORD_BYTES or self._sock.pending()):
                self._more = False  # if there is more the next wait is over at once
            if count:
                left -= count
                self._passed.bytes += count
                decoder.took(count)
                self._heard_s = time.monotonic()
                self._began_s = self._began_s or self._heard_s

    def _receive_into(self, space: memoryview) -> int:
        try:
            # `recv_into` does this by four more calls; given a buffer, it returns a number
            count: int = self._sock.read(len(space), space)  # type: ignore[assignment]
        except ssl.SSLWantReadError:
            return 0
        except OSError as error:
            raise broken(error) from error
        if count == 0:
            raise HungUp("the other side hung up")
        return count

    def fileno(self) -> int:
        """The socket, for an event loop that polls it instead of calling `wait`."""
        return self._sock.fileno()

    def arrived(self) -> None:
        """Let the next `receive` look at the socket; for an event loop, which found it readable."""
        self._more, self._is_behind = True, False

    @property
    def has_more(self) -> bool:
        """Whether `receive` left something that ends no wait for the socket."""
        return self._more

    @property
    def pause_s(self) -> float:
        """How long until `beat` has to be called."""
        return min(self._spoke_s + HEARTBEAT_S, self._heard_s + DEAD_S) - time.monotonic()

    def wait(self, timeout_s: float) -> set[int]:
        """Wait until something has arrived, the wake was set, or the time is over.

        Returns:
            The descriptors that ended the wait, for callers that `listen` to others.
        """
        return self._wait(min(timeout_s, self.pause_s))

    def _wait(self, timeout_s: float) -> set[int]:
        timeout_s = 0.0 if self._more else max(0.0, timeout_s)
        ready = dict(self._poller.poll(0))
        self._is_behind = self._more or self._sock.fileno() in ready
        if not ready and timeout_s:
            ready = dict(self._poller.poll(timeout_s * 1000 + 0.999))
        self._more = self._more or self._sock.fileno() in ready
        if self._wake is not None and self._wake.fileno() in ready:
            self._wake.clear()
        return set(ready)

    def beat(self) -> None:
        """Send a heartbeat if one is due, and hold the peer to its deadlines.

        A side that was sending for long over a slow line has not received meanwhile, so what has
        arrived is looked at first.

        Raises:
            PeerError: the peer has been silent for `DEAD_S`, or is too slow with a message.
        """
        now = time.monotonic()
        if now - self._heard_s > DEAD_S and not self._has_come():
            raise PeerError(f"nothing was received from it for {DEAD_S:g} s")
        if self._began_s is not None and (needed := self._decoder.needed):
            limit_s = DEAD_S + needed / MESSAGE_BYTES_PER_S
            if now - self._began_s > limit_s and not self._has_come():
                raise PeerError(
                    f"a message of {needed} bytes did not arrive within {limit_s:.0f} s"
                )
        if now - self._heard_s > _REST_S:
            self._decoder.rest()
        if self._outlet.has_left:
            self.send(b"")
        if now - self._spoke_s >= HEARTBEAT_S:
            self.send(_HEARTBEAT)

    def _has_come(self) -> bool:
        return self._sock.fileno() in dict(self._poller.poll(0))

    def expect(self, kind: type[_MessageType]) -> _MessageType:
        """Wait for the next message, which has to be of this kind.

        Raises:
            PeerError: it is another one, or none in time.
            Refusal: the peer refuses the connection.
        """
        deadline = time.monotonic() + GREETING_S
        while (left := deadline - time.monotonic()) > 0:
            for message in self.receive():
                if isinstance(message, Refusal):
                    raise refusal_of(message)
                if not isinstance(message, kind):
                    found = type(message).__name__
                    raise PeerError(f"{kind.__name__} was expected, not {found}")
                self._decoder.greeting = False
                return message
            self._wait(left)  # no heartbeat is due before the greeting
        raise PeerError(f"no {kind.__name__} came within {GREETING_S:g} s")

    def refuse(self, code: str, words: str) -> None:
        """Say why the connection ends, if the peer still listens."""
        try:
            self.send(encode(Refusal(CONNECTION, code, words)))
            self._linger()
        except (PeerError, OSError):
            return  # it has gone; our own log says why

    def close(self) -> None:
        """Release the socket and the memory."""
        self._decoder.close()
        self._sock.close()

    def _linger(self) -> None:
        """Stop writing and let the peer read why: closing at once may reset what was sent."""
        self._sock.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _LINGER_S
        while (left := deadline - time.monotonic()) > 0:
            self._sock.settimeout(left)
            if not self._sock.recv(_LINGER_READ_BYTES):
                return


def refusal_of(message: Refusal) -> errors.Refused:
    """Return a peer's refusal; what it says cannot begin a line of a log or move a cursor."""
    return errors.Refused(
        _printable(message.code), f"the other side says: {_printable(message.words)}"
    )


def shut(sock: socket.socket) -> None:
    """End at once what another thread does with a socket; its TLS object is left alone."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def pause(wake: Wake, seconds: float) -> None:
    """Wait until the time is over, or the wake was set."""
    poller = select.poll()
    poller.register(wake.fileno(), select.POLLIN)
    if poller.poll(seconds * 1000):
        wake.clear()


def pauses(seconds: float, is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Sleep for so long, and yield now and then: a heartbeat may be due.

    What the others of an identity spend meanwhile does not make it longer: each connection waits
    for what was spent before its turn, so they come in turn and none wakes up for nothing.
    """
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0 and not is_stopping():
        time.sleep(min(left_s, _HOLD_S))
        yield


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
