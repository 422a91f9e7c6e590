"""Outlet: the sending half of a TLS connection, which never waits for the peer."""

import ssl
import time
from collections import deque
from typing import Final

from rt.errors import PeerError
from rt.limits import KIB, MIB
from rt.net.tls_errors import describe_tls_error

# Passed to TLS at once, and again as a whole if there was no room: 8 records, so that a megabyte
# takes eight calls, and a line of 9 kB/s sends one part within 15 s.
_PART_BYTES: Final = 128 * KIB
# What may be queued for one peer besides its longest message, of up to 32 MiB. A turn of a source
# writes 1 MiB or one message, and none begins while something is queued; a sink answers each
# message of a turn, 1,000 at most, with less than 1 KiB.
QUEUED_BYTES_MAX: Final = 8 * MIB


class OutputQueue:
    """OutputQueue: what one peer has not accepted yet, in parts; bounded."""

    __slots__ = ("_longest", "_parts", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._longest = 0  # of what was put since it was empty
        self._parts: deque[bytes] = deque()

    def put(self, data: bytes | memoryview) -> None:
        """Queue a copy of `data`, whose buffer may be reused.

        Raises:
            PeerError: too much is waiting.
        """
        self._longest = max(len(data), self._longest if self.bytes else 0)
        if self.bytes + len(data) > QUEUED_BYTES_MAX + self._longest:
            raise PeerError(f"it has not read {self.bytes} bytes that wait for it")
        self.bytes += len(data)
        self._parts.extend(
            bytes(data[at : at + _PART_BYTES]) for at in range(0, len(data), _PART_BYTES)
        )

    @property
    def first(self) -> bytes:
        """The part to send next; it stays the same until sent, since TLS demands the same bytes."""
        return self._parts[0]

    def sent(self) -> None:
        """Remove the first part, which was sent."""
        self.bytes -= len(self._parts.popleft())


class Outlet:
    """Outlet: never waits; what the socket does not accept is queued for a later call.

    Its owner calls `send(b"")` when the socket has room again.
    """

    __slots__ = ("_moved_s", "_queue", "_sock")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._queue = OutputQueue()
        self._moved_s = 0.0  # when the peer last accepted something, or the queue began

    @property
    def has_left(self) -> bool:
        """Whether anything is queued."""
        return self._queue.bytes > 0

    def can_send(self) -> bool:
        """Whether nothing is queued."""
        return not self._queue.bytes

    def send(self, data: bytes | memoryview, patience_s: float) -> None:
        """Send what the socket accepts of the queue and of `data`; queue the rest.

        Raises:
            PeerError: the peer has accepted nothing for `patience_s`, or the connection is broken.
        """
        if self._queue.bytes:
            self._flush()
            if self._queue.bytes and time.monotonic() - self._moved_s > patience_s:
                raise PeerError(f"it read nothing for {patience_s:g} s")
        self.post(data)

    def post(self, data: bytes | memoryview) -> None:
        """Send what the socket accepts at once, and queue the rest; errors as for `send`."""
        if not self._queue.bytes:
            sent = self._sent_of(data)
            if sent == len(data):
                return
            data = data[sent:]
            self._moved_s = time.monotonic()
        self._queue.put(data)

    def _sent_of(self, data: bytes | memoryview) -> int:
        """Send whole parts while the socket accepts them; return the number of bytes."""
        if len(data) <= _PART_BYTES:
            return self._sent(data) if data else 0
        at, view = 0, memoryview(data)
        while at < len(view) and (count := self._sent(view[at : at + _PART_BYTES])):
            at += count
        return at

    def _flush(self) -> None:
        queue = self._queue
        while queue.bytes and self._sent(queue.first):
            queue.sent()
            self._moved_s = time.monotonic()

    def _sent(self, data: bytes | memoryview) -> int:
        """Send as much as the socket accepts; return the number of bytes."""
        try:
            return self._sock.send(data)
        except ssl.SSLWantWriteError:
            return 0
        except OSError as error:
            raise broken(error) from error


def broken(error: OSError) -> PeerError:
    """Return a socket failure as a `PeerError`."""
    return PeerError(f"the connection broke: {describe_tls_error(error)}")
