"""Door: takes a connection in, gives it a place, and speaks TLS if the port does."""

import asyncio
import socket
import ssl
from typing import Any

from rt.errors import Refused
from rt.web.clients import WebClients
from rt.web.places import HttpPlaces
from rt.web.protocol import REQUEST_S, HttpProtocol


class Door(asyncio.Protocol):
    """One connection of the HTTP port, from its first byte until it speaks HTTP.

    uvicorn counts connections whose handshake is over, and gives a handshake a minute. Here each
    has one of the places from the start, and its handshake has five seconds.

    Threads: the event loop's alone.
    """

    def __init__(
        self,
        http: HttpProtocol,
        places: HttpPlaces,
        context: ssl.SSLContext | None,
        clients: WebClients | None = None,
    ) -> None:
        """Prepare.

        Args:
            http: takes over once HTTP is spoken.
            places: shared by all connections of the port.
            context: of the server's certificate; None to speak HTTP at once.
            clients: which certificates are taken; None to ask for none.
        """
        self._http = http
        self._places = places
        self._context = context
        self._clients = clients
        self._watched: socket.socket | None = None  # has to be closed
        self._transport: asyncio.Transport | None = None
        self._early = bytearray()  # requests that came with the end of the handshake
        self._upgrade: asyncio.Task[None] | None = None
        self._serves = False

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is being answered."""
        return not self._serves or self._http.is_waiting

    def end(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        """Take a place; begin to speak TLS, or HTTP."""
        self._transport = transport
        address = transport.get_extra_info("peername")
        self._places.take(self, address[0] if address else "")
        self._http.gone = self._leave
        if self._context is None:
            self._serve(transport)
        else:
            transport.pause_reading()
            upgrade = self._speak_tls(transport, self._context)
            self._upgrade = asyncio.get_running_loop().create_task(upgrade)  # else it is collected

    def data_received(self, data: bytes) -> None:
        """Keep what came before HTTP took over."""
        self._early += data

    def connection_lost(self, _error: Exception | None) -> None:
        """Give the place back."""
        self._leave()

    def _leave(self) -> None:
        self._places.leave(self)
        if self._watched is not None:
            self._watched.close()

    async def _speak_tls(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=REQUEST_S
            )
        except OSError:  # it gave up, is too slow, or has no certificate we know
            secured = None
        if secured is None or not self._is_taken(secured):
            self._leave()
            transport.abort()
        else:
            self._transport = secured
            self._serve(secured)

    def _is_taken(self, secured: asyncio.Transport) -> bool:
        """Whether the client's certificate is good, as long as it is."""
        if self._clients is None:
            return True
        try:
            self._watched = self._clients.watch(secured)
        except (Refused, OSError):  # or it has hung up, or no descriptor is left
            return False
        return True

    def _serve(self, transport: asyncio.Transport) -> None:
        self._serves = True
        transport.set_protocol(self._http)
        self._http.connection_made(transport)
        if self._early:
            self._http.data_received(bytes(self._early))
