"""`rt archive`: what the commands ask of the nodes."""

import json
from contextlib import closing

import pytest

from rt.format.manifest import Archived
from rt.offload.offloaded import offloaded_of, read_offloaded
from rt.position import Position
from tests.commands import run
from tests.fake_node import FakeNode, nodes_certificates
from tests.logs import MergedLog


@pytest.fixture
def node(client_certificates, certified, tmp_path, monkeypatch):
    """A node that records what it is asked."""
    answers = {"offloaded": {}, "plan": {"files": [], "policy": {}}}
    certs = nodes_certificates(tmp_path, client_certificates)
    with closing(FakeNode(certs, answers=answers)) as made:
        monkeypatch.setenv("RT_NODES", made.place)
        yield made


def test_a_plan_for_the_beginning_of_time_is_not_one_for_now(node):
    """0 is a time."""
    for when in ("--at=1970-01-01T00:00:00Z", "--json"):
        assert run("archive", "plan", when).exit_code == 0
    assert [each.get("at_ns") for each in node.requests] == [0, None]
    assert all(each["do"] == "plan" and each["latest"] for each in node.requests)


def test_nodes_learn_that_nothing_waits_any_more(node):
    """That needs no target for copies."""
    assert run("archive", "offload", "--stop").exit_code == 0
    assert [each["text"] for each in node.requests] == [""]


@pytest.mark.parametrize(("by", "code"), [(0, 2), (7, 0)])
def test_nodes_do_not_hear_of_a_copy_that_gave_up_files_by_itself(node, tmp_path, by, code):
    """They would delete the last bytes of these files, which exist nowhere else."""
    out, backup = str(tmp_path / "rt" / "flights" / "out"), str(tmp_path / "backup")
    with MergedLog(out) as log:
        for _ in range(3):
            log.merge("jfk", [b"AA1"])
            log.roll()
        log.appender.archive_all([Archived(Position.of(0, n, 0), 1, "time", by) for n in (0, 1)])
    done = run("archive", "offload", backup, "--dir", out, "--tell")
    assert done.exit_code == code
    note = {"url": backup, "to": "0.3.0", "gaps": [["0.0.0", "0.2.0"]]}
    assert [json.loads(each["text"]) for each in node.requests] == ([note] if by else [])
    assert "except what was archived before it was copied: log.0.0 and 1 more" in done.output
    if not by:
        assert done.stderr.splitlines()[-1] == (
            f"rt: the nodes were not told: {out} archived files by its own rules before they "
            f"were copied (log.0.0 and 1 more); offload them to {backup} from a node's own log, "
            "with --tell"
        )
    assert read_offloaded(out) == offloaded_of(note)
