"""HttpServer: serves an application over HTTP, in its own thread; WebServer: serves a site."""

import logging
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, Final, cast

from rt.errors import Misuse, RtError, spoken
from rt.net.addresses import listen_at
from rt.net.contexts import demand_private
from rt.node.settings.http import HttpSettings, is_loopback

if TYPE_CHECKING:
    from rt.web.serving.protocol import HttpProtocol
    from rt.web.serving.site import Site

_log: Final = logging.getLogger("rt.web")
_CONNECTIONS_MAX: Final = 64
_BACKLOG: Final = 1024  # for clients that come at once; by default those over 128 are dropped
_STOP_S: Final = 3.0
_START_S: Final = 10.0
_MISSING: Final = (
    "--http needs packages that are not installed here; run pip install '.[http]' in a clone of rt"
)


def demand_installed() -> None:
    """Check that the optional packages are installed.

    Raises:
        Misuse: one is missing; the message says how to install them.
    """
    try:
        import prometheus_client  # noqa: F401, PLC0415 - optional
        import starlette  # noqa: F401, PLC0415
        import uvicorn  # noqa: F401, PLC0415
    except ImportError as error:
        raise Misuse(_MISSING) from error


class HttpServer:
    """Listens as soon as it is made, and serves an application between `start` and `stop`.

    Threads: the owner's thread calls all methods; the thread that `start` starts runs the event
        loop. `_server` is set once; any thread may set its flag `should_exit`.
    """

    def __init__(
        self,
        settings: HttpSettings,
        app: Any,
        protocol: "type[HttpProtocol] | None" = None,
        places: int = _CONNECTIONS_MAX,
        request_s: float | None = None,
    ) -> None:
        """Listen at the address.

        Args:
            settings: the address and the certificate.
            app: the ASGI application that answers requests.
            protocol: the protocol class of its connections; HTTP with deadlines by default.
            places: how many connections there may be.
            request_s: how long a handshake, and a request, may take to arrive; 5 s by default.

        Raises:
            Misuse: packages are not installed, or the certificate cannot be used.
            OSError: the address is not available.
        """
        demand_installed()
        import uvicorn  # noqa: PLC0415 - optional

        from rt.web.serving.clients import WebClients  # noqa: PLC0415 - imports optional packages
        from rt.web.serving.protocol import HttpProtocol  # noqa: PLC0415
        from rt.web.serving.tls_upgrade import HttpPlaces, TlsUpgrade  # noqa: PLC0415

        slots, made = HttpPlaces(places), protocol or HttpProtocol
        self._settings = settings
        self._context = _context(settings)
        clients = WebClients(settings.http_ca) if settings.http_ca else None
        self._socket = listen_at(settings.address, _BACKLOG)

        def opened(**given: Any) -> TlsUpgrade:
            http = made(**given)
            http.request_s = request_s or http.request_s
            return TlsUpgrade(http, slots, self._context, clients)

        config = uvicorn.Config(
            app, http=cast("Any", opened), ws="none", lifespan="off", log_config=None,
            access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=1, timeout_keep_alive=round(made.request_s),
        )  # fmt: skip
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # uvicorn logs its start and stop
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def url(self) -> str:
        """The URL at which it serves, with the actual port if port 0 was requested."""
        host, port = self._socket.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        return f"{self._settings.scheme}://{name}:{port}"

    def start(self) -> None:
        """Start serving."""
        self._thread.start()
        deadline_s = time.monotonic() + _START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline_s:
                raise RtError(f"nothing is served at {self.url}; the log says why")
            time.sleep(0.01)

    def reload(self) -> None:
        """Reload the certificate from its files, for new connections."""
        if self._context is None:
            return
        _context(self._settings)  # checked first: a mismatched pair must not replace a good one
        self._context.load_cert_chain(self._settings.http_cert, self._settings.http_key)

    def stop(self) -> None:
        """Stop serving, and end all connections."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        self._socket.close()

    def _run(self) -> None:
        self._server.run([self._socket])


class WebServer(HttpServer):
    """Serves a site: metrics, health and a page.

    Threads: as `HttpServer`; any thread may end the streams of `_page`.
    """

    def __init__(
        self, settings: HttpSettings, site: "Site", *, request_s: float | None = None
    ) -> None:
        """Listen at the address; `request_s` and errors as for `HttpServer`."""
        demand_installed()
        from rt.web.serving.app import Page  # noqa: PLC0415 - imports optional packages

        is_local, is_open = is_loopback(settings.address[0]), not settings.http_ca
        self._page = Page(site, local=is_local, is_open=is_open)
        super().__init__(settings, self._page.app, request_s=request_s)

    def start(self) -> None:
        """Start serving."""
        super().start()
        _log.info("metrics, health and a page at %s", self.url)

    def stop(self) -> None:
        """Stop serving, and end all connections."""
        self._page.end_streams()
        super().stop()


def demand_free(settings: HttpSettings) -> None:
    """Check that the HTTP address is available; `OSError` says why not."""
    listen_at(settings.address, _BACKLOG).close()


def _context(settings: HttpSettings) -> ssl.SSLContext | None:
    """Return the context for HTTPS, or None for HTTP; `Misuse` if the files cannot be used."""
    if not settings.http_cert:
        return None
    try:
        demand_private(settings.http_key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.http_cert, settings.http_key)
        if settings.http_ca:
            context.load_verify_locations(settings.http_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # an SSLError is an OSError
        words = f"{settings.http_cert} and {settings.http_key} cannot be used: {spoken(error)}"
        raise Misuse(words) from error
    return context
