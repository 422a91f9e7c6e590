"""KeptConnection: a connection to a node that the next request uses too."""

import json
import socket
import ssl
import time
from typing import Final

from rt.errors import PeerError
from rt.net.contexts import Contexts, asking
from rt.net.exchange import Fields, receive_line_or_end, send_all
from rt.net.tls import connect

_CONNECT_S: Final = 3.0
_REQUEST_S: Final = 10.0
_ANSWER_S: Final = 15.0  # 10 s for a decision; answers to programs are short
_ANSWER_BYTES_MAX: Final = 1 << 20

Address = tuple[str, int]


class KeptConnection:
    """Makes one request after another of a node, and dials again where a connection has ended.

    A handshake costs both sides some 5 ms of processor time each, a request a tenth of that.

    Threads: one at a time.
    """

    def __init__(self, contexts: Contexts, protocol: str) -> None:
        """Dial nothing before the first request.

        Args:
            contexts: what to show.
            protocol: its ALPN name.
        """
        self._contexts = contexts
        self._protocol = protocol
        self._address: Address | None = None
        self._sock: ssl.SSLSocket | None = None

    def exchange(self, address: Address, request: Fields) -> bytes:
        """Send a request to a node and return its answer.

        A node ends a connection that was idle for long, or whose certificate was renewed; the
        request is made again then. So it may be carried out twice, as after any lost answer.

        Raises:
            As `rt.net.admin.ask`.
        """
        data = json.dumps({**request, "keep": True}).encode() + b"\n"
        if self._address != address:
            self.close()
        if self._sock is not None:
            try:
                if answer := self._answer(self._sock, data):
                    return answer
            except (ConnectionError, ssl.SSLError):
                pass
            self.close()
        self._sock = self._dial(address)
        self._address = address
        answer = self._answer(self._sock, data)
        if not answer:
            self.close()
            raise PeerError(f"{address[0]}:{address[1]} hung up without an answer")
        return answer

    def close(self) -> None:
        """Hang up; the next request dials. Idempotent."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def _dial(self, address: Address) -> ssl.SSLSocket:
        context = asking(self._contexts, self._protocol)
        sock, identity = connect(address, context, _CONNECT_S)
        if not identity.is_node:
            sock.close()
            raise PeerError(f"{identity.name!r} is not a node")
        # A request is one small packet, and the next one follows its answer: nothing to gather.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _answer(self, sock: ssl.SSLSocket, data: bytes) -> bytes:
        """Return the answer to a request, empty if the node hung up instead."""
        now_s, is_whole = time.monotonic(), False
        try:
            send_all(sock, data, now_s + _REQUEST_S)
            answer = receive_line_or_end(sock, _ANSWER_BYTES_MAX, now_s + _ANSWER_S)
            is_whole = answer.endswith(b"\n")  # a node that keeps no connections hangs up instead
            return answer
        except TimeoutError:
            raise TimeoutError(f"the answer was not complete after {_ANSWER_S:g} s") from None
        finally:
            if not is_whole:
                self.close()
