"""Page: the paths of the HTTP port and their answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, exposition
from prometheus_client.openmetrics import exposition as openmetrics
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from rt.errors import Misuse, spoken
from rt.node.admin.answers import SharedAnswers
from rt.node.observe.status import without_directories
from rt.text import time_text
from rt.web.serving.assets import PAGE_HEADERS, asset_route
from rt.web.serving.budget import WebBudget
from rt.web.serving.collector import SiteCollector
from rt.web.serving.disclosure import encoded
from rt.web.serving.site import Site

STREAMS_MAX: Final = 32  # event streams of open pages; further pages poll
_LIVE_S: Final = 1.0
_PING_S: Final = 15.0  # proxies drop idle connections
_ROWS_MAX: Final = 200
_DIGITS_MAX: Final = 20  # Python refuses to parse numbers of more than 4,300 digits
_ASSETS: Final = {
    "/": "page.html", "/page.css": "page.css", "/page.js": "page.js", "/favicon.svg": "favicon.svg",
}  # fmt: skip
# A page of another origin must not reach us through a host name that resolves to this machine.
_LOCAL_HOSTS: Final = ["localhost", "127.0.0.1", "[::1]", "::1"]


class Page:
    """Answers requests. Methods run in the event loop; the site is queried in worker threads."""

    def __init__(self, site: Site, *, local: bool, is_open: bool = True) -> None:
        """Prepare the paths.

        Args:
            site: What to show.
            local: Whether only this machine can reach the port; then only its own host names are
                accepted.
            is_open: Whether anyone who reaches the port may read it, since no certificate is
                required.
        """
        self._site = site
        self._is_open = is_open
        self._encoded = partial(encoded, is_open=is_open)
        self._streams = 0
        self._is_ending = False
        # by stream: time and JSON of the latest overview
        self._live: dict[str, tuple[float, bytes]] = {}
        self._answers = SharedAnswers()
        self._budget = WebBudget()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(SiteCollector(site))
        ProcessCollector(registry=self._registry)
        hosts = _LOCAL_HOSTS if local else ["*"]
        assets = (asset_route(path, "rt.web", name) for path, name in _ASSETS.items())
        self.app = Starlette(
            routes=[*self._routes(), *assets],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
        )

    def end_streams(self) -> None:
        """Make every open event stream end soon; any thread may call this."""
        self._is_ending = True

    def _routes(self) -> list[Route]:
        shared: dict[str, Callable[[Request], bytes]] = {
            "/status": lambda asked: self._encoded(self._part(asked).status()),
            "/overview": lambda asked: self._encoded(self._part(asked).overview()),
            "/files": lambda asked: self._encoded(self._part(asked).files()),
            "/rt-clients": lambda asked: self._encoded(self._part(asked).clients()),
        }
        paths: dict[str, Callable[[Request], Response]] = {
            "/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz,
            "/readiness": self._readyz, "/sessions": self._sessions, "/log-history": self._history,
            **{path: partial(self._share, path, make) for path, make in shared.items()},
        }  # fmt: skip
        routes = [
            Route(path, self._charged(_found(answer)), methods=["GET"])
            for path, answer in paths.items()
        ]
        return [*routes, Route("/events", self._events, methods=["GET"])]

    def _charged(
        self, answer: Callable[[Request], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that calls `answer` and charges the cost to the client's network.

        A network that has used up its budget has to wait before it is answered.
        """

        def timed(request: Request) -> tuple[Response, float]:
            began_s = time.thread_time()
            response = answer(request)
            return response, time.thread_time() - began_s

        async def answered(request: Request) -> Response:
            host = request.client.host if request.client else ""
            if held_s := self._budget.ask(host):
                await asyncio.sleep(held_s)
            response, seconds = await run_in_threadpool(timed, request)
            self._budget.answered(host, seconds, len(response.body))
            return response

        return answered

    def _part(self, request: Request) -> Site:
        """Return the site of the stream in the parameter `stream`; `Misuse` if it is not served."""
        return self._site.part(request.query_params.get("stream", ""))

    def _share(self, path: str, make: Callable[[Request], bytes], request: Request) -> Response:
        """Return the answer of `make`; requests for one path and stream share it for a second."""
        question = (path, request.query_params.get("stream", ""))
        body = self._answers.get(
            question, lambda: make(request), state=lambda: _state(self._part(request))
        )
        return Response(body, headers=PAGE_HEADERS, media_type="application/json")

    def _history(self, request: Request) -> Response:
        """Return the history as a JSON array; the header `RT-As-Of` says when it was read."""
        shared = self._share("/log-history", self._files_known, request)
        at, _, body = bytes(shared.body).partition(b"\n")
        headers = {**PAGE_HEADERS, "RT-As-Of": at.decode()}
        return Response(body, headers=headers, media_type="application/json")

    def _files_known(self, request: Request) -> bytes:
        looked_ns, rows = self._part(request).history()
        text = f"[{','.join(rows)}]"
        text = without_directories(text) if self._is_open else text
        return f"{time_text(looked_ns)}\n{text}".encode()

    def _metrics(self, request: Request) -> Response:
        wanted = request.headers.get("accept", "")
        is_open = "application/openmetrics-text" in wanted
        kind = openmetrics.CONTENT_TYPE_LATEST if is_open else exposition.CONTENT_TYPE_LATEST
        body = self._answers.get(
            kind, lambda: self._measured(is_open=is_open), state=lambda: _state(self._site)
        )
        return Response(body, headers=PAGE_HEADERS, media_type=kind)

    def _measured(self, *, is_open: bool) -> bytes:
        if is_open:
            body: bytes = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return body
        return exposition.generate_latest(self._registry)

    def _healthz(self, request: Request) -> Response:
        health = self._part(request).health()
        return _verdict([health.stuck] if health.stuck else [], health.age_s)

    def _readyz(self, request: Request) -> Response:
        health = self._part(request).health()
        return _verdict([*([health.stuck] if health.stuck else []), *health.unready], health.age_s)

    def _sessions(self, request: Request) -> Response:
        search, limit = request.query_params.get("search", ""), request.query_params.get("limit")
        number = (limit or "")[:_DIGITS_MAX]
        rows = int(number) if number.isascii() and number.isdecimal() else 0
        most = min(rows or _ROWS_MAX, _ROWS_MAX)

        def make(request: Request) -> bytes:
            return self._encoded(self._part(request).sessions(search, most))

        return self._share(f"/sessions {most} {search}", make, request)

    async def _events(self, request: Request) -> Response:
        if self._streams >= STREAMS_MAX:
            words = f"{STREAMS_MAX} pages are open already; ask for /overview instead\n"
            return PlainTextResponse(words, 503, PAGE_HEADERS)
        stream = request.query_params.get("stream", "")
        try:
            await run_in_threadpool(self._site.part, stream)
        except Misuse as error:
            return _not_found(error)
        headers = {**PAGE_HEADERS, "X-Accel-Buffering": "no"}
        return StreamingResponse(
            self._stream(request, stream), media_type="text/event-stream", headers=headers
        )

    async def _stream(self, request: Request, stream: str) -> AsyncIterator[bytes]:
        """Yield the whole overview each time it changes, so that no event ever needs replaying."""
        self._streams += 1
        try:
            last, spoke_s = b"", time.monotonic()
            while not self._is_ending and not await request.is_disconnected():
                data = await self._overview(stream)
                if data is not last:
                    last, spoke_s = data, time.monotonic()
                    yield b"data: " + data + b"\n\n"
                elif time.monotonic() - spoke_s > _PING_S:
                    spoke_s = time.monotonic()
                    yield b": still here\n\n"
                await asyncio.sleep(_LIVE_S / 2)
        except Misuse:
            pass  # the stream is no longer served; the page's next request gets the reason
        finally:
            self._streams -= 1

    async def _overview(self, stream: str) -> bytes:
        """Return a stream's overview as JSON, made at most once a second for all pages."""
        made_s, data = self._live.get(stream, (float("-inf"), b""))
        if time.monotonic() - made_s >= _LIVE_S:
            self._live[stream] = time.monotonic(), data
            data = await run_in_threadpool(
                lambda: self._encoded(self._site.part(stream).overview())
            )
            self._live[stream] = time.monotonic(), data
        return data


def _found(answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """Return a handler that calls `answer`, but answers 404 for a stream that is not served."""

    def answered(request: Request) -> Response:
        try:
            return answer(request)
        except Misuse as error:
            return _not_found(error)

    return answered


def _state(site: Site) -> tuple[object, ...]:
    """Return a site's state; when this changes, cached answers are no longer valid."""
    health = site.health()
    return health.stuck, health.unready


def _not_found(error: Misuse) -> Response:
    return Response(
        encoded({"error": spoken(error)}, is_open=True), 404, PAGE_HEADERS, "application/json"
    )


def _verdict(reasons: list[str], age_s: float) -> Response:
    body = {"ok": not reasons, "reasons": reasons, "age_s": round(age_s, 1)}
    return Response(
        encoded(body, is_open=True), 503 if reasons else 200, PAGE_HEADERS, "application/json"
    )
