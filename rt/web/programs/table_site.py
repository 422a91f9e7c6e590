"""TableSite: what `rt export --follow` shows over HTTP."""

import time
from collections.abc import Iterable

from prometheus_client.core import Metric

from rt.amounts import duration_text
from rt.tables.follow import TableFollower
from rt.text import printable
from rt.web.nodes.verdict import DEGRADED, OK
from rt.web.programs.program import ProgramSite, build_info, no_flow_overview, tile
from rt.web.serving.collector import counter, gauge
from rt.web.serving.recent import RecentEvents
from rt.web.serving.site import Fields, SiteHealth


class TableSite(ProgramSite):
    """The site of a program that keeps a table up to date; any thread may call any method."""

    def __init__(self, follower: TableFollower, table: str, events: RecentEvents) -> None:
        """Show a follower that adds to `table`."""
        super().__init__("export", lambda: follower.status.stream)
        self._follower = follower
        self._table = table
        self._events = events
        self._began_ns = time.time_ns()

    def metrics(self) -> Iterable[Metric]:
        """Yield all metrics."""
        status, label = self._follower.status, ("stream",)
        key = (status.stream,)
        yield build_info("export")
        yield gauge("rt_table_lag_messages", "Messages of the log that the table lacks.",
                    {key: status.lag_messages}, label)  # fmt: skip
        yield gauge("rt_table_lag_seconds", "How long the oldest of these was merged ago.",
                    {key: status.lag_s(time.time_ns())}, label)  # fmt: skip
        yield gauge("rt_table_failing", "1 while nothing can be added.",
                    {key: float(bool(status.problem))}, label)  # fmt: skip
        yield counter("rt_table_messages", "Messages added since the start.",
                      {key: status.messages}, label)  # fmt: skip
        yield counter("rt_table_dead_messages", "Those whose payloads do not parse.",
                      {key: status.dead}, label)  # fmt: skip

    def health(self) -> SiteHealth:
        """Return the follower's health: ready while it can add to the table."""
        problem = self._follower.status.problem
        unready = (f"table: {printable(problem)}",) if problem else ()
        return SiteHealth("", unready, 0.0)

    def status(self) -> list[Fields]:
        """Return how far the table has come."""
        status = self._follower.status
        return [{
            "table": self._table, "position": str(status.position), "end": str(status.end),
            "lag_messages": status.lag_messages, "lag_s": status.lag_s(time.time_ns()),
            "messages": status.messages, "dead_letters": status.dead,
            "error": printable(status.problem),
        }]  # fmt: skip

    def overview(self) -> Fields:
        """Return what the page shows."""
        status = self._follower.status
        level, words = OK, "The table follows the log."
        if status.problem:
            level, words = DEGRADED, f"Nothing is added: {printable(status.problem)}."
        lag = duration_text(status.lag_s(time.time_ns()))
        return no_flow_overview("export", status.stream, level, words, self._began_ns) | {
            "nodes": [], "merged_end": str(status.end), "events": self._events.latest(60),
            "tiles": [
                tile("Added", f"{status.messages:,}", "messages since the start", status.messages),
                tile("Complete to", str(status.position), f"the log ends at {status.end}", 0),
                tile("Waiting", f"{status.lag_messages:,}", f"messages; the first {lag}", 0),
                tile("Dead letters", f"{status.dead:,}", "since the start", status.dead),
            ],
        }  # fmt: skip
