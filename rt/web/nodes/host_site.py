"""HostSite: all streams of a node's process over HTTP, each as a `NodeSite`."""

import threading
import time
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import Metric

from rt.errors import Misuse, spoken
from rt.names import shown
from rt.node.host.stream_host import StreamHost
from rt.web.nodes.host_overview import host_overview, stream_row
from rt.web.nodes.metrics import StreamView, node_metrics
from rt.web.nodes.node_overview import session_row, trouble
from rt.web.nodes.node_site import NodeSite
from rt.web.serving.recent import RecentEvents
from rt.web.serving.site import Fields, Site, SiteHealth

_EVENTS: Final = 60


class HostSite(Site):
    """The site of a process that serves streams; with a single stream, the site of that stream.

    Streams come and go at run time, so each request asks which are served now.

    Threads: any thread may call any method. `_lock` guards `_sites`.
    """

    def __init__(self, host: StreamHost, events: RecentEvents) -> None:
        """Show a host's streams, and the lines of the process's log."""
        self._host = host
        self._events = events
        self._lock = threading.Lock()
        self._sites: dict[str, NodeSite] = {}

    def stop(self) -> None:
        """Stop asking other nodes, and report that the streams are not ready."""
        for site in self._served().values():
            site.stop()

    def part(self, stream: str) -> Site:
        """Return the site of one stream; for "", of the only stream, or of all streams together."""
        sites, failures = self._served(), self._host.failures
        if not stream:
            return next(iter(sites.values())) if len(sites) == 1 and not failures else self
        if stream in sites:
            return sites[stream]
        if stream in failures:
            raise Misuse(f"stream {shown(stream)} is not served: {spoken(failures[stream])}")
        raise Misuse(f"this node serves no stream {shown(stream)}")

    def _served(self) -> dict[str, NodeSite]:
        """Return the site of each stream that is served now."""
        nodes, gone = self._host.nodes, []
        with self._lock:
            for name, site in list(self._sites.items()):
                if nodes.get(name) is not site.node:
                    gone.append(self._sites.pop(name))
            for name in nodes.keys() - self._sites.keys():
                self._sites[name] = NodeSite(nodes[name], self._events)
            served = {name: self._sites[name] for name in nodes}
        for site in gone:
            site.stop()
        return served

    def metrics(self) -> Iterable[Metric]:
        """Yield all metrics."""
        sites = self._served()
        views = [
            StreamView(name, each.sample, each.rows, each.cursors) for name, each in sites.items()
        ]
        expiry = next((each.expires() for each in sites.values()), {})
        return node_metrics(views, self._host.settings, expiry, tuple(self._host.failures))

    def health(self) -> SiteHealth:
        """Return the health of all streams, each reason with its stream's name."""
        found = {name: each.health() for name, each in self._served().items()}
        stuck = [f"stream {name}: {each.stuck}" for name, each in found.items() if each.stuck]
        unready = [f"stream {name}: {why}" for name, each in found.items() for why in each.unready]
        failed = [
            f"stream {name}: not served: {spoken(error)}"
            for name, error in self._host.failures.items()
        ]
        age_s = max((each.age_s for each in found.values()), default=0.0)
        return SiteHealth("; ".join(stuck), (*failed, *unready), age_s)

    def status(self) -> list[Fields]:
        """Return what `rt status --json` shows of each stream."""
        return [each for site in self._served().values() for each in site.status()]

    def overview(self) -> Fields:
        """Return what the page of all streams shows."""
        rows = [stream_row(each.sample, each.node.settings) for each in self._served().values()]
        failures = {name: spoken(error) for name, error in self._host.failures.items()}
        shown_page = host_overview(self._host.settings.name, rows, failures)
        return {**shown_page, "events": self._events.latest(_EVENTS)}

    def sessions(self, search: str, limit: int) -> Fields:
        """Return sessions of any stream whose names contain `search`, those in trouble first."""
        every = {name: each.sample.sessions for name, each in self._served().items()}
        found = [
            (name, each) for name, sessions in every.items() for each in sessions
            if search.lower() in each.session.lower()
        ]  # fmt: skip
        found.sort(key=lambda each: trouble(each[1]))
        rows = [{**session_row(each), "stream": name} for name, each in found[:limit]]
        return {"total": sum(map(len, every.values())), "found": len(found), "rows": rows}

    def clients(self) -> Fields:
        """Return pushing and pulling clients as `/rt-clients` does; each row names its stream."""
        result: Fields = {
            "node": self._host.settings.name, "publishers": {}, "subscribers": {}
        }  # fmt: skip
        for stream, site in self._served().items():
            answer = site.clients()["result"]
            for kind in ("publishers", "subscribers"):
                for name, rows in answer[kind].items():
                    result[kind].setdefault(name, []).extend(
                        {**each, "stream": stream} for each in rows
                    )
        return {"result": result}

    def history(self) -> tuple[int, list[str]]:
        """Return when the first files were read (ns), and the histories of all streams' logs."""
        found = [site.history() for site in self._served().values()]
        at_ns = min((looked_ns for looked_ns, _ in found), default=time.time_ns())
        return at_ns, [each for _, rows in found for each in rows]

    def files(self) -> list[Fields]:
        """Return the files of the merged logs, one log after another; each row names its stream."""
        return [
            {**each, "stream": name} for name, site in self._served().items()
            for each in site.files()
        ]  # fmt: skip
