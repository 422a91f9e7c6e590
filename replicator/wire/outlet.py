"""Outlet: the sending half of a TLS connection, which may or may not wait for the peer."""

import select
import ssl

from rt.errors import PeerError
from rt.net.tls_errors import describe_tls_error


class Outlet:
    """Sends on a non-blocking socket; one thread at a time uses it."""

    __slots__ = ("_left", "_sock", "_writable")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._left = b""  # of what was posted: the socket had no room for it
        self._writable = select.poll()
        self._writable.register(sock.fileno(), select.POLLOUT)

    @property
    def has_left(self) -> bool:
        """Whether something that was posted is still to be sent."""
        return bool(self._left)

    def can_send(self) -> bool:
        """Whether something short can be sent without waiting for the peer."""
        return not self._left and bool(self._writable.poll(0))

    def send(self, data: bytes | memoryview, patience_s: float) -> None:
        """Send all that was posted, and all of `data`, to a peer that may pause this long.

        Raises:
            PeerError: the peer reads nothing, or the connection is broken.
        """
        left, self._left = self._left, b""
        rest = memoryview(left + bytes(data) if left else data)
        while rest:
            count = self._sent(rest)
            rest = rest[count:]
            if not count and not self._writable.poll(patience_s * 1000):
                raise PeerError(f"it read nothing for {patience_s:g} s")

    def post(self, data: bytes | memoryview) -> None:
        """Send what the socket takes at once; the rest goes before whatever is sent next.

        Raises:
            PeerError: the connection is broken.
        """
        if self._left:
            self._left += data
            return
        count = self._sent(data)
        if count < len(data):
            self._left = bytes(data[count:])  # TLS demands the same bytes again

    def _sent(self, data: bytes | memoryview) -> int:
        """Send as much as the socket takes; return how much that was."""
        try:
            return self._sock.send(data)
        except ssl.SSLWantWriteError:
            return 0
        except OSError as error:
            raise broken(error) from error


def broken(error: OSError) -> PeerError:
    """Return what a failure of the socket means."""
    return PeerError(f"the connection broke: {describe_tls_error(error)}")
