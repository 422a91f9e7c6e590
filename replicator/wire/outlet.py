"""Outlet: the sending half of a TLS connection, which never waits for the peer."""

import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from rt.amounts import duration_text
from rt.errors import PeerError
from rt.limits import KIB, MIB
from rt.net.tls_errors import describe_tls_error

# Bytes passed to TLS in one call, and passed again as a whole if there was no room. With 8 records,
# a megabyte takes eight calls, and a line of 9 kB/s sends one part within 15 s.
_PART_BYTES: Final = 128 * KIB
# Bytes that may be queued for one peer in addition to its longest message, which may have 32 MiB.
# A turn of a source writes 1 MiB or one message, and no turn begins while something is queued. A
# sink answers each message of a turn, 1,000 at most, with less than 1 KiB.
QUEUED_BYTES_MAX: Final = 8 * MIB


class Outlet:
    """Outlet: sends without waiting; queues what the socket does not accept, up to a limit.

    The owner calls `send(b"")` when the socket has room again.
    """

    __slots__ = ("_clock", "_longest", "_moved_s", "_parts", "_queued_bytes", "_sock")

    def __init__(self, sock: ssl.SSLSocket, clock: Callable[[], float] = time.monotonic) -> None:
        self._sock, self._clock = sock, clock
        # Each is sent whole, from the same object: TLS demands the same bytes again.
        self._parts: deque[bytes] = deque()
        self._queued_bytes = 0
        self._longest = 0  # of what was queued since nothing was
        self._moved_s = 0.0  # when the peer last accepted something, or the queue began

    @property
    def has_left(self) -> bool:
        """Whether anything is queued."""
        return bool(self._parts)

    def send(self, data: bytes | memoryview, patience_s: float) -> bool:
        """Send what the socket accepts of the queue and of `data`; queue the rest.

        Returns:
            Whether anything is queued now.

        Raises:
            PeerError: the peer has accepted nothing for `patience_s`, the queue is over its limit,
                or the connection is broken.
        """
        while self._parts and self._sent(self._parts[0]):
            self._queued_bytes -= len(self._parts.popleft())
            self._moved_s = self._clock()
        if self._parts and self._clock() - self._moved_s > patience_s:
            raise PeerError(f"it read nothing for {duration_text(patience_s)}")
        return self.post(data)

    def post(self, data: bytes | memoryview) -> bool:
        """Send what the socket accepts and queue a copy of the rest; otherwise like `send`."""
        if not self._parts:
            sent = self._sent(data)
            if sent == len(data):
                return False
            data = data[sent:]
            self._moved_s = self._clock()
        self._longest = max(len(data), self._longest if self._parts else 0)
        if self._queued_bytes + len(data) > QUEUED_BYTES_MAX + self._longest:
            raise PeerError(f"it has not read {self._queued_bytes} bytes that wait for it")
        self._queued_bytes += len(data)
        self._parts.extend(
            bytes(data[at : at + _PART_BYTES]) for at in range(0, len(data), _PART_BYTES)
        )
        return bool(self._parts)

    def _sent(self, data: bytes | memoryview) -> int:
        """Send whole parts while the socket accepts them; return the number of bytes."""
        at, length = 0, len(data)
        view = data if length <= _PART_BYTES else memoryview(data)
        try:
            while at < length:
                at += self._sock.send(view[at : at + _PART_BYTES])
        except ssl.SSLWantWriteError:
            pass  # the rest waits for room
        except OSError as error:
            raise broken(error) from error
        return at


def broken(error: OSError) -> PeerError:
    """Return a socket failure as a `PeerError`."""
    return PeerError(f"the connection broke: {describe_tls_error(error)}")
