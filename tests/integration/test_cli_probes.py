"""`rt status` and `rt check` of nodes that answer over TLS: what is printed, and the exit code."""

import pytest

from rt.cli.look.status_report import Health
from tests.commands import run
from tests.fake_node import FakeNode, closed_place, nodes_certificates
from tests.node_answers import answer


@pytest.fixture
def node(client_certificates, certified, tmp_path):
    """A node whose answers a test chooses."""
    made = FakeNode(nodes_certificates(tmp_path, client_certificates))
    yield made
    made.close()


def test_a_hostile_answer_is_escaped(node):
    """A node's certificate does not make its text safe."""
    node.status = answer("n1", refusal="x\x1b[2J\nn2  healthy", stream="a\x9bb")
    for options in ([], ["--json"]):
        done = run("status", "--nodes", node.place, *options)
        assert done.exit_code == Health.DEGRADED
        assert not {"\x1b", "\x9b"} & set(done.output)
        assert "\nn2  healthy" not in done.output


@pytest.mark.parametrize(
    ("found", "code"), [(None, 3), ([1], 3), ({"node": 5}, 3), (answer("n1"), 0)]
)
def test_the_exit_code_is_for_probes(node, found, code):
    """It was 0 when quorum was lost."""
    node.status = found
    done = run("status", "--nodes", closed_place() if found is None else node.place)
    assert done.exit_code == code
    assert ("no node answers" in done.stderr) == (code == 3)


def test_a_check_prints_its_level_and_ends_with_its_code(node):
    """A monitoring system reads the one, and shows the other."""
    node.status = answer("n1", sessions=[], certificate_days=30.0)
    done = run("check", "--nodes", node.place)
    assert (done.exit_code, done.stdout.count("\n")) == (0, 1)
    assert done.stdout.startswith("RT OK: stream flights, 1 of 3 nodes answer, n1 leads | ")
    node.status = answer("n1", sessions=[], certificate_days=1.0)
    done = run("check", "--nodes", node.place)
    assert (done.exit_code, done.stdout.split(":")[0]) == (2, "RT CRITICAL")
    done = run("check", "--nodes", node.place, "--days-warning", "0.5", "--days-critical", "0.1")
    assert done.exit_code == 0
