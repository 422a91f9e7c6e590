"""Demo: what it does to the leader, on a machine that is slower than ours."""

from types import SimpleNamespace

import pytest
from logs import MergedLog

from rt.demo.command import kill_leader, leader_of
from rt.demo.cursor import kill_reader
from rt.errors import RtError
from rt.net.authority.certificates import certificate_files
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import Place
from tests.fake_node import FakeNode, closed_place, nodes_certificates


def nodes():
    """Return two nodes, and the names of those that are killed."""
    killed = []
    kills = {name: lambda name=name: killed.append(name) for name in ("n1", "n2")}
    return {name: SimpleNamespace(kill=kill) for name, kill in kills.items()}, killed


def test_the_leader_is_waited_for():
    """In the middle of an election no node knows one, or the one that is named is not ours."""
    answers, (running, killed) = iter(("", "", "n9", "n2")), nodes()
    assert kill_leader(running, lambda: next(answers)) == "n2"
    assert killed == ["n2"]


def test_the_leader_is_asked_of_each_node_until_one_knows_it(tmp_path, client_certificates):
    """A busy node may not answer, and in an election one may not know it."""
    certs = nodes_certificates(tmp_path, client_certificates)
    contexts = Contexts(certificate_files(certs, "subscriber"), client_context)
    one, two = (FakeNode(certs, name, status={"leader": ""}) for name in ("n1", "n2"))
    places = [Place("n", each, "") for each in (closed_place(), one.place, two.place)]
    assert leader_of(places, contexts) == ""
    two.status = {"leader": "n2"}
    assert leader_of(places, contexts) == "n2"
    one.close()
    two.close()


def test_a_demo_without_a_leader_ends_with_a_sentence():
    """It is the first thing that anybody runs."""
    running, killed = nodes()
    with pytest.raises(RtError, match="no node leads after 0 s, so none can be killed"):
        kill_leader(running, lambda: "", 0.0)
    assert killed == []


def test_a_reader_that_is_killed_is_followed_by_one_that_goes_on(tmp_path):
    """The demo shows it; what it shows must be checked."""
    with MergedLog(str(tmp_path / "flights" / "out")) as log:
        for number in range(300):
            log.merge("jfk", [b"%d" % (10 * number + each) for each in range(10)])
    report = kill_reader(str(tmp_path), "flights")
    assert 0 < report.before <= 3000
    assert 0 <= report.repeated <= report.before
