"""GatewayApp: the HTTP of the Durable Streams protocol 1.0, over the streams of a merged log."""

import asyncio
import base64
import hashlib
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from rt.amounts import duration_text
from rt.errors import Misuse, Refused, RtError, spoken
from rt.gateway import requests
from rt.gateway.access import Access, UnknownError
from rt.gateway.answers import UNCACHED, Act, FailedError, Page, PageRoute, text_answer
from rt.gateway.follower import NAME_BYTES_MAX, StreamFollower
from rt.gateway.model import (
    HttpStream,
    StreamChange,
    StreamVerdict,
    essence,
    is_json,
    time_of,
)
from rt.gateway.reading import CHUNK_BYTES, Chunk, GoneError, StreamReader
from rt.gateway.store import StreamStore
from rt.gateway.writing import StreamWriter
from rt.position import Position

BODY_BYTES_MAX: Final = 8 << 20
_HELD_BYTES_MAX: Final = 256 << 20  # of all bodies at once
_DRAINED_MAX: Final = 64 << 20  # read of a body that is too long: most clients send all, then read
_SMALL_BYTES: Final = 1 << 16
_BODY_S: Final = 60.0  # until a body has arrived
_POLL_S: Final = 10.0  # a long poll without news
_SSE_S: Final = 60.0  # then the client connects again, so that caches can serve several
_EVENT_BYTES: Final = 1 << 18  # of an event: a reader may take nothing for long
_BEAT_S: Final = 15.0  # a comment, so that proxies keep the connection
_CURSOR_S, _CURSOR_EPOCH_S = 20, 1_728_432_000  # 9 October 2024, as the protocol has it
_COMMON: Final = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "cross-origin",
    # A stream may be HTML: no browser that opens it runs it as a page of the gateway.
    "Content-Security-Policy": "sandbox",
}
_LATER: Final = {"Retry-After": "1"}
_CACHED: Final = {"Cache-Control": "private, max-age=60, stale-while-revalidate=300"}
_EXPOSED: Final = (
    "Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, ETag, Producer-Epoch, "
    "Producer-Seq, Producer-Expected-Seq, Producer-Received-Seq, Stream-SSE-Data-Encoding, Location"
)


_METHODS: Final = "GET, HEAD, PUT, POST, DELETE"


class GatewayApp:
    """Answers HTTP requests; only the event loop may call it.

    The only state that it keeps between requests is when each expiring stream was last used.
    """

    def __init__(
        self,
        store: StreamStore,
        follower: StreamFollower,
        reader: StreamReader,
        writer: StreamWriter | None,
        access: Access,
        *,
        pages: Sequence[PageRoute] = (),
        assets: Sequence[Route] = (),
    ) -> None:
        """Prepare.

        Args:
            store: the streams.
            follower: keeps the store in step with the log.
            reader: reads the messages.
            writer: publishes changes; None if the gateway only reads.
            access: decides what each client may do.
            pages: the pages that are served besides the streams.
            assets: routes that anyone may load without an identity.
        """
        self._store, self._follower, self._reader = store, follower, reader
        self._writer, self._access = writer, access
        # When each stream with a `Stream-TTL` was last used, and where the stream ended then, since
        # an append by any program counts as a use.
        self._used: dict[str, tuple[float, Position]] = {}
        self._held = 0  # bytes of bodies that are in memory
        routes = [Route("/v1/stream/{name:path}", _Endpoint(self.answer, self._answer, _METHODS))]
        for path, act, methods in pages:
            routes.append(Route(path, _Endpoint(self.answer, partial(self._page, act), methods)))
        self.app = Starlette(routes=[*routes, *assets])

    async def answer(self, request: Request, act: Act) -> Response:
        """Return the response of `act`; an error that it raises becomes a one-line response."""
        self._follower.serve()
        origin = self._access.origin(request.headers.get("origin", ""))
        shared = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"} if origin else {}
        try:
            is_asked = request.method == "OPTIONS"  # which allows nothing without the origin below
            response = _preflight() if is_asked else await act(request)
        except FailedError as error:
            response = text_answer(error.status, str(error), **error.headers)
        except (Misuse, ValueError) as error:
            response = text_answer(400, str(error))
        except GoneError as error:
            response = text_answer(410, str(error))
        except UnknownError as error:
            response = text_answer(401, spoken(error), **{"WWW-Authenticate": "Bearer"})
        except Refused as error:
            response = text_answer(403, spoken(error))
        except (RtError, OSError) as error:
            response = text_answer(503, spoken(error))
        finally:
            self._held -= getattr(request.state, "held", 0)
        for name, value in {**_COMMON, **shared}.items():
            response.headers.setdefault(name, value)
        if origin:
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED
        return response

    async def _answer(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not name or len(name.encode()) > NAME_BYTES_MAX or not name.isprintable():
            raise FailedError(404, f"a stream's name has 1 to {NAME_BYTES_MAX} printable bytes")
        self._access.demand_site(request)
        is_reading = request.method in {"GET", "HEAD"}
        identity = self._access.identity(request, is_reading=is_reading)
        self._demand_current()
        if is_reading:
            stream = await self._live(name, is_use=request.method == "GET")
            if stream is None:
                raise FailedError(404, "there is no such stream; PUT makes one")
            return await (self._get if request.method == "GET" else self._head)(
                request, name, stream
            )
        if self._writer is None:
            raise FailedError(
                405, "this gateway only reads; its --append is off", Allow="GET, HEAD"
            )
        if request.method == "PUT":
            return await self._put(request, name, identity, self._writer)
        if request.method == "POST":
            return await self._post(request, name, identity, self._writer)
        verdict = StreamVerdict(404, "there is no such stream")
        if await self._live(name) is not None:
            verdict = await self._writer.change(name, identity, [_DELETE], [b""])
        self._used.pop(name, None)
        return _told(verdict, None)

    async def _page(self, act: Page, request: Request) -> Response:
        """Answer a request for a page other than a stream; any reader may ask for it."""
        self._access.demand_site(request)
        return await act(request, self._access.identity(request, is_reading=True))

    def _demand_current(self) -> None:
        """Refuse requests while the store may lack changes that were acknowledged to a client.

        A gateway that was killed may have acknowledged changes that are not in its file yet.
        """
        self._follower.demand_running()
        if self._follower.is_behind:
            raise FailedError(503, "the gateway still reads the log; try again", **_LATER)

    async def _live(self, name: str, *, is_use: bool = True) -> HttpStream | None:
        """Return a stream; delete it and return None if it has expired."""
        stream = self._store.summary(name)
        if stream is None or (stream.ttl < 0 and not stream.expires):
            self._used.pop(name, None)
            return stream
        if stream.expires:
            until = time_of(stream.expires)
            is_over = until is not None and until <= datetime.now(UTC)
        else:
            now_s = time.monotonic()
            used_s, tail = self._used.get(name, (now_s, stream.tail))
            used_s = used_s if tail == stream.tail else now_s
            is_over = now_s - used_s >= stream.ttl
            self._used[name] = (now_s if is_use and not is_over else used_s, stream.tail)
        if not is_over:
            return stream
        if self._writer is None:
            return None
        expiry = replace(_DELETE, ended=int(stream.tail))
        verdict = await self._writer.change(name, "", [expiry], [b""])
        if verdict.status >= 500:
            raise FailedError(verdict.status, verdict.words)
        # Another request may have appended to the stream or made it again: then it has not expired.
        found = self._store.summary(name)
        if found is None or found.tail == stream.tail:
            self._used.pop(name, None)
            return None
        return found

    # Changes

    async def _put(
        self, request: Request, name: str, identity: str, writer: StreamWriter
    ) -> Response:
        if request.headers.get("stream-forked-from") is not None:
            raise FailedError(501, "this gateway makes no forks; copy the messages to a new stream")
        create = requests.creation(request.headers)
        body = await self._body(request)
        await self._live(name)
        payloads = await _apart(
            body, partial(requests.messages_of, create.type, body, is_creation=True)
        )
        if payloads:
            asked = repr(create).encode() + b"\0" + body
            create = replace(create, maker=hashlib.sha256(asked).hexdigest())
        changes = [replace(create, last=not payloads), *_appends(create, len(payloads))]
        verdict = await writer.change(name, identity, changes, [b"", *payloads])
        response = _told(verdict, self._store.summary(name))
        if verdict.status == 201:
            response.headers["Location"] = f"{request.url.scheme}://{request.url.netloc}" + quote(
                f"/v1/stream/{name}"
            )
        return response

    async def _post(
        self, request: Request, name: str, identity: str, writer: StreamWriter
    ) -> Response:
        body = await self._body(request)
        headers = request.headers
        closes, sender = requests.is_closing(headers), requests.producer(headers)
        stream = await self._live(name)
        if stream is None:
            raise FailedError(404, "there is no such stream; PUT makes one")
        if not body and not closes:
            raise Misuse("the body is empty: there is nothing to append")
        kind = requests.content_type(headers) if body else ""
        if body and not kind:
            raise Misuse("Content-Type is missing; it is the stream's")
        change = StreamChange(
            "append", requests.stream_type(kind, stream.type), sender, requests.sequence(headers),
            closes=closes, has_data=bool(body),
        )  # fmt: skip
        payloads = [body]
        if body:
            payloads = await _apart(body, partial(requests.split, kind, stream.type, body))
        parts = _appends(change, len(payloads))
        is_async, wait_s = requests.preference(headers)
        verdict = await writer.change(
            name, identity, parts, payloads, is_async=is_async, wait_s=wait_s
        )
        response = _told(verdict, self._store.summary(name), change)
        if verdict.status == 202:
            response.headers["Preference-Applied"] = "respond-async"
        return response

    async def _body(self, request: Request) -> bytes:
        """Return the body of a request; its memory stays reserved until `answer` returns."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(_BODY_S):
                async for part in request.stream():
                    size += len(part)
                    if size <= BODY_BYTES_MAX:
                        self._hold(request, len(part))
                        parts.append(part)
                    elif size > _DRAINED_MAX:
                        break
        except ClientDisconnect:
            raise FailedError(400, "the body ended early") from None
        except TimeoutError:
            raise FailedError(
                408, f"the body has not arrived after {duration_text(_BODY_S)}"
            ) from None
        if size > BODY_BYTES_MAX:
            raise FailedError(413, f"a body has at most {BODY_BYTES_MAX:,} bytes")
        return b"".join(parts)

    def _hold(self, request: Request, size: int) -> None:
        """Reserve memory for a request body."""
        if self._held + size > _HELD_BYTES_MAX:
            raise FailedError(503, "the bodies of other requests fill the memory", **_LATER)
        self._held += size
        request.state.held = getattr(request.state, "held", 0) + size

    # Reading

    async def _head(self, _request: Request, _name: str, stream: HttpStream) -> Response:
        headers = {
            "Content-Type": stream.type,
            "Stream-Next-Offset": requests.offset_text(stream.tail),
            **UNCACHED,
        }
        if stream.ttl >= 0:
            headers["Stream-TTL"] = str(stream.ttl)
        if stream.expires:
            headers["Stream-Expires-At"] = stream.expires
        if stream.is_closed:
            headers["Stream-Closed"] = "true"
        return Response(headers=headers)

    async def _get(self, request: Request, name: str, stream: HttpStream) -> Response:
        query = request.query_params
        if len(query.getlist("offset")) > 1:
            raise Misuse("offset is given twice")
        text, live = query.get("offset"), query.get("live")
        if live not in {None, "long-poll", "sse"}:
            raise Misuse(f"live is {live!r}; use long-poll or sse")
        if live is not None and text is None:
            raise Misuse("a live read needs an offset: -1, now, last, or a Stream-Next-Offset")
        begin = _begin(stream, text)
        cursor = _cursor(query.get("cursor", ""))
        if live == "sse":
            await self._read(name, stream, begin)  # an error becomes an answer, not a broken stream
            return self._sse(name, stream, begin, cursor)
        if live == "long-poll":
            return await self._long_poll(name, stream, begin, cursor)
        if text == "now":
            return _chunk(stream, begin, Chunk([], stream.tail), is_cached=False)
        chunk = await self._read(name, stream, begin)
        if text == "last":
            return _chunk(stream, begin, chunk, is_cached=False)
        response = _chunk(stream, begin, chunk)
        if request.headers.get("if-none-match") == response.headers["ETag"]:
            kept = {name: response.headers[name] for name in ("ETag", "Cache-Control")}
            return Response(status_code=304, headers=kept)
        return response

    async def _read(
        self, name: str, stream: HttpStream, begin: Position, most: int = CHUNK_BYTES
    ) -> Chunk:
        if begin >= stream.tail:
            return Chunk([], begin)
        return await asyncio.to_thread(self._reader.read, name, stream, begin, most)

    async def _long_poll(
        self, name: str, stream: HttpStream, begin: Position, cursor: str
    ) -> Response:
        until_s = time.monotonic() + _POLL_S
        while True:
            chunk = await self._read(name, stream, begin)
            if chunk.payloads or chunk.next < stream.tail:
                return _chunk(stream, begin, chunk, cursor)
            left_s = until_s - time.monotonic()
            if stream.is_closed or left_s <= 0:
                return _nothing(stream, begin, cursor)
            await self._changed(name, stream, left_s)
            self._follower.demand_running()  # otherwise the stream is outdated
            found = self._store.summary(name)
            if found is None or found.begin != stream.begin:
                raise FailedError(404, "the stream was deleted")
            stream = found

    async def _changed(self, name: str, stream: HttpStream, timeout_s: float) -> bool:
        """Wait until a stream differs from `stream`; False if it does not within `timeout_s`."""
        with self._follower.waiting(name) as change:  # before the look, so that no change is missed
            if self._store.summary(name) != stream or self._follower.failure:
                return True
            try:
                await asyncio.wait_for(change, timeout_s)
            except TimeoutError:
                return False
            return True

    def _sse(self, name: str, stream: HttpStream, begin: Position, cursor: str) -> Response:
        headers = {"Cache-Control": "no-cache", "Content-Type": "text/event-stream"}
        is_text = essence(stream.type).startswith("text/") or is_json(stream.type)
        if not is_text:
            headers["Stream-SSE-Data-Encoding"] = "base64"
        events = self._events(name, stream, begin, cursor, is_text=is_text)
        return StreamingResponse(events, headers=headers)

    async def _events(
        self, name: str, stream: HttpStream, begin: Position, cursor: str, *, is_text: bool
    ) -> AsyncIterator[bytes]:
        until_s, is_first = time.monotonic() + _SSE_S, True
        while time.monotonic() < until_s:
            try:
                chunk = await self._read(name, stream, begin, _EVENT_BYTES)
            except (RtError, OSError):
                return  # the client connects again, and reads why
            is_at_end, has_news, begin = chunk.next >= stream.tail, bool(chunk.payloads), chunk.next
            if has_news or is_first or (stream.is_closed and is_at_end):
                events = [_news(stream, chunk, cursor, is_text=is_text)]
                del chunk  # while the client takes nothing, its bytes are held once
                yield events.pop()
                if stream.is_closed and is_at_end:
                    return
            is_first = False
            if is_at_end and not await self._changed(name, stream, _BEAT_S):
                yield b": nothing new\n\n"
            found = self._store.summary(name)
            if found is None or found.begin != stream.begin or self._follower.failure:
                return
            stream = found


class _Endpoint:
    """Handles all methods of a route itself, since Starlette would answer some on its own."""

    def __init__(
        self, answer: Callable[[Request, Act], Awaitable[Response]], act: Act, methods: str
    ) -> None:
        self._answer, self._act, self._methods = answer, act, methods

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        if request.method not in {*self._methods.split(", "), "OPTIONS"}:
            words = f"{request.method} is no request here; use {self._methods}"
            response = text_answer(405, words, Allow=self._methods)
        else:
            response = await self._answer(request, self._act)
        await response(scope, receive, send)


_DELETE: Final = StreamChange("delete", has_data=False)


def _appends(change: StreamChange, count: int) -> list[StreamChange]:
    last = count - 1
    return [
        replace(change, do="append", has_data=change.has_data or change.do == "create",
                part=number, last=number == last, ttl=-1, expires="")
        for number in range(count)
    ]  # fmt: skip


def _begin(stream: HttpStream, offset: str | None) -> Position:
    if offset is None or offset == "-1":
        return stream.begin
    if offset == "now":
        return stream.tail
    return (stream.last or stream.tail) if offset == "last" else requests.parse_offset(offset)


async def _apart(body: bytes, read: Callable[[], list[bytes]]) -> list[bytes]:
    """Return the messages in a body; parse a large body in a thread, not in the event loop."""
    return read() if len(body) <= _SMALL_BYTES else await asyncio.to_thread(read)


def _told(
    verdict: StreamVerdict, stream: HttpStream | None, change: StreamChange | None = None
) -> Response:
    """Return the HTTP response to a change whose outcome is decided."""
    headers = dict(UNCACHED)
    if stream is not None and verdict.status < 500:
        headers["Stream-Next-Offset"] = requests.offset_text(verdict.tail or stream.tail)
        if stream.is_closed:
            headers["Stream-Closed"] = "true"
    if verdict.status in {200, 201} and stream is not None and change is None:
        headers["Content-Type"] = stream.type
    sender = None if change is None else change.producer
    if sender is not None and verdict.status in {200, 204, 403} and verdict.epoch >= 0:
        headers["Producer-Epoch"] = str(verdict.epoch)
        if verdict.seq >= 0:
            headers["Producer-Seq"] = str(verdict.seq)
    if sender is not None and verdict.status == 409 and verdict.seq >= 0:
        headers["Producer-Expected-Seq"] = str(verdict.seq)
        headers["Producer-Received-Seq"] = str(sender.seq)
    if verdict.status >= 400:
        return text_answer(verdict.status, verdict.words, **headers)
    return Response(status_code=verdict.status, headers=headers)


def _chunk(
    stream: HttpStream,
    begin: Position,
    chunk: Chunk,
    cursor: str = "",
    *,
    is_cached: bool = True,
) -> Response:
    is_at_end = chunk.next >= stream.tail
    is_closed = stream.is_closed and is_at_end
    headers = {
        "Content-Type": stream.type,
        "Stream-Next-Offset": requests.offset_text(chunk.next),
        **(_CACHED if is_cached and chunk.payloads else UNCACHED),
    }
    if is_at_end:
        headers["Stream-Up-To-Date"] = "true"
    if is_closed:
        headers["Stream-Closed"] = "true"
    elif cursor:
        headers["Stream-Cursor"] = cursor
    if is_cached:
        place = ":".join(map(requests.offset_text, (stream.begin, begin, chunk.next)))
        headers["ETag"] = f'"{place}{":c" * is_closed}"'
    return Response(_body_of(stream, chunk), headers=headers)


def _nothing(stream: HttpStream, begin: Position, cursor: str) -> Response:
    """Return the response of a long poll that ends without data.

    The client may be ahead of this gateway, if another gateway served it before.
    """
    headers = {
        "Stream-Next-Offset": requests.offset_text(max(begin, stream.tail)),
        "Stream-Up-To-Date": "true",
        **UNCACHED,
    }
    headers |= {"Stream-Closed": "true"} if stream.is_closed else {"Stream-Cursor": cursor}
    return Response(status_code=204, headers=headers)


def _body_of(stream: HttpStream, chunk: Chunk) -> bytes:
    if is_json(stream.type):
        return b"[" + b",".join(chunk.payloads) + b"]"
    return b"".join(chunk.payloads)


def _news(stream: HttpStream, chunk: Chunk, cursor: str, *, is_text: bool) -> bytes:
    """Return the text of a data event, if there is data, and of a control event with the offset."""
    control: dict[str, str | bool] = {"streamNextOffset": requests.offset_text(chunk.next)}
    is_at_end = chunk.next >= stream.tail
    if stream.is_closed and is_at_end:
        control |= {"streamClosed": True, "upToDate": True}
    else:
        control |= {"streamCursor": cursor}
        control |= {"upToDate": True} if is_at_end else {}
    end = _event("control", json.dumps(control, separators=(",", ":")))
    if not chunk.payloads:
        return end
    return _event("data", _sse_data(stream, chunk, is_text=is_text)) + end


def _sse_data(stream: HttpStream, chunk: Chunk, *, is_text: bool) -> str:
    body = _body_of(stream, chunk)
    return body.decode("utf-8", "replace") if is_text else base64.b64encode(body).decode()


def _event(kind: str, data: str) -> bytes:
    """Return a server-sent event, with a field `data` for each line of `data`.

    Lines may end in CR, LF or both. A client drops one space after the colon, so a line that begins
    with a space is sent with another space before it.
    """
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    fields = "".join(f"data:{' ' * line.startswith(' ')}{line}\n" for line in lines)
    return f"event: {kind}\n{fields}\n".encode()


def _cursor(given: str) -> str:
    """Return a cursor greater than the client's, so that no cache answers the next poll."""
    now = int(time.time() - _CURSOR_EPOCH_S) // _CURSOR_S
    if given.isascii() and given.isdigit() and len(given) < 16 and int(given) >= now:
        return str(int(given) + max(1, random.randrange(1, 3600) // _CURSOR_S))
    return str(now)


def _preflight() -> Response:
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": "GET, HEAD, PUT, POST, DELETE",
            "Access-Control-Allow-Headers": "*, Authorization",
            "Access-Control-Max-Age": "600",
        },
    )
