"""BridgeSite: what `rt bridge` shows over HTTP."""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client.core import Metric

from rt.amounts import duration_text
from rt.bridge.bridge_watch import BridgeWatch
from rt.net.authority.certificates import CertificateFiles, expires_s
from rt.web.nodes.verdict import DEGRADED, OK
from rt.web.programs.program import ProgramSite, build_info, no_flow_overview, tile
from rt.web.serving.collector import counter, gauge
from rt.web.serving.recent import RecentEvents
from rt.web.serving.site import Fields, SiteHealth

_LATE_S: Final = 60.0


class BridgeSite(ProgramSite):
    """What a bridge shows over HTTP; any thread may call any method."""

    def __init__(
        self, watch: BridgeWatch, streams: tuple[str, str], files: Sequence[CertificateFiles],
        events: RecentEvents,
    ) -> None:  # fmt: skip
        """Show a bridge from one stream to another, and when its certificates expire."""
        super().__init__("bridge", lambda: streams[0])
        self._watch, self._streams, self._files, self._events = watch, streams, files, events
        self._began_ns = time.time_ns()

    def metrics(self) -> Iterable[Metric]:
        """Yield all metrics."""
        lag, bridge = self._watch.lag, self._watch.bridge
        key, label = (self._streams[0],), ("stream",)
        yield build_info("bridge")
        ends = {
            ("own",): min(expires_s(each.cert) for each in self._files),
            ("ca",): min(expires_s(each.ca) for each in self._files),
        }
        words = "When a certificate of this program expires."
        yield gauge("rt_certificate_expiry_timestamp_seconds", words, ends, ("use",))
        yield gauge("rt_bridge_behind_seconds", "The target has what was merged by then.",
                    {key: lag.behind_s(time.time_ns())}, label)  # fmt: skip
        yield gauge("rt_bridge_behind_messages", "What it lacked when the source was last asked.",
                    {key: lag.behind}, label)  # fmt: skip
        yield counter("rt_bridge_forwarded_messages", "Messages forwarded since the start.",
                      {key: bridge.forwarded}, label)  # fmt: skip
        yield counter("rt_bridge_passed_over_messages", "Those not forwarded, as they had been.",
                      {key: bridge.passed_over}, label)  # fmt: skip

    def health(self) -> SiteHealth:
        """Return the bridge's health: ready while it is less than a minute behind."""
        words = self._late()
        return SiteHealth("", (f"behind: {words}",) if words else (), 0.0)

    def status(self) -> list[Fields]:
        """Return how far the bridge has come."""
        lag, bridge = self._watch.lag, self._watch.bridge
        behind_s = lag.behind_s(time.time_ns())
        return [{
            "from": self._streams[0], "to": self._streams[1], "next": bridge.next_number,
            "forwarded": bridge.forwarded, "passed_over": bridge.passed_over,
            "behind_messages": lag.behind, "error": lag.error,
            "behind_s": None if behind_s == float("inf") else round(behind_s, 1),
        }]  # fmt: skip

    def overview(self) -> Fields:
        """Return what the page shows."""
        lag, bridge = self._watch.lag, self._watch.bridge
        source, target = self._streams
        words = self._late()
        level, words = (DEGRADED, f"{words}.") if words else (OK, f"It forwards to {target}.")
        return no_flow_overview("bridge", source, level, words, self._began_ns) | {
            "nodes": [], "events": self._events.latest(60),
            "tiles": [
                tile("Forwarded", f"{bridge.forwarded:,}", "messages since the start",
                     bridge.forwarded),
                tile("Passed over", f"{bridge.passed_over:,}", "which bridges had brought", 0),
                tile("Behind", f"{lag.behind:,}", "messages, at most", 0),
                tile("Next", f"{bridge.next_number:,}", "number in the source", 0),
            ],
        }  # fmt: skip

    def _late(self) -> str:
        """Return a sentence on how far the bridge lags; "" if by less than a minute."""
        lag = self._watch.lag
        behind_s = lag.behind_s(time.time_ns())
        if behind_s < _LATE_S:
            return ""
        known = "" if behind_s == float("inf") else f"It is {duration_text(behind_s)} behind"
        return "; ".join(filter(None, [known, lag.error])) or "It is not known how far it is"
