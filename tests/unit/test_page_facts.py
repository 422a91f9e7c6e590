"""What the page shows beside the present: the last ten minutes, the latest events, a calm order."""

import logging
from types import SimpleNamespace

from rt.node.observe.sample import Flow, Hop, SessionView
from rt.node.observe.trend import STEP_S, STEPS, Trend
from rt.position import Position
from rt.traffic import Traffic
from rt.web.nodes.node_overview import troubled_first
from rt.web.serving.recent import KEPT, RecentEvents


def sample(at_s, received, merged=0, sent=0, waiting_s=0.0):
    """A sample of a node that has counted so many bytes."""
    hops = (Hop(Traffic(count, 0)) for count in (received, merged, sent))
    return SimpleNamespace(at_s=at_s, flow=Flow(*hops), waiting_s=waiting_s)


def test_a_step_has_the_average_of_five_seconds_however_often_samples_are_taken():
    """An open page makes samples five times as frequent, and must not change what it shows."""
    trend = Trend(sample(100.0, 0))
    for second in range(1, 11):
        trend.add(sample(100.0 + second, 1000 * second, 500 * second, waiting_s=second / 2))
    fields = trend.fields()
    assert fields == {
        "step_s": STEP_S, "received": [1000, 1000], "merged": [500, 500], "sent": [0, 0],
        "waiting_s": [2.5, 5.0],
    }  # fmt: skip


def test_a_trend_keeps_ten_minutes_and_no_more():
    """Its size is the same after a year."""
    trend = Trend(sample(0.0, 0))
    for step in range(1, 3 * STEPS):
        trend.add(sample(step * STEP_S, step * step))
    assert len(trend.steps) == STEPS
    assert STEPS * STEP_S == 600
    assert trend.steps[-1].received > trend.steps[0].received


def test_a_trend_without_a_step_has_empty_columns():
    """A page may be opened the moment a node starts."""
    assert Trend(sample(0.0, 7)).fields()["received"] == []


def line(level, text, event=""):
    """A log record of ours."""
    record = logging.LogRecord("rt.node", level, __file__, 1, text, (), None)
    record.event = event
    return record


def test_ordinary_lines_push_out_no_warning():
    """The warning of an hour ago is what the operator of a busy node came for."""
    events = RecentEvents()
    events.emit(line(logging.WARNING, "the disk is full"))
    for number in range(3 * KEPT):
        events.emit(line(logging.INFO, f"session s{number} opened"))
    latest = events.latest(2 * KEPT)
    assert latest[-1]["text"] == "the disk is full"
    assert latest[0]["text"] == f"session s{3 * KEPT - 1} opened"
    assert [each["key"] for each in latest] == sorted(
        (each["key"] for each in latest), reverse=True
    )


def test_lines_of_statistics_are_not_events():
    """One a minute would fill the list with figures that the page has already."""
    events = RecentEvents()
    events.emit(line(logging.INFO, "received 10 messages/s", "statistics"))
    assert events.latest(10) == []


def session(name, rate, waiting_s=0.0, last_ns=1):
    """A session with this rate."""
    start = Position(0)
    return SessionView(
        name, "peer", start, start, start, Traffic(0, 0), rate, 1, last_ns, waiting_s
    )


def test_sessions_keep_their_places_while_their_rates_waver():
    """Rows changed places nine times in ten seconds, under the mouse of their reader."""
    first = [session("a", 5000.0, last_ns=1), session("b", 5100.0, last_ns=2), session("c", 40.0)]
    later = [session("a", 5200.0, last_ns=4), session("b", 4900.0, last_ns=3), session("c", 60.0)]
    assert [each.session for each in troubled_first(first)] == ["a", "b", "c"]
    assert [each.session for each in troubled_first(later)] == ["a", "b", "c"]


def test_a_session_that_waits_comes_before_the_busiest():
    """What is in trouble is seen without scrolling."""
    rows = [session("busy", 1e9), session("stuck", 0.0, waiting_s=30.0), session("slow", 3.0)]
    assert [each.session for each in troubled_first(rows)] == ["stuck", "busy", "slow"]
