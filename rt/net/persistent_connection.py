"""PersistentConnection: a connection to a node that is reused for later requests."""

import json
import socket
import ssl
import time
from typing import Final

from rt.amounts import duration_text
from rt.errors import PeerError
from rt.net.addresses import Address, address_text
from rt.net.contexts import Contexts
from rt.net.exchange import Fields, about, receive_line_or_end, send_all
from rt.net.question import connect_about

_REQUEST_S: Final = 10.0
_ANSWER_S: Final = 15.0  # 10 s for a decision; answers to programs are short
_ANSWER_BYTES_MAX: Final = 1 << 20


class PersistentConnection:
    """Sends requests to a node over one connection, and dials again if the connection has ended.

    A handshake costs both sides some 5 ms of processor time each, a request a tenth of that.

    Threads: one at a time may use it.
    """

    def __init__(self, contexts: Contexts, protocol: str) -> None:
        """Prepare; the first request dials.

        Args:
            contexts: our certificate and the authorities we trust.
            protocol: ALPN name of the protocol.
        """
        self._contexts = contexts
        self._protocol = protocol
        self._address: Address | None = None
        self._sock: ssl.SSLSocket | None = None

    def exchange(self, address: Address, request: Fields) -> bytes:
        """Send a request to a node and return its answer.

        A node ends a connection that was idle for long or whose certificate was renewed. The
        request is then sent again, so it may be carried out twice, as after any lost answer.

        Raises:
            The errors of `rt.net.admin.ask`.
        """
        kept = {**about(self._contexts.stream, request), "keep": True}
        data = json.dumps(kept).encode() + b"\n"
        if self._address != address:
            self.close()
        if self._sock is not None:
            try:
                if answer := self._answer(self._sock, data):
                    return answer
            except (ConnectionError, ssl.SSLError):
                pass
            self.close()
        self._address, self._sock = address, connect_about(address, self._contexts, self._protocol)
        # A request is one small packet, and the next follows its answer, so delaying gains nothing.
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer = self._answer(self._sock, data)
        if not answer:
            self.close()
            raise PeerError(f"{address_text(address)} hung up without an answer")
        return answer

    def close(self) -> None:
        """Close the connection; the next request dials again. Idempotent."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def _answer(self, sock: ssl.SSLSocket, data: bytes) -> bytes:
        """Return the answer to a request; empty if the node hung up instead."""
        now_s, is_whole = time.monotonic(), False
        try:
            send_all(sock, data, now_s + _REQUEST_S)
            answer = receive_line_or_end(sock, _ANSWER_BYTES_MAX, now_s + _ANSWER_S)
            is_whole = answer.endswith(b"\n")  # a node without persistent connections hangs up
            return answer
        except TimeoutError:
            raise TimeoutError(
                f"the answer was not complete after {duration_text(_ANSWER_S)}"
            ) from None
        finally:
            if not is_whole:
                self.close()
