"""Answers: what the pages of a gateway have in common."""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

UNCACHED: Final = {"Cache-Control": "no-store"}
Act = Callable[[Request], Awaitable[Response]]
Page = Callable[[Request, str], Awaitable[Response]]  # with the name of who asks, or ""


class PageRoute(NamedTuple):
    """What is served at a path beside the streams, and for which methods: `GET, POST`."""

    path: str
    act: Page
    methods: str


class FailedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, words: str, **headers: str) -> None:
        super().__init__(words)
        self.status, self.headers = status, headers


def text_answer(status: int, words: str, **headers: str) -> Response:
    """Return an answer of one line."""
    return Response(
        f"{words}\n", status, {**UNCACHED, **headers}, media_type="text/plain; charset=utf-8"
    )
