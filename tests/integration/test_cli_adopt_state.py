"""`rt node adopt-state`: a directory that was moved is used again, and a copy of one is not."""

import os
import shutil
from contextlib import closing

import pytest

from rt.config.settings import load
from rt.errors import Refused
from rt.node.host.state import open_state
from rt.node.resources.node_directory import NodeDirectory
from rt.node.settings.node import NodeSettings
from tests.commands import run
from tests.fake_node import FakeNode

CONFIG = "c/n1.toml"
STATE = "c/n1/s/state"
COMMAND = ("node", "adopt-state", "--config", CONFIG)


def settings():
    """Return those of the first node."""
    return load(NodeSettings, CONFIG, "node")


def open_once(*, founding=False):
    """Open the state as a node does at its start."""
    with closing(NodeDirectory(settings())) as directory:
        open_state(directory.disk, settings(), directory.path, founding=founding).journal.close()


def demand_refusal():
    """Check that the node does not start on its directory, and says what to do."""
    with pytest.raises(Refused, match="run `rt node adopt-state`"):
        open_once()


@pytest.fixture
def moved(tmp_path, monkeypatch):
    """A node whose state was moved to another disk, so that it has another inode."""
    monkeypatch.chdir(tmp_path)
    assert run("cluster", "init", "c", "--stream", "s", "--nodes", "3").exit_code == 0
    open_once(founding=True)
    shutil.copytree(STATE, "moved")
    shutil.rmtree(STATE)
    os.rename("moved", STATE)
    demand_refusal()


def test_a_directory_that_was_moved_is_used_again(moved):
    """A cluster whose volumes all moved was dead with its data intact."""
    adopted = run(*COMMAND, "--original-is-gone")
    assert adopted.exit_code == 0
    assert "can be used here now" in adopted.stdout
    open_once()
    again = run(*COMMAND, "--original-is-gone")
    assert "was in its place already" in again.stdout


def test_it_is_not_adopted_without_saying_that_the_original_is_gone(moved):
    """Two nodes with one vote break every promise."""
    refused = run(*COMMAND)
    assert refused.exit_code == 2
    assert "would vote twice" in refused.stderr
    demand_refusal()


def test_it_is_not_adopted_while_the_node_runs_elsewhere(moved):
    """The original is not gone: it answers at the node's address."""
    own = settings()
    host, port = own.addresses[own.name]
    original = FakeNode("c/certs", status={"node": "n1"}, stream="s", address=(host, port))
    with closing(original):
        refused = run(*COMMAND, "--original-is-gone")
    assert refused.exit_code != 0
    assert "node n1 answers at localhost:" in refused.stderr
    demand_refusal()


def test_it_is_not_adopted_for_another_node_nor_while_one_runs_on_it(moved):
    """A mistyped name must not give a node the votes of another one."""
    swapped = run("node", "adopt-state", "--config", "c/n2.toml", "--root", "c/n1",
                  "--original-is-gone")  # fmt: skip
    assert swapped.exit_code != 0
    assert "belongs to node 'n1', this is 'n2'" in swapped.stderr
    assert run(*COMMAND, "--original-is-gone").exit_code == 0
    with closing(NodeDirectory(settings())):  # as a running node
        refused = run(*COMMAND, "--original-is-gone")
    assert refused.exit_code == 2
    assert "has a running node" in refused.stderr


def test_a_directory_that_is_not_there_is_not_made(tmp_path):
    """A mistyped path would leave an empty node's directory."""
    refused = run("node", "adopt-state", "--root", str(tmp_path / "nowhere"), "--original-is-gone")
    assert refused.exit_code == 2
    assert "does not exist" in refused.stderr
    assert not (tmp_path / "nowhere").exists()
