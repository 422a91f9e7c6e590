"""CursorPages: offers the cursors that the nodes keep as URLs."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rt.errors import Misuse, Refused
from rt.gateway.answers import UNCACHED, FailedError, PageRoute, text_answer
from rt.gateway.requests import number
from rt.names import parse_cursor
from rt.net.admin import AdminClient
from rt.position import START, Position

_SILENCE_S: Final = 30.0  # then another reader may take a cursor
_SILENCE_MAX_S: Final = 86_400.0
_WAITING_MAX: Final = 64  # requests; each takes seconds if the nodes do not answer
_CONFLICTS: Final = {"held", "fenced"}
_SHOWN: Final = ("position", "epoch", "holder", "silence_s", "messages", "bytes", "seconds")


class CursorPages:
    """Passes requests about cursors on to the nodes, which decide; keeps no state of clients.

    At the nodes a cursor is called `NAME`, or `IDENTITY__NAME` for a client that has shown an
    identity, so that each identity has cursors of its own.

    Threads: only the event loop uses it. `_asking` lets one request at a time use the connection,
    and `_waiting` counts the requests that use it or wait for it.
    """

    def __init__(self, nodes: AdminClient, place: Callable[[str], Position]) -> None:
        """Prepare.

        Args:
            nodes: sends requests to the nodes.
            place: resolves a start to a position in the copy.
        """
        self._nodes, self._place = nodes, place
        self._asking = asyncio.Lock()
        self._waiting = 0

    @property
    def routes(self) -> list[PageRoute]:
        """The pages that this serves."""
        return [PageRoute("/v1/cursors/{name}", self._cursor, "GET, PUT, POST, DELETE")]

    async def _cursor(self, request: Request, identity: str) -> Response:
        name = _own_name(request.path_params["name"], identity)
        try:
            found = await self._answer(request, name)
        except Refused as error:
            if error.code == "unknown-cursor":
                return text_answer(404, f"{error}; PUT makes one")
            if error.code in _CONFLICTS:
                return text_answer(409, str(error))
            if error.code == "ahead":
                return text_answer(400, str(error))
            raise
        return found

    async def _answer(self, request: Request, name: str) -> Response:
        query = request.query_params
        if request.method == "GET":
            answer = await self._ask({"do": "cursors", "name": name, "latest": True})
            return _shown(answer["cursors"][0])
        if request.method == "DELETE":
            await self._ask({"do": "cursor-forget", "name": name})
            return Response(status_code=204, headers=UNCACHED)
        if request.method == "PUT":
            takeover = query.get("takeover", "refuse")
            silence_s = number(query, "silence", _SILENCE_S, _SILENCE_MAX_S)
            holder = request.client.host if request.client else "http"
            found = await self._ask({
                "do": "cursor-open", "name": name, "silence_s": silence_s, "pin_bytes": 0,
                "share": "", "holder": f"http {holder}", "takeover": takeover, "asks_again": True,
            })  # fmt: skip
            # nodes of an earlier version do not say whether it is new
            is_new = found.get("is_new", found["position"] == str(START))
            if is_new and "from" in query:
                begin = await asyncio.to_thread(self._place, query["from"])
                found = await self._ack(name, str(found["epoch"]), str(begin))
            return _shown(found)
        return _shown(
            await self._ack(
                name, query.get("epoch", ""), query.get("position", str(START)),
                is_last=query.get("release") == "true",
            )
        )  # fmt: skip

    async def _ack(
        self, name: str, epoch: str, position: str, *, is_last: bool = False
    ) -> dict[str, Any]:
        if not (epoch.isascii() and epoch.isdecimal()):
            raise Misuse("epoch is missing; it is the number that PUT has answered")
        try:
            Position.parse(position)
        except ValueError as error:
            raise Misuse(str(error)) from None
        return await self._ask({
            "do": "cursor-ack", "name": name, "epoch": int(epoch), "position": position,
            "release": is_last, "latest": True, "asks_again": True,
        })  # fmt: skip

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._waiting >= _WAITING_MAX:
            words = f"{_WAITING_MAX} requests about cursors wait for the nodes already"
            raise FailedError(503, words, **{"Retry-After": "1"})
        self._waiting += 1
        try:
            async with self._asking:
                return await asyncio.to_thread(self._nodes.ask, request)
        finally:
            self._waiting -= 1


def _own_name(name: str, identity: str) -> str:
    """Return a cursor's name at the nodes; unambiguous, since identities have no `__` or `_-`."""
    if not identity:
        return parse_cursor(name)
    return parse_cursor(f"{identity.replace('.', '_-')}__{parse_cursor(name)}")


def _shown(found: dict[str, Any]) -> Response:
    return JSONResponse({name: found[name] for name in _SHOWN if name in found}, headers=UNCACHED)
