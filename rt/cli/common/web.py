"""The HTTP port of a long-running command."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rt.cli.common.console import note
from rt.node.observe.stall_clock import LIVE_S, QUIET_S
from rt.node.settings.http import HttpSettings
from rt.web.serving.recent import RecentEvents, forget_events, keep_events
from rt.web.serving.server import WebServer, demand_installed

if TYPE_CHECKING:
    from rt.web.serving.site import Site


def pause_s(settings: HttpSettings) -> float:
    """Return the seconds between two samples of a program's state: fewer if a page shows them."""
    return LIVE_S if settings.http else QUIET_S


@contextmanager
def shown_over_http(
    settings: HttpSettings, site_of: Callable[[RecentEvents], "Site"]
) -> Iterator[WebServer | None]:
    """Serve a site over HTTP until the block ends, if the settings ask for it.

    Args:
        settings: The address to serve at, if any.
        site_of: Makes the site; called only if it is served, since it needs optional packages.

    Yields:
        The server; None if nothing is served.
    """
    if not settings.http:
        yield None
        return
    demand_installed()
    events = keep_events()
    site = site_of(events)
    server = WebServer(settings, site)
    try:
        server.start()
        note(f"metrics, health and a page at {server.url}")
        yield server
    finally:
        site.stop()
        server.stop()
        forget_events(events)
