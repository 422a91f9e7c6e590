"""Services of systemd: the unit that is installed, and what a program tells its service manager."""

import gc
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from rt.cli.process.service_manager import ServiceManager
from rt.config.settings import load
from rt.node.founding.cluster_files import init_cluster
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings
from tests.commands import PATIENCE_S, clean_environment, run

ANALYZE = shutil.which("systemd-analyze")


@pytest.fixture
def cluster(tmp_path):
    """The files of a single node."""
    [place] = init_cluster(str(tmp_path), "flights", ["localhost:0"], publishers=["jfk"])
    return place


@pytest.fixture
def manager(tmp_path):
    """A service manager's socket."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(PATIENCE_S)
        yield Manager(sock, path)


class Manager:
    """Records the notifications that a service manager receives."""

    def __init__(self, sock, path):
        self.sock = sock
        self.environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "400000"}

    def hear(self, word):
        """Wait for a notice that begins so, and return its lines."""
        while True:
            lines = self.sock.recv(4096).decode().split("\n")
            if lines[0] == word:
                return lines


@pytest.mark.process
@pytest.mark.parametrize("kind", ["node", "push", "pull"])
def test_a_program_says_when_it_is_ready_alive_reloading_and_stopping(
    cluster, manager, tmp_path, kind
):
    """Without a word from it a manager kills what starts slowly, and keeps what hangs."""
    config = tmp_path / "c.toml"
    own = f'root = "{tmp_path}/x"\nstream = "flights"\ncerts = "{tmp_path}/certs"\n'
    config.write_text(
        f'[node]\nname = "n1"\nlisten = "127.0.0.1:0"\n{own}'
        f'[push]\nidentity = "jfk"\nnodes = ["localhost:1"]\n{own}'
        f'[pull]\nidentity = "operator"\nnodes = ["localhost:1"]\n{own}'
    )
    if kind == "pull":
        run("certs", "issue", "spark", "--role", "subscriber", "--stream", "flights", "--dir",
            tmp_path / "certs")  # fmt: skip
        config.write_text(config.read_text().replace('"operator"', '"spark"'))
    process = start_managed(manager, kind, config)
    try:
        manager.hear("READY=1")
        manager.hear("WATCHDOG=1")
        manager.hear("WATCHDOG=1")
        process.send_signal(signal.SIGHUP)
        assert manager.hear("RELOADING=1")[1].startswith("MONOTONIC_USEC=")
        manager.hear("READY=1")
        process.terminate()
        manager.hear("STOPPING=1")
        assert process.wait(PATIENCE_S) == 0, process.stderr.read()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def start_managed(manager, kind, config):
    """Start a program as a service manager does."""
    command = [sys.executable, "-m", "rt", kind, "--config", str(config)]
    return subprocess.Popen(
        command, env=clean_environment() | manager.environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


class Quiet:
    """Signals that never come."""

    def take_reload(self):
        """None came."""
        return False


def test_a_program_whose_loop_is_stuck_does_not_feed_the_watchdog(manager):
    """A thread that feeds it by itself would keep a frozen program running."""
    stuck = ["the loop 'merge'"]
    turn = ServiceManager(manager.environment).attend(Quiet(), lambda: None, lambda: "".join(stuck))
    manager.hear("READY=1")
    turn()
    manager.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.sock.recv(4096)
    stuck.clear()
    turn()
    assert manager.sock.recv(4096) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    "environment",
    [
        {}, {"NOTIFY_SOCKET": "/nowhere/at/all"}, {"NOTIFY_SOCKET": "@no-one-listens"},
        {"NOTIFY_SOCKET": "x" * 300, "WATCHDOG_USEC": "never"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"},
    ],
)  # fmt: skip
def test_without_a_manager_that_listens_nothing_is_sent_and_nothing_fails(environment):
    """Most programs run under none."""
    manager = ServiceManager(environment)
    asked = []
    manager.attend(Quiet(), lambda: None, lambda: asked.append("whether it is stuck"))()
    manager.stopping()
    assert not asked


def unit_of(tmp_path, kind, config, *arguments):
    """Return the text of a unit."""
    done = run("service", "install", kind, "--config", config, "--dry-run", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def shared(tmp_path):
    """Return a file with absolute paths for all three."""
    path = tmp_path / "all.toml"
    own = f'root = "{tmp_path}/my data"\nstream = "flights"\ncerts = "{tmp_path}/certs"\n'
    path.write_text("".join(f"[{each}]\n{own}" for each in ("node", "push", "pull")))
    return path


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("kind", ["node", "push", "pull"])
def test_systemd_understands_the_units_and_finds_them_hardened(tmp_path, kind):
    """A key that systemd does not know is ignored, and with it what it was to protect from."""
    (tmp_path / "my data").mkdir()
    rt = tmp_path / "rt"
    rt.write_text("#!/bin/sh\n")
    rt.chmod(0o755)
    unit = tmp_path / f"rt-{kind}.service"
    unit.write_text(unit_of(tmp_path, kind, shared(tmp_path), "--program", rt, "--user", "daemon"))
    done = subprocess.run([ANALYZE, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(
        [ANALYZE, "security", "--offline=yes", "--threshold=25", unit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_a_unit_may_write_to_its_root_only_and_restarts_what_a_restart_can_mend(tmp_path):
    """Damage and misuse would fail again each two seconds, and fill the log."""
    unit = unit_of(tmp_path, "node", shared(tmp_path))
    for line in (
        "Type=notify", "WatchdogSec=60", "ExecReload=/bin/kill -HUP $MAINPID", "User=rt",
        "RestartPreventExitStatus=1 2 3", f'ReadWritePaths="{tmp_path}/my data"',
        "ProtectSystem=strict", "NoNewPrivileges=yes",
    ):  # fmt: skip
        assert line in unit.splitlines()
    assert f" node --config {tmp_path}/all.toml" in unit
    assert "RestartPreventExitStatus=2\n" in unit_of(tmp_path, "push", shared(tmp_path))


def test_a_unit_is_written_once_and_says_what_is_next(tmp_path):
    """A unit that an operator has changed is not written over by accident."""
    arguments = ("service", "install", "node", "--config", shared(tmp_path), "--unit-dir", tmp_path)
    done = run(*arguments)
    path = tmp_path / "rt-node-n1-flights.service"
    assert done.exit_code == 0
    assert path.read_text() == unit_of(tmp_path, "node", shared(tmp_path))
    for step in ("node found --config", "daemon-reload", f"enable --now {path.name}"):
        assert step in done.stdout
    assert run(*arguments).exit_code == 0  # the same again
    path.write_text("[Service]\n")
    refused = run(*arguments)
    assert (refused.exit_code, "give --force" in refused.stderr) == (2, True)
    assert run(*arguments, "--force").exit_code == 0


@pytest.mark.parametrize(
    ("config", "arguments", "words"),
    [
        ('[node]\nroot = "data"\n', (), "absolute paths"),
        ("[node]\nrot = 1\n", (), "did you mean root"),
        ('[node]\nroot = "/x"\ncerts = "/y"\n', ("--user", "a b"), "is not a user's name"),
        ('[node]\nroot = "/x"\ncerts = "/y"\n', ("--program", "rt"), "is not an absolute path"),
        ('[node]\nroot = "/x\\nUser=root"\ncerts = "/y"\n', (), "characters that a unit cannot"),
    ],
)
def test_what_would_not_run_as_a_service_is_refused_now(tmp_path, config, arguments, words):
    """And not when the machine starts at night."""
    path = tmp_path / "n.toml"
    path.write_text(config)
    done = run("service", "install", "node", "--config", path, "--dry-run", *arguments)
    assert (done.exit_code, words in done.stderr) == (2, True), done.output


def test_a_node_that_was_founded_starts_without_found(tmp_path):
    """A service manager always runs the same command."""
    places = init_cluster(
        str(tmp_path), "flights", [f"localhost:{port}" for port in (17420, 17421, 17422)]
    )
    done = run("node", "found", "--config", places[0].config)
    assert (done.exit_code, "node n1 of a new cluster is founded" in done.stdout) == (0, True)
    again = run("node", "found", "--config", places[0].config)
    assert (again.exit_code, "a new cluster starts empty" in again.stderr) == (2, True)
    node = Node(load(NodeSettings, places[0].config, "node", {}, {"listen": "127.0.0.1:0"}))
    node.start()
    try:
        assert node.status()["lost_state"] == ""
        assert node.status()["role"] != "learner"
    finally:
        node.stop()


def test_what_was_made_until_a_program_is_ready_is_collected_no_more():
    """46,000 objects of modules: a full collection stopped a node for 25 ms, to find nothing."""
    gc.unfreeze()  # what another test has left
    try:
        ServiceManager({}).attend(Quiet(), lambda: None, lambda: "")
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
