"""What the gateway serves, as OpenAPI 3.1 (`/openapi.json`) and as a page for people (`/`)."""

import json
from functools import cache, partial
from html import escape
from importlib import resources
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from rt.gateway.answers import PageRoute

_STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8886; }
dt { margin-top: .4rem; } dd { margin-left: 1.5rem; }
"""
_CACHED: Final = {"Cache-Control": "max-age=300"}


@cache
def description() -> dict[str, Any]:
    """Return what the gateway serves, as an OpenAPI object."""
    found: dict[str, Any] = json.loads(
        resources.files("rt.gateway").joinpath("openapi.json").read_bytes()
    )
    return found


@cache
def page() -> str:
    """Return what the gateway serves, as a page in HTML."""
    about = description()
    parts = [
        f"<h1>{escape(about['info']['title'])}</h1><p>{escape(about['info']['description'])}</p>",
        '<p>For programs: <a href="/openapi.json">openapi.json</a>. To look at the log: '
        '<a href="/messages">messages</a>.</p>',
    ]
    for path, methods in about["paths"].items():
        parts.append(f"<h2><code>{escape(path)}</code></h2>{_listed(methods.get('parameters'))}")
        parts += [
            f"<h3><code>{name.upper()}</code> {escape(each['summary'])}</h3>"
            f"<p>{escape(each.get('description', ''))}</p>"
            f"{_listed(each.get('parameters'))}<dl>"
            + "".join(_term(status, answer) for status, answer in each["responses"].items())
            + "</dl>"
            for name, each in methods.items()
            if name != "parameters"
        ]  # fmt: skip
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>rt gateway</title><style>{_STYLE}</style>'
        f"<body>{''.join(parts)}</body></html>"
    )


def _listed(parameters: list[dict[str, Any]] | None) -> str:
    found = (_term(each["name"], each) for each in parameters or ())
    return f"<dl>{''.join(found)}</dl>"


def _term(name: str, about: dict[str, Any]) -> str:
    return f"<dt><code>{escape(name)}</code></dt><dd>{escape(about['description'])}</dd>"


async def _answer(text: str, kind: str, _request: Request, _identity: str) -> Response:
    return Response(text, headers=_CACHED, media_type=kind)


def description_routes() -> list[PageRoute]:
    """Return the pages of the description."""
    return [
        PageRoute("/", partial(_answer, page(), "text/html"), "GET"),
        PageRoute(
            "/openapi.json", partial(_answer, json.dumps(description()), "application/json"), "GET"
        ),
    ]
