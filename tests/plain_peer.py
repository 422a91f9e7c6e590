"""A connection of another node, without TLS."""

import socket
import ssl

from sequencer.peers.versions import alpn_of


class Accepted(socket.socket):
    """A plain socket with the methods of a TLS connection that nodes use."""

    version, begun = 7, b""

    def selected_alpn_protocol(self):
        """Return the protocol that was agreed on."""
        return alpn_of("flights", self.version)

    def read(self, count):
        """Receive as a TLS connection does."""
        try:
            return self.recv(count)
        except BlockingIOError:
            raise ssl.SSLWantReadError from None

    def send(self, data):
        """Send as a TLS connection does: a record whole, or the same bytes again later."""
        assert bytes(data[: len(self.begun)]) == self.begun, "TLS demands the same bytes again"
        while len(self.begun) < len(data):
            try:
                count = super().send(data[len(self.begun) :])
            except BlockingIOError:
                raise ssl.SSLWantWriteError from None
            self.begun = bytes(data[: len(self.begun) + count])
        self.begun = b""
        return len(data)

    def pending(self):
        """Return how many bytes were received and not read."""
        return 0
