"""PeriodicSampler: samples a node regularly, and logs stalls and statistics for operators."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from replicator.serve.client_record import PULLS, PUSHES
from rt.amounts import duration_text, size_text
from rt.errors import RtError
from rt.net.loop.chore import Chore
from rt.net.loop.event_loop import EventLoop
from rt.node.observe.sample import NodeSample
from rt.node.observe.sampler import NodeSampler
from rt.node.observe.stall_clock import LIVE_S, QUIET_S
from rt.node.observe.stall_reasons import names_by_hop, stall_words
from rt.node.observe.trend import Trend
from rt.text import counted

_log: Final = logging.getLogger("rt.node")
STATISTICS_S: Final = 60.0
_WATCHED_S: Final = 10.0  # after the last request for the page


class PeriodicSampler:
    """PeriodicSampler: publishes samples of a node, and logs stalls and a line of statistics.

    Threads:
        Any thread may call `take_sample`; a thread of the pool does so repeatedly. The thread in
        `take_sample` holds `_turn`; it alone uses `sampler`, `_stalled` and `_said`, adds to
        `trend` and replaces `sample`. Any thread may read `sample`, since a sample never changes.
        `pause_s` and `_watched_s` are read before each pause; any thread may set `_watched_s`.
    """

    def __init__(
        self,
        sampler: NodeSampler,
        also: Callable[[], None] = lambda: None,
        *,
        loop: EventLoop,
    ) -> None:
        """Take a first sample; no other is taken before `start`.

        Args:
            sampler: samples the node.
            also: called after each sample, for other work that is due as often.
            loop: the event loop that has samples taken when they are due.
        """
        self._also = also
        self.sample: NodeSample = sampler.sample()
        self.trend = Trend(self.sample)
        self.pause_s = QUIET_S
        self._watched_s = float("-inf")
        self.sampler = sampler
        self._stalled: dict[str, str] = {}  # the logged text of each lasting stall
        self._said: NodeSample = self.sample  # when statistics were last logged
        self._turn = threading.Lock()
        self._chore = Chore(loop, self._look_out)

    def start(self) -> None:
        """Start sampling."""
        self._chore.begin(self._pause_s())

    def stop(self) -> None:
        """Stop sampling; waits for a sample that is being taken. Idempotent."""
        self._chore.stop()

    def watch(self) -> None:
        """Record that someone is watching: for a while, samples are taken once a second."""
        self._watched_s = time.monotonic()

    def _pause_s(self) -> float:
        is_watched = time.monotonic() - self._watched_s < _WATCHED_S
        return min(LIVE_S, self.pause_s) if is_watched else self.pause_s

    def _look_out(self) -> float:
        try:
            self.take_sample()
            self._also()
        # The file system failed, or a file is being replaced. Errors that must stop the node stop
        # it elsewhere.
        except (RtError, OSError) as error:
            _log.warning("the node cannot be looked at: %s", error)
        return self._pause_s()

    def take_sample(self) -> None:
        """Take a sample, and log stalls and statistics."""
        with self._turn:
            sample = self.sample = self.sampler.sample()
            self.trend.add(sample)
            self._tell_stalls(sample)
            if sample.at_s - self._said.at_s >= STATISTICS_S:
                _log.info("%s", statistics(self._said, sample), extra={"event": "statistics"})
                self._said = sample

    def _tell_stalls(self, sample: NodeSample) -> None:
        """Log each hop once when it stalls, and once when it moves again."""
        hops = names_by_hop(sample)
        for hop, names in hops.items():
            if hop not in self._stalled:
                seconds = max(sample.stalled[f"{hop} {name}"] for name in names)
                self._stalled[hop] = words = stall_words(hop, names, sample)
                extra = {"event": "stall", "hop": hop}
                _log.warning("stalled for %s: %s", duration_text(seconds), words, extra=extra)
        for hop in self._stalled.keys() - hops.keys():
            words = self._stalled.pop(hop)
            _log.info("it moves again: %s", words, extra={"event": "moves", "hop": hop})


def statistics(before: NodeSample, now: NodeSample) -> str:
    """Return a log line with the statistics between two samples."""
    seconds = max(1e-3, now.at_s - before.at_s)
    rates = []
    for verb in ("received", "merged", "sent"):
        first, last = getattr(before.flow, verb).total, getattr(now.flow, verb).total
        count = (last.messages - first.messages) / seconds
        size = size_text((last.bytes - first.bytes) / seconds)
        rates.append(f"{verb} {count:,.0f} messages/s, {size}/s")
    return (
        f"{'; '.join(rates)}; {len(now.here(PUSHES))} pushing, {len(now.here(PULLS))} pulling, "
        f"{counted(len(now.sessions), 'session')}; oldest waiting {duration_text(now.waiting_s)}; "
        f"{size_text(now.disk.available)} free"
    )
