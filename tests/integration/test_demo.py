"""Demo: what it does to the leader, on a machine that is slower than ours."""

from types import SimpleNamespace

import pytest
from logs import MergedLog

from rt.demo import command as demo
from rt.demo.command import LeaderKiller
from rt.demo.cursor import kill_reader
from rt.errors import RtError
from rt.node.founding.cluster_files import Place


def killer_of(monkeypatch, *answers):
    """Return a killer whose nodes answer so, in turn, and the names of those it kills."""
    killed, left = [], iter(answers)

    def ask(_address, _contexts):
        answer = next(left, None)
        if isinstance(answer, Exception):
            raise answer
        return {"leader": answer}

    monkeypatch.setattr(demo, "ask_status", ask)
    names = ("n1", "n2")
    places = [Place(name, "localhost:7420", f"{name}.toml") for name in names]
    nodes = [SimpleNamespace(kill=lambda name=name: killed.append(name)) for name in names]
    return LeaderKiller(places, nodes, None), killed


def test_the_leader_is_waited_for(monkeypatch):
    """In the middle of an election no node knows one, and a busy node may not answer."""
    killer, killed = killer_of(monkeypatch, None, None, "", OSError(111, "refused"), "n2")
    assert killer.kill() == "n2"
    assert killed == ["n2"]


def test_a_demo_without_a_leader_ends_with_a_sentence(monkeypatch):
    """It is the first thing that anybody runs."""
    monkeypatch.setattr(demo, "_LEADER_S", 0.0)
    killer, killed = killer_of(monkeypatch)
    with pytest.raises(RtError, match="no node leads after 0 s, so none can be killed"):
        killer.kill()
    assert killed == []


def test_a_reader_that_is_killed_is_followed_by_one_that_goes_on(tmp_path):
    """The demo shows it; what it shows must be checked."""
    with MergedLog(str(tmp_path / "flights" / "out")) as log:
        for number in range(300):
            log.merge("jfk", [b"%d" % (10 * number + each) for each in range(10)])
    report = kill_reader(str(tmp_path), "flights")
    assert 0 < report.before <= 3000
    assert 0 <= report.repeated <= report.before
