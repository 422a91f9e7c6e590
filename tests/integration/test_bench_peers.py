"""The comparison with other systems counts, waits and compares as it says."""

import json
import time

import pytest

from benchmarks.peers import baseline
from benchmarks.peers.__main__ import SYSTEMS
from benchmarks.peers.cases import PARTS
from benchmarks.peers.measure import Figures, measure
from benchmarks.peers.rt_peer import Rt
from benchmarks.peers.tables import Result, Results
from benchmarks.peers.work import Case, Pace, Tally, chunks, payload


def figures(rate=1000.0, p50_ms=0.0):
    """Return figures of one round."""
    return Figures(rate, p50_ms, p50_ms, p50_ms, 1.0)


def results(ours, theirs):
    """Return the results of one case for rt and a peer."""
    found = Results()
    for system, each in (("rt", ours), ("peer", theirs)):
        found.add(Result("latency", "a case", system, 3, "synced"), each)
    return found


def test_a_pace_sends_everything_and_above_a_thousand_a_second_several_at_once():
    """A sleep for each of 4,000 messages a second would measure the sleeps."""
    slow, quick = Pace(10, 1), Pace(10, 4000)
    assert [slow.take() for _ in range(11)] == [1] * 10 + [0]
    assert [quick.take() for _ in range(4)] == [4, 4, 2, 0]
    assert slow.wait_s() > 0
    assert not slow.is_late


def test_a_publisher_that_falls_behind_is_named():
    """Otherwise a slow client would look like a quick server."""
    pace = Pace(10, 1e6)
    pace.take()
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass
    assert pace.is_late


def test_a_tally_counts_all_and_times_all_but_those_that_warm_up():
    """The first message of a session pays for connections."""
    tally = Tally(3)
    now = time.time_ns()
    assert not tally.take([payload(100, 0)])
    assert tally.take([payload(100, now), payload(100, now)])
    assert len(tally.delays_ns) == 2
    assert min(tally.delays_ns) >= 0


def test_chunks_are_all_messages_of_their_size():
    """A flood that sends fewer would look quicker."""
    assert sum(len(chunk) for chunk in chunks(100, 2500)) == 2500
    assert {len(each) for chunk in chunks(1 << 16, 5) for each in chunk} == {1 << 16}


def test_every_part_has_cases_for_some_system():
    """A part that no system runs would be an empty table."""
    for name, part in PARTS.items():
        cases = list(part.cases(True))
        assert cases
        assert all(case.each * case.sessions > 0 for case in cases), name
        assert any(set(part.nodes) & set(system.nodes_allowed) for system in SYSTEMS)


def test_a_ratio_says_how_much_better_rt_is():
    """Delays and rates must point the same way."""
    assert list(baseline.ratios(results(figures(p50_ms=2), figures(p50_ms=1))).values()) == [0.5]
    assert list(baseline.ratios(results(figures(3000), figures(1000))).values()) == [3]


def test_what_fell_by_more_than_a_fifth_is_named(tmp_path, capsys):
    """The guard must speak up, and keep quiet within noise."""
    path = str(tmp_path / "baseline.json")
    baseline.save(results(figures(p50_ms=1), figures(p50_ms=1)), path)
    assert not baseline.check(results(figures(p50_ms=1.2), figures(p50_ms=1)), path)
    assert "1 ratios compared, 0 fell" in capsys.readouterr().out
    assert baseline.check(results(figures(p50_ms=1.3), figures(p50_ms=1)), path)
    assert "rt to peer: 1.00 before, 0.77 now" in capsys.readouterr().out
    baseline.save(Results(), path)
    assert json.loads((tmp_path / "baseline.json").read_text())["ratios"]


@pytest.mark.process
def test_a_case_runs_on_real_nodes(tmp_path):
    """Two publishers, two subscribers, and everything arrives; of peers only where installed."""
    system = Rt()
    with system.running(str(tmp_path / "run"), 1) as running:
        case = Case("small", 100, 200, rate=500, sessions=2, subscribers=2)
        found = measure(system, running, case)
    assert 0 < found.p50_ms <= found.p99_ms <= found.p999_ms
    assert found.rate > 0
    assert found.cpu_us > 0
