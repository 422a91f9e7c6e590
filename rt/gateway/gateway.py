"""Gateway: a stream's messages over HTTP, from a local copy and through local sessions."""

import logging
import os
import time
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Final, Self

from rt.amounts import duration_text
from rt.client.client import Client
from rt.errors import RtError, SupersededError
from rt.events import Event, Gap, Poisoned, Superseded
from rt.gateway.access import IDENTITY, Access, holder_of, read_tokens
from rt.gateway.app import GatewayApp
from rt.gateway.cursor_pages import CursorPages
from rt.gateway.description import description_routes
from rt.gateway.follower import StreamFollower
from rt.gateway.log_pages import LogPages
from rt.gateway.reading import StreamReader, place_of
from rt.gateway.settings import GatewaySettings
from rt.gateway.store import StreamStore
from rt.gateway.writing import StreamWriter
from rt.log.files.directory import LogDirectory
from rt.log.files.lock import take_lock
from rt.names import MERGED_NAME, stream_directory
from rt.net.admin import END, AdminClient
from rt.position import Position
from rt.subscriber import Subscriber
from rt.web.serving.assets import asset_route
from rt.web.serving.protocol import HttpProtocol
from rt.web.serving.server import HttpServer

_log: Final = logging.getLogger("rt.gateway")
_POLL_S: Final = 0.05
_CONNECTIONS_MAX: Final = 2000
_ASSETS: Final = {
    "/messages": "messages.html", "/messages.js": "messages.js", "/messages.css": "messages.css",
}  # fmt: skip
_FILE: Final = "gateway.sqlite"
_LOCK: Final = "gateway.lock"


class Gateway:
    """Serves one stream of a cluster between `start` and `stop`.

    Threads: the owner's thread calls all methods.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        client: Client,
        root: str,
        nodes: AdminClient,
        timeout_s: float = 30.0,
    ) -> None:
        """Start copying the stream, and listen.

        Args:
            settings: where to listen, and for whom.
            client: the stream's client; closed by `stop`.
            nodes: sends requests about cursors to the nodes; closed by `stop`.
            root: where the client keeps its copy.
            timeout_s: how long the copy may take to begin.

        Raises:
            Misuse: a setting is wrong, packages are not installed, or another gateway uses `root`.
            TimeoutError: the copy has not begun.
            OSError: the address is not available.
        """
        tokens = read_tokens(settings.tokens) if settings.tokens else {}
        is_open = not (settings.tokens or settings.tls_ca)
        access = Access(tokens, is_open=is_open, origins=settings.origins)
        with ExitStack() as undo:
            undo.callback(client.close)
            undo.callback(nodes.close)
            directory = stream_directory(root, client.stream)
            client.subscriber().close()  # the copy begins
            log_id = _log_id(directory, timeout_s)
            self._lock = take_lock(
                directory, f"another gateway serves {directory}; give this one a --root of its own",
                _LOCK,
            )  # fmt: skip
            undo.callback(os.close, self._lock)
            store = StreamStore(os.path.join(directory, _FILE), log_id)
            undo.callback(store.close)
            subscriber = client.subscriber(
                start=store.position or "earliest", on_gap="notify", on_poison="notify",
                on_event=_say_event,
            )  # fmt: skip
            log = os.path.join(directory, MERGED_NAME)
            follower = StreamFollower(
                store, subscriber, partial(place_of, log, "earliest"), partial(_latest, nodes)
            )
            reader = StreamReader(root, client.stream, store)
            writer = StreamWriter(client, directory, store, follower) if settings.append else None
            cursors = CursorPages(nodes, partial(place_of, log))
            messages = LogPages(partial(Subscriber, root, stream=client.stream), follower)
            pages = [*messages.routes, *cursors.routes, *description_routes()]
            assets = [asset_route(path, "rt.gateway", name) for path, name in _ASSETS.items()]
            app = GatewayApp(store, follower, reader, writer, access, pages=pages, assets=assets)
            self._server = HttpServer(settings.http, app.app, GatewayProtocol, _CONNECTIONS_MAX)
            undo.pop_all()
        self._client, self._follower, self._nodes = client, follower, nodes

    @property
    def url(self) -> str:
        """The URL prefix of the streams; append a stream's name."""
        return f"{self._server.url}/v1/stream/"

    @property
    def failure(self) -> str:
        """Why the log is no longer followed; "" while it is."""
        return self._follower.failure

    def start(self) -> None:
        """Start serving."""
        self._follower.start()
        self._server.start()

    def stop(self) -> None:
        """Stop serving, ship what was published as far as possible, and end."""
        self._server.stop()
        self._follower.stop()
        self._nodes.close()
        self._client.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


class GatewayProtocol(HttpProtocol):
    """A connection that records which certificate its client presented.

    It may stay idle for longer than a connection to a page. If the gateway closed the connection
    just as the client sends, the client would not know whether its append was accepted.
    """

    request_s = 75.0

    def connection_made(self, transport: Any) -> None:
        """Record the holder of the client's certificate for all requests of the connection."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        holder = holder_of(tls.getpeercert(binary_form=True)) if tls is not None else None
        app = self.app

        async def known(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, IDENTITY: holder}, receive, send)

        self.app = known


def _latest(nodes: AdminClient) -> Position | None:
    """Return where the log ends now, as the nodes say; None if none of them says it."""
    try:
        return Position.parse(str(nodes.ask({"do": END, "latest": True}).get("end")))
    except (RtError, OSError, ValueError):
        return None


def _say_event(event: Event) -> None:
    """Log a gap or a poisoned frame, because of which streams may be incomplete.

    Raises:
        SupersededError: another log continues the one that was followed, without some of the
            changes in the store. The store is built again at the next start.
    """
    if isinstance(event, Superseded):
        _log.error("start the gateway again: its streams have changes that the log has no more")
        raise SupersededError(event)
    if isinstance(event, Gap | Poisoned):
        _log.warning("streams may lack messages: %s", event)


def _log_id(directory: str, timeout_s: float) -> str:
    """Return the id of the merged log, once the copy has begun; `TimeoutError` if it has not."""
    until_s = time.monotonic() + timeout_s
    with closing(LogDirectory(os.path.join(directory, MERGED_NAME))) as log:
        while not log.refresh() and not log.is_there:
            if time.monotonic() > until_s:
                raise TimeoutError(
                    f"no copy has begun in {directory} after {duration_text(timeout_s)}"
                )
            time.sleep(_POLL_S)
        return log.manifest.identity.id if log.manifest.identity else ""
