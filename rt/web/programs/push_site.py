"""PushSite: what `rt push` shows over HTTP."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import Metric

from replicator.push.client import PushClient
from replicator.push.progress import SessionStatus
from rt.amounts import duration_text, size_text
from rt.client.push_watch import PUSH, PushWatch
from rt.text import printable
from rt.traffic import Traffic
from rt.web.nodes.verdict import BROKEN, DEGRADED, OK
from rt.web.programs.program import ProgramSite, ShownProgram, tile
from rt.web.serving.collector import counter, gauge
from rt.web.serving.site import Fields, SiteHealth

SERIES_MAX: Final = 20  # as on a node: the sessions with the most lag
_ROWS_MAX: Final = 50


class PushSite(ProgramSite):
    """The site of a pusher; any thread may call any method."""

    def __init__(self, client: PushClient, program: ShownProgram, watch: PushWatch) -> None:
        """Show a pusher, which `watch` observes."""
        super().__init__(program.kind, lambda: program.stream)
        self._client = client
        self._program = program
        self._watch = watch

    def metrics(self) -> Iterable[Metric]:
        """Yield all metrics."""
        yield from self._program.metrics()
        stream, status = self._program.stream, self._watch.status
        nodes = {each.node for each in status} | set(self._client.traffic())
        by_node = {node: [each for each in status if each.node == node] for node in sorted(nodes)}
        labels = ("stream", "peer")
        yield gauge(
            "rt_push_connected", "Whether a node is connected.",
            {(stream, node): float(self._has(node)) for node in by_node}, labels,
        )  # fmt: skip
        yield gauge(
            "rt_push_lag_bytes", "Written here and not sent to a node.",
            {(stream, node): sum(e.lag_bytes for e in rows) for node, rows in by_node.items()},
            labels,
        )  # fmt: skip
        yield gauge(
            "rt_push_lag_seconds", "How long the oldest that a node has not synced has waited.",
            {(stream, node): max((self._watch.waited(e) for e in rows), default=0.0)
             for node, rows in by_node.items()},
            labels,
        )  # fmt: skip
        yield from _passed("sent", "to a node", self._client.traffic(), stream)
        yield from self._sessions(stream)
        yield gauge(
            "rt_stalled", "1 if work waits at a hop and nothing has moved for 10 s.",
            {(stream, PUSH): float(bool(self._watch.stalled))}, ("stream", "hop"),
        )  # fmt: skip

    def _sessions(self, stream: str) -> Iterator[Metric]:
        worst: dict[str, tuple[float, int]] = {}
        for each in self._watch.status:
            seconds, left = worst.get(each.session, (0.0, 0))
            worst[each.session] = (
                max(seconds, self._watch.waited(each)),
                max(left, each.lag_bytes),
            )
        order = sorted(worst, key=lambda name: (-worst[name][0], -worst[name][1], name))
        shown = order[:SERIES_MAX]
        refused = sum(bool(each.error) for each in self._watch.status if each.connected)
        yield gauge("rt_push_sessions", "Sessions that are shipped.", {(stream,): len(worst)},
                    ("stream",))  # fmt: skip
        yield gauge("rt_push_refused", "Sessions that a node does not take, once for each.",
                    {(stream,): refused}, ("stream",))  # fmt: skip
        labels = ("stream", "session")
        yield gauge("rt_session_lag_bytes", "Written here and not sent to the slowest node.",
                    {(stream, name): worst[name][1] for name in shown}, labels)  # fmt: skip
        yield gauge("rt_session_lag_seconds", "How long the oldest of that has waited.",
                    {(stream, name): worst[name][0] for name in shown}, labels)  # fmt: skip

    def health(self) -> SiteHealth:
        """Return the pusher's health: ready if a node is connected or there is nothing to ship."""
        age_s = time.monotonic() - self._watch.at_s
        stuck = f"stuck: {late}" if (late := self._watch.stuck()) else ""
        unready = [] if self._is_connected() else [f"not-connected: {self._trouble()}"]
        return SiteHealth(stuck, tuple(unready), age_s)

    def status(self) -> list[Fields]:
        """Return the status of each session with each node."""
        return [
            {"session": each.session, "node": each.node, "connected": each.connected,
             "position": str(each.position), "durable": str(each.durable),
             "lag_bytes": each.lag_bytes, "waiting_s": round(self._watch.waited(each), 1),
             "error": printable(each.error)}
            for each in self._watch.status
        ]  # fmt: skip

    def overview(self) -> Fields:
        """Return what the page shows."""
        level, words = self._verdict()
        status = self._watch.status
        rows = self._rows("")
        names = sorted({each.node for each in status})
        left = sum(each.lag_bytes for each in status)
        sent = sum(each.bytes for each in self._client.traffic().values())
        waits = max((self._watch.waited(each) for each in status), default=0.0)
        return self._program.overview(level, words) | {
            "nodes": [self._node(name) for name in names],
            "sessions": {
                "total": len(rows), "rows": rows[:_ROWS_MAX],
                "troubled": sum(row["state"] == "waits" for row in rows),
            },
            "tiles": [
                tile("Sent", size_text(sent), "to all nodes, since the start", sent),
                tile("To send", size_text(left), "to all nodes together", left),
                tile("Oldest waiting", duration_text(waits), "not synced by some node", waits),
                tile("Nodes", f"{sum(map(self._has, names))} of {len(names)}", "connected", 0),
            ],
        }  # fmt: skip

    def sessions(self, search: str, limit: int) -> Fields:
        """Return the sessions whose names contain `search`, those in trouble first."""
        rows = self._rows(search)
        total = len({each.session for each in self._watch.status})
        return {"total": total, "found": len(rows), "rows": rows[:limit]}

    def _rows(self, search: str) -> list[Fields]:
        by_session: dict[str, list[SessionStatus]] = {}
        for each in self._watch.status:
            if search.lower() in each.session.lower():
                by_session.setdefault(each.session, []).append(each)
        rows = [self._row(name, each) for name, each in by_session.items()]
        return sorted(rows, key=lambda row: (-row["waiting_s"], -row["lag_bytes"], row["session"]))

    def _row(self, session: str, status: Sequence[SessionStatus]) -> Fields:
        waiting_s = max(self._watch.waited(each) for each in status)
        connected = any(each.connected for each in status)
        return {
            "session": session, "pushed_by": "", "state":
                "waits" if waiting_s > 2 else "idle" if connected else "away",
            "received": str(max(each.position for each in status)),
            "durable": str(max(each.durable for each in status)), "merged": "",
            "bytes": 0, "messages": 0, "bytes_per_s": 0,
            "lag_bytes": max(each.lag_bytes for each in status),
            "waiting_s": round(waiting_s, 1), "last_ns": 0, "connected_ns": 0,
        }  # fmt: skip

    def _node(self, name: str) -> Fields:
        error = next((e.error for e in self._watch.status if e.node == name and e.error), "")
        return {
            "name": name, "is_here": False, "is_away": not self._has(name), "is_known": False,
            "role": "node", "address": name, "merged_end": "", "messages": None, "behind": None,
            "disk_free": None, "version": "", "trouble": printable(error), "pushing": 0,
            "pulling": 0,
        }  # fmt: skip

    def _verdict(self) -> tuple[str, str]:
        names = sorted({each.node for each in self._watch.status})
        away = [name for name in names if not self._has(name)]
        if self._watch.stalled:
            return BROKEN, f"Stalled: {self._watch.words(next(iter(self._watch.stalled)))}."
        if not self._is_connected():
            return BROKEN, f"Nothing is shipped: {self._trouble()}. What is published stays here."
        if away:
            return DEGRADED, f"It ships, but not to {', '.join(away)}."
        return OK, "All sessions are shipped to all nodes."

    def _has(self, node: str) -> bool:
        return any(each.connected for each in self._watch.status if each.node == node)

    def _is_connected(self) -> bool:
        return not self._watch.status or any(each.connected for each in self._watch.status)

    def _trouble(self) -> str:
        return printable(
            next((each.error for each in self._watch.status if each.error), "no connection")
        )


def _passed(name: str, words: str, traffic: Mapping[str, Traffic], stream: str) -> Iterator[Metric]:
    for unit in ("bytes", "messages", "frames"):
        values = {(stream, node): getattr(each, unit) for node, each in traffic.items()}
        text = f"{unit.title()} {name} {words}."
        yield counter(f"rt_{name}_{unit}", text, values, ("stream", "peer"))
