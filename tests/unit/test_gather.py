"""GatherWindow: how long small updates are gathered."""

import pytest

from replicator import gather as gather_module
from replicator.gather import GatherWindow
from rt.position import Position

END = Position(1000)


class Clock:
    """Stands still unless a test moves it."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    """Return the clock that paces read."""
    clock = Clock()
    monkeypatch.setattr(gather_module, "time", clock)
    return clock


def after_rounds(pace, clock, seconds, rounds=100):
    """Let so many sendings take so long each; return the gap."""
    for _ in range(rounds):
        pace.sent("jfk", END)
        clock.now_s += seconds
        pace.merged("jfk", END)
    return pace.gap_s


def test_sendings_are_a_round_apart_and_never_far(clock):
    """What takes long is not sent again meanwhile; a cluster that hangs delays no one for long."""
    assert GatherWindow(3).gap_s == 0.0
    assert after_rounds(GatherWindow(3), clock, 0.002) == pytest.approx(0.002, rel=0.01)
    assert after_rounds(GatherWindow(3), clock, 5.0) == 0.004


def test_a_node_alone_is_sent_all_at_once(clock):
    """There are no others whom each message costs as much."""
    assert after_rounds(GatherWindow(1), clock, 0.002) == 0.0


def test_only_what_was_sent_is_measured(clock):
    """Another session, or bytes before those that were sent, say nothing of them."""
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
    """A session that was refused, or a majority that is away, does not end the measuring."""
    pace = GatherWindow(3)
    pace.sent("jfk", END)
    clock.now_s += 1.1
    assert after_rounds(pace, clock, 0.002) == pytest.approx(0.002, rel=0.01)


def test_a_measurement_that_another_thread_ends_meanwhile_is_no_error(clock):
    """Each node's pusher tells of what was merged, while the look-out sends."""

    class Ended(GatherWindow):
        looks = iter([("jfk", END, clock.now_s)])
        _probe = property(lambda self: next(self.looks, None), lambda *_: None)

    Ended(3).sent("jfk", END)
