"""Trend: a node's traffic in each step of the last ten minutes, for the page."""

from typing import Any, Final, NamedTuple

from rt.node.observe.sample import Hop, NodeSample

STEP_S: Final = 5.0
STEPS: Final = 120
_SLACK_S: Final = 0.5  # samples come a little early or late


class Step(NamedTuple):
    """Averages over one step; `waiting_s` is the wait of the oldest message as the step ended."""

    received: int  # bytes per second; so are merged and sent
    merged: int
    sent: int
    waiting_s: float


class Trend:
    """Trend: keeps the last `STEPS` steps of a node.

    Threads: one thread at a time calls `add`; any thread may read `steps`, which is replaced whole.
    """

    def __init__(self, first: NodeSample) -> None:
        """Start the first step at the time of the first sample."""
        self._flow, self._at_s = first.flow, first.at_s
        self.steps: tuple[Step, ...] = ()

    def add(self, sample: NodeSample) -> None:
        """Add a newer sample; end the current step if it began about `STEP_S` ago or earlier."""
        seconds = sample.at_s - self._at_s
        if seconds < STEP_S - _SLACK_S:
            return
        before, now = self._flow, sample.flow
        step = Step(
            _rate(before.received, now.received, seconds),
            _rate(before.merged, now.merged, seconds),
            _rate(before.sent, now.sent, seconds),
            round(sample.waiting_s, 1),
        )
        self.steps = (*self.steps, step)[-STEPS:]
        self._flow, self._at_s = now, sample.at_s

    def fields(self) -> dict[str, Any]:
        """Return the steps as columns, oldest first, with the length of a step in seconds."""
        steps = self.steps
        columns = zip(*steps, strict=True) if steps else [()] * len(Step._fields)
        return {"step_s": STEP_S, **dict(zip(Step._fields, map(list, columns), strict=True))}


def _rate(before: Hop, now: Hop, seconds: float) -> int:
    return round((now.total.bytes - before.total.bytes) / seconds)
