"""A newcomer's walk: a clone, `rt up`, its page, and a real Prometheus whose rules fire."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.request

import pytest
import yaml

from tests.commands import PATIENCE_S, clean_environment, finish, run, start
from tests.layout import ROOT
from tests.replicator_host import eventually

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (apt install it)"),
]
RULES = "deploy/prometheus/rt-rules.yml"


def free_port(count=1):
    """A port after which so many are free now."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = probe.getsockname()[1]
        if all(is_free(first + each) for each in range(count)):
            return first


def is_free(port):
    """Whether a port can be bound now."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Watched:
    """`rt up` with three pages, and a Prometheus whose rules wait two seconds, not minutes."""

    def __init__(self, root, source):
        self.root, self.source = root, source
        self.page = free_port(3)
        self.up = start("up", "--root", root / "up", "--http", f"127.0.0.1:{self.page}", cwd=source)
        assert b"the page of n1" in self.up.stdout.readline()
        assert eventually(lambda: b"nodes up for" in self.up.stdout.readline(), PATIENCE_S)
        self.port = free_port()
        self.prometheus = self._start()

    def _start(self):
        rules = re.sub(r"for: \d+[ms]", "for: 2s", (self.source / RULES).read_text())
        (self.root / "rules.yml").write_text(rules)
        targets = [f"127.0.0.1:{self.page + each}" for each in range(3)]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "rt", "static_configs": [{"targets": targets}]}],
        }
        (self.root / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [
            PROMETHEUS, f"--config.file={self.root}/prometheus.yml",
            f"--storage.tsdb.path={self.root}/data", f"--web.listen-address=127.0.0.1:{self.port}",
        ]  # fmt: skip
        with open(self.root / "prometheus.log", "wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=clean_environment())

    def ask(self, path):
        """Return what the API of Prometheus answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}") as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def verdict(self, node=1):
        """Return what the page of a node says, and its sentence."""
        page = f"http://127.0.0.1:{self.page + node - 1}"
        with urllib.request.urlopen(f"{page}/overview") as answer:
            found = json.load(answer)["verdict"]
        return found["level"], found["text"]

    def firing(self):
        """Return the alerts that fire."""
        alerts = (self.ask("alerts") or {"alerts": []})["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def evaluated(self):
        """Return when the rules were last evaluated."""
        groups = (self.ask("rules") or {"groups": []})["groups"]
        return [each["lastEvaluation"] for each in groups]

    def healthy(self):
        """Return how many targets are scraped well."""
        targets = (self.ask("targets") or {"activeTargets": []})["activeTargets"]
        return sum(each["health"] == "up" for each in targets)

    def node_id(self, name):
        """Return the process id of a node, which is a child of `rt up`."""
        children = f"/proc/{self.up.pid}/task/{self.up.pid}/children"
        with open(children, encoding="ascii") as file:
            for pid in file.read().split():
                with open(f"/proc/{pid}/cmdline", "rb") as line:
                    if f"{name}.toml".encode() in line.read():
                        return int(pid)
        raise AssertionError(name)

    def stop(self):
        """End both."""
        self.prometheus.kill()
        self.prometheus.wait()
        self.up.send_signal(signal.SIGTERM)
        finish(self.up)


@pytest.fixture
def watched(tmp_path):
    """A cluster from a fresh clone, which has nothing that is not committed, and a Prometheus."""
    source = tmp_path / "clone"
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a clone: an sdist, perhaps")
    subprocess.run(["git", "clone", "-q", ROOT, source], check=True)
    made = Watched(tmp_path, source)
    yield made
    made.stop()


def test_rules_fire_when_a_node_is_killed_a_session_refused_and_a_disk_full(watched):
    """What has never fired on a real failure will not fire on the next one."""
    with open(f"/proc/{watched.node_id('n1')}/cwd/rt/version.py", encoding="utf-8"):
        assert os.readlink(f"/proc/{watched.node_id('n1')}/cwd") == str(watched.source)
    assert eventually(lambda: watched.healthy() == 3, PATIENCE_S)
    assert eventually(lambda: watched.verdict()[0] == "ok", PATIENCE_S), watched.verdict()
    with urllib.request.urlopen(f"http://127.0.0.1:{watched.page}/") as answer:
        assert b"page.js" in answer.read()
    for _ in range(4):  # longer than the rules wait
        last = watched.evaluated()
        assert eventually(lambda last=last: watched.evaluated() != last, PATIENCE_S)
    assert not watched.firing() - {"RtDiskFills"}  # of this machine, for all we know

    publish_without_a_grant(watched)
    assert eventually(lambda: "RtRefused" in watched.firing(), PATIENCE_S)

    config = watched.root / "up/n1.toml"
    config.write_text(config.read_text() + 'reserve = "1000000Ti"\n')
    os.kill(watched.node_id("n1"), signal.SIGHUP)
    assert eventually(lambda: "RtRefusesData" in watched.firing(), PATIENCE_S)

    assert run("up", "--root", watched.root / "up", "--kill", "n3").exit_code == 0
    wanted = {"RtNodeDown", "RtNoSpareNode"}
    assert eventually(lambda: wanted <= watched.firing(), PATIENCE_S), watched.firing()
    assert "RtQuorumLost" not in watched.firing()
    assert eventually(lambda: "without n3" in watched.verdict()[1], PATIENCE_S), watched.verdict()

    assert run("up", "--root", watched.root / "up", "--kill", "n2").exit_code == 0
    assert eventually(lambda: "RtQuorumLost" in watched.firing(), PATIENCE_S), watched.firing()
    assert eventually(lambda: watched.verdict()[0] == "broken", PATIENCE_S), watched.verdict()


def publish_without_a_grant(watched):
    """Push a session that the certificate does not grant."""
    root, certs = watched.root / "pub", watched.root / "up/certs"
    stream = ("--root", root, "--stream", "stream")
    issued = run("certs", "issue", "other", "--dir", certs, "--role", "publisher")
    assert issued.exit_code == 0, issued.output
    process = start("publish", *stream, "--session", "mine", stdin=subprocess.PIPE)
    finish(process, b"one\n")
    with open(watched.root / "up/n1.toml", encoding="utf-8") as file:
        [address] = re.findall(r'listen = "([^"]+)"', file.read())
    pushing = start("push", *stream, "--nodes", address, "--certs", certs, "--identity", "other",
                    "--drain", "--timeout", "5")  # fmt: skip
    assert finish(pushing)[0] != 0
