"""`rt up`: a cluster that outlives its nodes, and can be told to lose one."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import tomllib

import pytest

from rt.cli.cluster.up import up as up_command
from rt.cli.cluster.up_control import ControlRequest, ControlServer, ask_cluster
from rt.cli.common import exits
from rt.errors import Misuse, RtError
from rt.log.files.lock import take_lock
from rt.node.founding.cluster_files import init_local_cluster
from tests.commands import PATIENCE_S, finish, run, start
from tests.replicator_host import eventually


class Cluster:
    """A running `rt up`, and what it says."""

    def __init__(self, root, nodes):
        """Start it; return when its nodes serve."""
        self.root = root
        self.heard = []  # all lines of its stderr that were read
        self.process = start("up", "--nodes", nodes, "--root", root)
        first = self.process.stdout.readline()
        assert b"up for stream" in first, self.process.stderr.read()

    def status(self):
        """Return what each node answers, and the exit code."""
        done = run("status", "--config", self.root / "clients.toml", "--json")
        return json.loads(done.stdout), done.exit_code

    def roles(self):
        """Return the role of each node that answers."""
        return {each["node"]: each["role"] for each in self.status()[0] if "node" in each}

    def leader(self):
        """Return the leader, once there is one."""
        found = []

        def is_known():
            found[:] = [name for name, role in self.roles().items() if role == "leader"]
            return found

        assert eventually(is_known, PATIENCE_S)
        return found[0]

    def start(self, name):
        """Start a node, as its operator does; return once nothing is degraded."""
        started = run("up", "--root", self.root, "--start", name)
        assert started.stdout == f"{name} was started; 3 of 3 nodes running\n"
        assert self.said() == f"rt: {name} was started; 3 of 3 nodes running\n"
        assert eventually(lambda: self.status()[1] == 0, PATIENCE_S)

    def said(self):
        """Return its next line on stderr that is its own, and not a node's."""
        for line in iter(self.process.stderr.readline, b""):
            self.heard.append(line.decode())
            if line.startswith(b"rt: "):
                return line.decode()
        return ""

    def stop(self):
        """End it in order; return the exit code and what else it said."""
        self.process.send_signal(signal.SIGTERM)
        code, _, said = finish(self.process)
        return code, said


@pytest.fixture
def cluster(tmp_path):
    """Return a function that starts a cluster, which ends with the test."""
    made = []

    def begin(nodes):
        if not made:  # here, so that this process reserves the ports while the cluster is down
            init_local_cluster(str(tmp_path / "up"), "stream", nodes)
        made.append(Cluster(tmp_path / "up", nodes))
        return made[-1]

    yield begin
    for each in made:  # what is printed is shown if the test has failed
        print(*each.heard, sep="")
        if each.process.poll() is None:
            print(run("status", "--config", each.root / "clients.toml").output)
        each.process.kill()
        each.process.communicate()


@pytest.mark.process
def test_a_failover_can_be_tried_by_hand(cluster):
    """The tool made for trying things out ended as a whole when one of its nodes did."""
    up = cluster(3)
    first = up.leader()
    killed = run("up", "--root", up.root, "--kill", first)
    assert killed.exit_code == 0
    assert killed.stdout.startswith(f"{first} was killed; 2 of 3 nodes running; start it again")
    assert up.said().startswith(f"rt: {first} was killed")
    assert eventually(lambda: up.status()[1] == exits.FOUND_WRONG, PATIENCE_S)  # degraded
    assert up.leader() != first
    warned = f"WARNING sequencer.peers: node {first}: "  # others may come before, as of an election
    assert any(warned in each.decode() for each in iter(up.process.stderr.readline, b""))
    again = run("up", "--root", up.root, "--kill", first)
    assert (again.exit_code, "is not running" in again.stderr) == (exits.BAD_USE, True)
    up.start(first)
    twice = run("up", "--root", up.root, "--start", first)
    assert twice.stderr == f"rt: {first} is running already\n"
    unknown = run("up", "--root", up.root, "--kill", "n9")
    assert "has no node 'n9'; it has n1, n2, n3" in unknown.stderr

    # One that dies is named, and no line that it had logged is taken for the reason.
    os.kill(children(up.process.pid)[-1], signal.SIGKILL)
    ended = "was ended by SIGKILL; 2 of 3 nodes running; start it again with rt up --root"
    said = up.said()
    dead = re.match(rf"rt: (n\d) {ended}", said)
    assert dead, said
    assert up.process.poll() is None
    assert eventually(lambda: up.status()[1] == exits.FOUND_WRONG, PATIENCE_S)

    # One that was emptied, as the runbook advises, copies the others instead of being founded.
    shutil.rmtree(up.root / dead[1])
    up.start(dead[1])
    assert "identity.disowned" not in os.listdir(up.root / dead[1] / "stream" / "state")
    code, said = up.stop()
    assert (code, "ended with" in said) == (0, False)
    assert not {"up.request", "up.answer"} & set(os.listdir(up.root))


@pytest.mark.process
def test_a_node_is_added_to_a_running_cluster_and_removed(cluster):
    """How a cluster grows and shrinks can be tried; a node that was removed was still counted."""
    up = cluster(3)
    up.leader()
    added = run("up", "--root", up.root, "--add")
    assert (added.exit_code, "voting: n1, n2, n3, n4\n" in added.stdout) == (0, True)
    assert "n4 was started; 4 of 4 nodes running" in added.stdout
    assert "rt node --config" not in added.output, "it is started here, and needs no advice"
    clients = up.root / "clients.toml"
    assert len(tomllib.loads(clients.read_text())["pull"]["nodes"]) == 4
    assert up.said() == "rt: n4 was started; 4 of 4 nodes running\n"
    killed = run("up", "--root", up.root, "--kill", "n4")
    assert killed.stdout.startswith("n4 was killed; 3 of 4 nodes running")
    started = run("up", "--root", up.root, "--start", "n4")
    assert started.stdout == "n4 was started; 4 of 4 nodes running\n"
    assert up.said().startswith("rt: n4 was killed")
    assert up.said() == "rt: n4 was started; 4 of 4 nodes running\n"
    assert eventually(lambda: up.status()[1] == 0, PATIENCE_S)  # one that is away is not told

    removed = run("cluster", "remove", "n4", "--config", clients, "--timeout", str(PATIENCE_S))
    assert (removed.exit_code, removed.stderr) == (0, "")
    assert removed.stdout.startswith("n4 is no longer a member;")
    assert "voting: n1, n2, n3\n" in removed.stdout
    assert up.said() == "rt: n4 was removed from the cluster, and has ended; 3 of 3 nodes running\n"
    refused = run("up", "--root", up.root, "--start", "n4")
    assert (refused.exit_code, "has no node 'n4'" in refused.stderr) == (exits.BAD_USE, True)
    assert up.stop()[0] == 0
    again = cluster(3)
    assert again.said() == "rt: removed from the cluster, and left out: n4\n"
    again.leader()
    assert again.stop()[0] == 0


@pytest.mark.process
def test_a_cluster_whose_last_node_dies_ends_with_the_reason(cluster):
    """There is nothing left to run."""
    up = cluster(1)
    os.kill(children(up.process.pid)[-1], signal.SIGKILL)
    code, _, said = finish(up.process)
    assert code == exits.DISK_FAILED
    assert "n1 was ended by SIGKILL" in said
    assert said.endswith("no node is left\n")


def children(pid):
    """Return the children of a process."""
    told = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=True
    )
    return [int(each) for each in told.stdout.split()]


def test_pages_without_their_packages_are_refused_before_a_cluster_is_made(tmp_path, monkeypatch):
    """It told where the pages were, and then each node ended for want of a package."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    root = tmp_path / "up"
    with pytest.raises(Misuse, match=r"pip install '\.\[http\]'"):
        up_command.main(["--root", str(root), "--http", "127.0.0.1:9420"], standalone_mode=False)
    assert not root.exists()


def test_a_page_whose_port_is_in_use_is_refused_before_a_cluster_is_made(tmp_path):
    """It was announced, and its node ended."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        outcome = run("up", "--nodes", 1, "--root", tmp_path / "up", "--http", f"127.0.0.1:{port}")
    assert outcome.exit_code == exits.DISK_FAILED
    assert outcome.stderr == f"rt: cannot listen at 127.0.0.1:{port}: address already in use\n"
    assert not (tmp_path / "up").exists()


def test_nothing_is_asked_of_a_cluster_that_is_not_running(tmp_path):
    """A leftover request would be obeyed by the next cluster."""
    for root in (tmp_path, tmp_path / "nowhere"):
        done = run("up", "--root", root, "--kill", "n1")
        assert done.exit_code == exits.BAD_USE
        assert f"no cluster is running in {root}" in done.stderr
    assert run("up", "--kill", "n1", "--start", "n1").exit_code == exits.BAD_USE
    assert not (tmp_path / "up.request").exists()


@pytest.mark.parametrize(
    ("outcome", "kind"), [("done", None), (Misuse("no"), Misuse), (RtError("broken"), RtError)]
)
def test_a_request_and_its_answer_pass_through_the_directory(tmp_path, outcome, kind):
    """Files work wherever the cluster's directory is, however long its path."""
    fd, asked = take_lock(str(tmp_path), "taken"), []
    ready, stopping = threading.Event(), threading.Event()

    def obey(request):
        asked.append(request)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def serve():
        with ControlServer(str(tmp_path)) as server:
            ready.set()
            while not stopping.wait(0.01):
                server.serve(obey)

    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        if kind is None:
            assert ask_cluster(str(tmp_path), ControlRequest("kill", "n2")) == "done"
        else:
            with pytest.raises(kind, match=str(outcome)):
                ask_cluster(str(tmp_path), ControlRequest("kill", "n2"))
    finally:
        stopping.set()
        thread.join()
        os.close(fd)
    assert asked == [ControlRequest("kill", "n2")]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 60_000])
def test_an_unreadable_request_stops_nothing(tmp_path, content):
    """Whatever lies in the directory, the nodes go on."""
    (tmp_path / "up.request").write_bytes(content)
    server = ControlServer(str(tmp_path))
    obeyed = []
    server.serve(obeyed.append)
    assert not obeyed
