"""Messages of commands while no node answers, and how ctrl-C ends them."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from rt.cli.common.wait_notes import WaitNotes
from rt.net.awaited import awaited, awaiting
from tests.archive_cluster import ArchiveCluster
from tests.replicator_host import eventually

END_S = 60.0


@pytest.fixture(scope="module")
def silent():
    """Return the address of a node that accepts connections and says nothing, as a frozen one."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """Return a directory of certificates."""
    with ArchiveCluster(tmp_path_factory.mktemp("waiting"), 1) as cluster:
        return os.path.join(cluster.root, "certs")


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "waits", "ends"),
    [
        (
            ["pull", "--once", "--identity", "subscriber"],
            "no node is connected: no answer from",
            "which is not everything that was merged",
        ),
        (["status", "--identity", "subscriber"], "waiting for an answer from", "interrupted"),
        (["archive", "plan", "--identity", "n1"], "waiting for an answer from", "interrupted"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_a_command_says_whom_it_waits_for_and_ctrl_c_ends_it(
    silent, certs, tmp_path, arguments, waits, ends
):
    """With frozen nodes there were up to ten seconds of silence, and as many after ctrl-C."""
    command = [*arguments, "--nodes", silent, "--certs", certs, "--stream", "flights"]
    with subprocess.Popen(
        [sys.executable, "-m", "rt", *command], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        watchdog = threading.Timer(END_S, process.kill)
        watchdog.start()
        assert process.stderr is not None
        said = next((line for line in process.stderr if waits in line), "")
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        code = process.wait()
        watchdog.cancel()
    assert silent in said
    assert ends in rest
    assert code == 130


def test_whom_a_command_waits_for_is_said_once():
    """Every quarter of a second would hide what else is said."""
    notes = []
    with WaitNotes(notes.append, long_s=0.0, poll_s=0.001), awaiting(("n1", 7420)):
        assert eventually(lambda: notes)
        with awaiting(("n2", 7420)):
            assert eventually(lambda: len(notes) > 1)
    assert notes[:2] == [
        "waiting for an answer from n1:7420",
        "waiting for an answer from n1:7420, n2:7420",
    ]
    assert not awaited(0.0)
