"""PullSite: what `rt pull` shows over HTTP."""

import time
from collections.abc import Iterable
from dataclasses import asdict

from prometheus_client.core import Metric

from replicator.pull.client import PullClient
from replicator.repair.scrub import ScrubState
from replicator.repair.scrubber import Scrubber
from rt.amounts import size_text
from rt.client.standby import StateCarrier
from rt.node.observe.stall_clock import PULL
from rt.text import counted, printable
from rt.web.nodes.files import MergedFiles, planned
from rt.web.nodes.metrics import scrub_metrics
from rt.web.nodes.verdict import BROKEN, DEGRADED, OK
from rt.web.programs.program import ProgramSite, ShownProgram, tile
from rt.web.programs.pull_watch import PullWatch
from rt.web.serving.collector import counter, gauge
from rt.web.serving.site import Fields, SiteHealth


class PullSite(ProgramSite):
    """The site of a puller; any thread may call any method.

    The node that the puller copies from measures the lag (`rt_pull_lag_seconds`), because a puller
    cannot know what it has not been sent.
    """

    def __init__(
        self, client: PullClient, directory: str, program: ShownProgram, watch: PullWatch,
        scrubber: Scrubber | None = None, *, carrier: StateCarrier | None = None,
    ) -> None:  # fmt: skip
        """Show a puller that copies into `directory`, with its watch, scrubber and standby."""
        super().__init__(program.kind, lambda: program.stream)
        self._watch = watch
        self._client = client
        self._scrubber, self._carrier = scrubber, carrier
        self._program = program
        self._files = MergedFiles(directory)

    def metrics(self) -> Iterable[Metric]:
        """Yield all metrics."""
        yield from self._program.metrics()
        stream, status, rows = self._program.stream, self._client.status(), self._files.rows()
        key, label = (stream,), ("stream",)
        yield gauge("rt_pull_connected", "Whether a node is connected.",
                    {key: float(bool(status.node))}, label)  # fmt: skip
        yield gauge("rt_pull_caught_up", "Whether it has all that any node is known to have.",
                    {key: float(status.caught_up)}, label)  # fmt: skip
        yield gauge("rt_pull_running", "0 after the copy has ended by itself.",
                    {key: float(self._client.running)}, label)  # fmt: skip
        for unit in ("bytes", "messages", "frames"):
            amount = getattr(self._client.traffic, unit)
            words = f"{unit.title()} copied since the start."
            yield counter(f"rt_pulled_{unit}", words, {key: amount}, label)
        yield gauge(
            "rt_stalled", "1 if work waits at a hop and nothing has moved for 10 s.",
            {(stream, PULL): float(bool(self._watch.stalled))}, ("stream", "hop"),
        )  # fmt: skip
        live = [row for row in rows if row.gone is None]
        yield gauge("rt_log_bytes", "Bytes of the merged log that are here.",
                    {key: sum(row.bytes for row in live)}, label)  # fmt: skip
        yield from scrub_metrics(self._scrub, stream)
        if self._carrier is not None:
            record, now_ns = self._carrier.record, time.time_ns()
            yield gauge("rt_standby_behind_seconds", "The standby has what was merged by then.",
                        {key: record.behind_s(now_ns)}, label)  # fmt: skip
            yield gauge("rt_standby_behind_messages", "What it lacked when it last asked.",
                        {key: record.behind}, label)  # fmt: skip
            if record.behind_bytes >= 0:
                yield gauge("rt_standby_behind_bytes", "Bytes that it lacked when it last asked.",
                            {key: record.behind_bytes}, label)  # fmt: skip
            yield gauge("rt_standby_state_age_seconds", "How old the carried state is.",
                        {key: record.state_age_s(now_ns)}, label)  # fmt: skip

    @property
    def _scrub(self) -> ScrubState:
        return ScrubState() if self._scrubber is None else self._scrubber.state

    def health(self) -> SiteHealth:
        """Return the puller's health: ready once it is connected and has caught up."""
        status = self._client.status()
        unready = []
        if not status.node:
            unready.append(f"not-connected: {printable(status.error)}")
        elif not status.caught_up:
            unready.append(f"catching-up: the copy ends at {status.position}")
        stuck = "" if self._client.running else f"stuck: {printable(status.error)}"
        return SiteHealth(stuck, tuple(unready), 0.0)

    def status(self) -> list[Fields]:
        """Return the status of the copy."""
        status = self._client.status()
        return [{
            "node": status.node, "position": str(status.position), "durable": str(status.durable),
            "caught_up": status.caught_up, "error": printable(status.error),
            "complete_to": None if status.complete_to is None else str(status.complete_to),
            "asked_ns": status.asked_ns, "lag": printable(status.lag),
            "scrub": asdict(self._scrub),
        }]  # fmt: skip

    def overview(self) -> Fields:
        """Return what the page shows."""
        status, traffic = self._client.status(), self._client.traffic
        if not self._client.running:
            level, words = BROKEN, printable(status.error)
        elif self._watch.stalled and status.node:
            level, words = BROKEN, f"Stalled: {self._watch.words()}."
        elif not status.node:
            level, words = BROKEN, f"Nothing is copied: {printable(status.error)}."
        elif damaged := len(self._scrub.unrepaired):
            level, words = (
                DEGRADED,
                f"Not repaired yet in the copy: {counted(damaged, 'damaged file')}.",
            )
        elif self._carrier is not None and (error := self._carrier.record.error):
            level, words = DEGRADED, f"The cluster's state is not carried: {error}."
        elif not status.caught_up:
            level, words = DEGRADED, f"The copy is catching up with {status.node}."
        else:
            level, words = OK, f"The copy follows {status.node}."
        return self._program.overview(level, words) | {
            "nodes": [], "merged_end": str(status.position),
            "tiles": [
                tile("Copied", size_text(traffic.bytes), "since the start", traffic.bytes),
                tile("Messages", f"{traffic.messages:,}", "since the start", traffic.messages),
                tile("Copied to", str(status.position), f"synced to {status.durable}", 0),
                tile("From", status.node or "no node", "", 0),
            ],
        }  # fmt: skip

    def history(self) -> tuple[int, list[str]]:
        """Return when the files were read, and JSON for each file of the copy."""
        return self._files.texts()

    def files(self) -> list[Fields]:
        """Return the files of the copy, without plans: the nodes decide what to archive."""
        never = {"policy": '{"time":0,"disk":100}'}
        rows = planned(self._files.rows(), never, time.time_ns(), nodes=1)
        return [row | {"is_next": False} for row in rows]
