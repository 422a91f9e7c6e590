"""Answers: types and functions that all pages of the gateway share."""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

UNCACHED: Final = {"Cache-Control": "no-store"}
Act = Callable[[Request], Awaitable[Response]]
Page = Callable[[Request, str], Awaitable[Response]]  # called with the client's name, or ""


class PageRoute(NamedTuple):
    """A path served besides the streams: its handler, and its methods, such as `GET, POST`."""

    path: str
    act: Page
    methods: str


class FailedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, words: str, **headers: str) -> None:
        super().__init__(words)
        self.status, self.headers = status, headers


def text_answer(status: int, words: str, **headers: str) -> Response:
    """Return a response with one line of text."""
    return Response(
        f"{words}\n", status, {**UNCACHED, **headers}, media_type="text/plain; charset=utf-8"
    )
