"""NodeSite: what a node shows over HTTP, from its samples and files."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from prometheus_client.core import Metric

from replicator.serve.client_record import PULLS, PUSHES, ClientView
from rt.amounts import duration_text, size_text
from rt.errors import Misuse
from rt.inspect.history import Row
from rt.names import shown
from rt.net.addresses import parse_address
from rt.net.authority.certificates import certificate_files, expires_s
from rt.net.contexts import Contexts, client_context
from rt.node.host.node import STUCK_S, Node
from rt.node.observe.sample import NodeSample, SessionView
from rt.text import time_text
from rt.web.nodes.cursor_rows import CURSORS_S, CursorRow, cursor_rows
from rt.web.nodes.files import MergedFiles, planned
from rt.web.nodes.metrics import StreamView, node_metrics
from rt.web.nodes.node_overview import overview, session_row, troubled_first
from rt.web.nodes.peer_poller import PeerPoller
from rt.web.serving.cached import Cached
from rt.web.serving.recent import RecentEvents
from rt.web.serving.site import Fields, Site, SiteHealth

_CERTIFICATE_S: Final = 60.0  # how often the certificates are reread
_KEPT_S: Final = 24 * 3600.0


class NodeSite(Site):
    """The site of a node.

    Threads: any thread may call any method; the objects it uses have locks of their own. `node` is
    set once.
    """

    def __init__(self, node: Node, events: RecentEvents) -> None:
        """Show a node that has been started, and the lines of its log."""
        self.node = node
        self._events = events
        self._files = MergedFiles(node.pipeline.feeds.directory)
        self._cursors: Cached[Sequence[CursorRow]] = Cached((), CURSORS_S)
        settings = node.settings
        self._certificates = certificate_files(settings.certs, settings.name)
        self._expiry: Cached[dict[str, float]] = Cached({}, _CERTIFICATE_S)
        contexts = Contexts(self._certificates, client_context, settings.stream)
        sequencer = node.pipeline.sequencer
        self._others = PeerPoller(
            self._addresses, contexts, lambda: sequencer.view.number, node.port.loop
        )
        self.is_draining = False

    def stop(self) -> None:
        """Stop asking the other nodes, and report that this node is draining."""
        self.is_draining = True
        self._others.stop()

    def part(self, stream: str) -> Site:
        """Return this site, if `stream` is its own stream or ""."""
        if stream in ("", self.node.settings.stream):
            return self
        raise Misuse(f"this node serves no stream {shown(stream)}")

    def _addresses(self) -> dict[str, tuple[str, int]]:
        """Return the current addresses of the other nodes."""
        name, members = self.node.settings.name, self.sample.view.engine.members
        found = {each: seat.address for each, seat in members.items() if each != name}
        return {each: parse_address(address) for each, address in found.items() if address}

    @property
    def sample(self) -> NodeSample:
        """The latest sample of the node."""
        return self.node.periodic_sampler.sample

    def rows(self) -> list[Row]:
        """Return the history of the merged log."""
        return self._files.rows()

    def cursors(self) -> Sequence[CursorRow]:
        """Return the registered cursors."""
        directory = self.node.pipeline.feeds.directory
        return self._cursors.get(lambda: cursor_rows(directory, self.sample.view))

    def metrics(self) -> Iterable[Metric]:
        """Yield all metrics."""
        settings = self.node.settings
        view = StreamView(settings.stream, self.sample, self.rows, self.cursors)
        return node_metrics([view], settings, self.expires())

    def health(self) -> SiteHealth:
        """Return the node's health; docs/OPERATIONS.md explains each reason in a table."""
        sample = self.sample
        age_s = time.monotonic() - sample.at_s
        stuck = self.node.stuck()
        words = (
            f"stuck: the loop {stuck!r} has not come round for {duration_text(STUCK_S)}"
            if stuck
            else ""
        )
        return SiteHealth(words, tuple(self._unready(sample)), age_s)

    def _unready(self, sample: NodeSample) -> Iterable[str]:
        view, election_s = sample.view, self.node.settings.agreement.election_s
        if self.is_draining:
            yield "draining"
        if sample.changes.leaderless_s > 2 * election_s:
            yield "no-quorum: no node leads"
        if view.engine.role.name.lower() == "learner":
            yield "learner: it neither votes nor counts yet"
        if view.waiting.fork is not None:
            place = view.waiting.fork.position
            yield f"forked: its log differs from the others' from {place} on; it merges nothing"
        if view.waiting.copy is not None:
            yield f"catching-up: the merged log is copied up to {view.waiting.copy.position}"
        if view.waiting.confirmations:
            yield f"confirming: {view.waiting.confirmations} more nodes have to confirm its state"
        if not sample.disk.takes_data:
            yield (f"reserve: {size_text(sample.disk.available)} of disk are left, and it keeps "
                   f"{size_text(sample.disk.reserve)} free")  # fmt: skip

    def status(self) -> list[Fields]:
        """Return what `rt status --json` shows of the node."""
        host, port = self.node.address
        return [{"address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
                 **self.node.status()}]  # fmt: skip

    def overview(self) -> Fields:
        """Return what the page shows."""
        self._others.watch()
        self.node.periodic_sampler.watch()
        warning = self.node.certificate_warning()
        fields = overview(self.sample, self.node.settings, self._others.answers, warning)
        cursors = [asdict(each) for each in self.cursors()]
        return {
            **fields, "trend": self.node.periodic_sampler.trend.fields(), "cursors": cursors,
            "events": self._events.latest(60),
        }  # fmt: skip

    def sessions(self, search: str, limit: int) -> Fields:
        """Return the sessions whose names contain `search`, those in trouble first."""
        self._others.watch()
        found = [each for each in self.sample.sessions if search.lower() in each.session.lower()]
        rows = [session_row(each) for each in troubled_first(found)[:limit]]
        return {"total": len(self.sample.sessions), "found": len(found), "rows": rows}

    def clients(self) -> Fields:
        """Return pushing and pulling clients, in the form of `/rt-clients`."""
        sample = self.sample
        publishers: dict[str, list[Fields]] = {}
        pushers = {each.peer: each for each in sample.clients if each.kind == PUSHES}
        for session in sample.sessions:
            name = session.pushed_by or session.session
            row = self._publisher(session, pushers.get(session.pushed_by))
            if row["active"] or _is_recent(session, sample):
                publishers.setdefault(name, []).append(row)
        subscribers: dict[str, list[Fields]] = {}
        for client in sample.clients:
            if client.kind == PULLS:
                subscribers.setdefault(client.peer, []).append(_subscriber(client, sample))
        name = self.node.settings.name
        result = {"node": name, "publishers": publishers, "subscribers": subscribers}
        return {"result": result}

    def _publisher(self, session: SessionView, client: ClientView | None) -> Fields:
        directory = os.path.join(self.node.directory.inputs, session.session)
        return {
            "active": bool(session.pushed_by),
            "connect_time": time_text(session.connected_ns) if session.connected_ns else "",
            "last_message": time_text(session.last_ns) if session.last_ns else "",
            "replicated_pos": int(session.durable), "total_bytes": session.traffic.bytes,
            "transfer_rate": round(session.bytes_per_s), "target_directory": directory,
            "session": session.session, "address": client.address if client else "",
            "merged_pos": int(session.merged), "lag_bytes": session.unmerged,
        }  # fmt: skip

    def history(self) -> tuple[int, list[str]]:
        """Return when the files were read, and JSON for each file of the merged log."""
        return self._files.texts()

    def files(self) -> list[Fields]:
        """Return the files of the merged log as shown on the page."""
        notes, nodes = self.sample.view.notes, len(self.sample.voters)
        return planned(self._files.rows(), notes, time.time_ns(), nodes=nodes)

    def expires(self) -> dict[str, float]:
        """Return when the certificates `own` and `ca` expire, in seconds since the epoch."""
        files = {"own": self._certificates.cert, "ca": self._certificates.ca}
        return self._expiry.get(lambda: {use: expires_s(path) for use, path in files.items()})


def _is_recent(session: SessionView, sample: NodeSample) -> bool:
    return sample.at_ns - session.last_ns < _KEPT_S * 1e9


def _subscriber(client: ClientView, sample: NodeSample) -> dict[str, Any]:
    position = client.position
    return {
        "active": client.ended_ns is None,
        "connect_time": time_text(client.began_ns),
        "disconnect_time": time_text(client.ended_ns) if client.ended_ns else "",
        "replicated_pos": None if position is None else int(position),
        "total_bytes": client.sent,
        "address": client.address,
        "lag_bytes": None if position is None or client.ended_ns else max(
            0, sample.view.end - position if sample.view.end.file == position.file
            else sample.view.end.offset
        ),
    }  # fmt: skip
