"""TlsUpgrade: accepts a connection, takes a slot for it, and starts TLS if the port uses it."""

import asyncio
import socket
import ssl
from collections import Counter
from typing import Any

from replicator.limits.admission import network_of
from rt.errors import Refused
from rt.web.serving.clients import WebClients
from rt.web.serving.protocol import HttpProtocol


class HttpPlaces:
    """Gives every new connection one of a limited number of slots.

    If all slots are taken, the network with the most connections loses one: the oldest on which no
    request is being answered, or else the oldest of all. So a flood pushes out its own connections,
    and a health probe or an open page keeps its slot unless it comes from the flood's network.
    """

    def __init__(self, places_max: int) -> None:
        """Start with all slots free."""
        self._places_max = places_max
        self._taken: dict[TlsUpgrade, str] = {}  # each connection's network, oldest first

    def take(self, holder: "TlsUpgrade", host: str) -> None:
        """Give a connection from `host` a slot; end another connection if no slot is free."""
        victim = self._victim() if len(self._taken) >= self._places_max else None
        self._taken[holder] = network_of(host)
        if victim is not None:
            self.leave(victim)
            victim.end()

    def leave(self, holder: "TlsUpgrade") -> None:
        """Free a connection's slot; do nothing if the connection has none."""
        self._taken.pop(holder, None)

    def _victim(self) -> "TlsUpgrade":
        counts = Counter(self._taken.values())
        largest = max(counts, key=counts.__getitem__)
        there = [holder for holder, network in self._taken.items() if network == largest]
        return next((holder for holder in there if holder.is_waiting), there[0])


class TlsUpgrade(asyncio.Protocol):
    """One connection to the HTTP port, from its first byte until it speaks HTTP.

    uvicorn counts connections only after their handshake, and allows a minute for it. Here each
    connection takes a slot from the start, and has five seconds for its handshake.

    Threads: only the event loop uses it.
    """

    def __init__(
        self, http: HttpProtocol, places: HttpPlaces, context: ssl.SSLContext | None,
        clients: WebClients | None = None,
    ) -> None:  # fmt: skip
        """Prepare for one connection.

        Args:
            http: the protocol that takes over when HTTP begins.
            places: the slots, shared by all connections of the port.
            context: the TLS context with the server's certificate; None for plain HTTP.
            clients: checks client certificates; None to request none.
        """
        self._http = http
        self._places = places
        self._context = context
        self._clients = clients
        self._watched: socket.socket | None = None  # to be closed with the connection
        self._transport: asyncio.Transport | None = None
        self._early = bytearray()  # request bytes that arrived with the end of the handshake
        self._upgrade: asyncio.Task[None] | None = None
        self._serves = False

    @property
    def is_waiting(self) -> bool:
        """Return whether the connection is idle: no request is being answered."""
        return not self._serves or self._http.is_waiting

    def end(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        """Take a slot, and begin TLS or HTTP."""
        self._transport = transport
        address = transport.get_extra_info("peername")
        self._places.take(self, address[0] if address else "")
        self._http.gone = self._leave
        if self._context is None:
            self._serve(transport)
        else:
            transport.pause_reading()
            upgrade = self._speak_tls(transport, self._context)
            # kept, so that the task is not garbage-collected
            self._upgrade = asyncio.get_running_loop().create_task(upgrade)

    def data_received(self, data: bytes) -> None:
        """Keep what arrives before HTTP takes over."""
        self._early += data

    def connection_lost(self, _error: Exception | None) -> None:
        """Free the slot."""
        self._leave()

    def _leave(self) -> None:
        self._places.leave(self)
        if self._watched is not None:
            self._watched.close()

    async def _speak_tls(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport, self, context, server_side=True,
                ssl_handshake_timeout=self._http.request_s,
            )  # fmt: skip
        except OSError:  # the client gave up, is too slow, or has no certificate we trust
            secured = None
        if secured is None or not self._is_taken(secured):
            self._leave()
            transport.abort()
        else:
            self._transport = secured
            self._serve(secured)

    def _is_taken(self, secured: asyncio.Transport) -> bool:
        """Return whether the client's certificate is good; if so, keep checking it from now on."""
        if self._clients is None:
            return True
        try:
            self._watched = self._clients.watch(secured)
        except (Refused, OSError):  # OSError if the client hung up, or no descriptor is left
            return False
        return True

    def _serve(self, transport: asyncio.Transport) -> None:
        self._serves = True
        transport.set_protocol(self._http)
        self._http.connection_made(transport)
        if self._early:
            self._http.data_received(bytes(self._early))
