"""Assets: a page's static files, which anyone may load; the page requests its data separately."""

from importlib import resources
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PAGE_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_KINDS: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


def asset_route(path: str, package: str, name: str) -> Route:
    """Serve the file `page/NAME` of a package at a path."""
    body = resources.files(package).joinpath("page", name).read_bytes()
    kind = _KINDS[name.rpartition(".")[2]]

    def answer(_request: Request) -> Response:
        return Response(body, headers=PAGE_HEADERS, media_type=kind)

    return Route(path, answer, methods=["GET"])
