"""GatherWindow: how long small updates are gathered."""

import pytest

from replicator import gather as gather_module
from replicator.gather import GatherWindow
from rt.position import Position

END = Position(1000)


class Clock:
    """Moves only when a test moves it."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    """Return the clock that gather windows read."""
    clock = Clock()
    monkeypatch.setattr(gather_module, "time", clock)
    return clock


def after_rounds(pace, clock, seconds, rounds=100):
    """Let so many sends take so long each; return the gap."""
    for _ in range(rounds):
        pace.sent("jfk", END)
        clock.now_s += seconds
        pace.merged("jfk", END)
    return pace.gap_s


def test_sends_are_spaced_by_a_round_trip_within_a_bound(clock):
    """Sending faster than nodes merge is wasted; a cluster that hangs must not delay messages."""
    assert GatherWindow(3).gap_s == 0.0
    assert after_rounds(GatherWindow(3), clock, 0.002) == pytest.approx(0.002, rel=0.01)
    assert after_rounds(GatherWindow(3), clock, 5.0) == 0.004


def test_a_single_node_is_sent_everything_at_once(clock):
    """There are no others for which each message has a cost."""
    assert after_rounds(GatherWindow(1), clock, 0.002) == 0.0


def test_only_what_was_sent_is_measured(clock):
    """Another session, or bytes before those that were sent, are no measurement."""
    pace = GatherWindow(3)
    pace.merged("jfk", END)
    pace.sent("jfk", END)
    pace.merged("ewr", END)
    pace.merged("jfk", Position(END - 1))
    assert pace.gap_s == 0.0
    clock.now_s += 0.002
    pace.merged("jfk", END)
    assert pace.gap_s > 0.0


def test_what_is_never_merged_is_given_up(clock):
    """A refused session, or an absent majority, must not stop the measuring."""
    pace = GatherWindow(3)
    pace.sent("jfk", END)
    clock.now_s += 1.1
    assert after_rounds(pace, clock, 0.002) == pytest.approx(0.002, rel=0.01)


def test_a_measurement_that_another_thread_ends_meanwhile_is_not_an_error(clock):
    """Each connection reports what was merged while the watcher sends."""

    class Ended(GatherWindow):
        looks = iter([("jfk", END, clock.now_s)])
        _probe = property(lambda self: next(self.looks, None), lambda *_: None)

    Ended(3).sent("jfk", END)
