"""Log agents as publishers: what they are told was taken is there after either side was killed."""

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.gateway_site import Site
from tests.replicator_host import eventually

DEPLOY = os.path.join(os.path.dirname(__file__), "..", "..", "deploy", "agents")
PATIENCE_S = 90
LINES = 400
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A gateway of one node, in processes of their own."""
    made = Site(tmp_path_factory.mktemp("site"), nodes=1)
    with made.children:
        yield made


def configuration(name):
    """Return the text of a configuration."""
    with open(os.path.join(DEPLOY, name), encoding="utf-8") as file:
        return file.read()


@dataclass
class Agent:
    """What an agent without a package here sends, as its documentation has it."""

    config: str
    stream: str
    encode: Callable[[list[dict]], str]
    headers: dict[str, str]
    announces: str  # the line of its configuration that makes it send this


AGENTS = [
    Agent(
        "fluent-bit.yaml", "fluent-bit", json.dumps,
        {"Content_Type": "application/json", "User_Agent": "Fluent-Bit"}, "format: json",
    ),
    Agent(
        "vector.yaml", "vector",
        lambda records: "".join(f"{json.dumps(each)}\n" for each in records),
        {"Content_Type": "application/x-ndjson", "User_Agent": "Vector/0.40.0",
         "Accept_Encoding": "identity"}, "method: newline_delimited",
    ),
]  # fmt: skip


@pytest.mark.parametrize("agent", AGENTS, ids=lambda each: each.stream)
def test_what_an_agent_was_told_was_taken_is_there_after_both_were_killed(site, agent):
    """At least once: an agent forgets what was answered with 2xx, and sends the rest again."""
    assert agent.announces in configuration(agent.config)
    assert "/v1/stream/logs" in configuration(agent.config)
    site.ask_until({200, 201}, "PUT", agent.stream, Content_Type="application/json")
    killer = threading.Thread(target=kill_three_times, args=[site])
    killer.start()
    chunks = [
        [{"log": f"line {10 * chunk + place}", "stream": "stdout"} for place in range(10)]
        for chunk in range(LINES // 10)
    ]
    for number, chunk in enumerate(chunks):
        for _ in range(1 + (number % 7 == 0)):  # it is killed before it has noted the answer
            site.ask_until({200, 204}, "POST", agent.stream, agent.encode(chunk), **agent.headers)
    killer.join()
    lines = [each["log"] for each in site.read(agent.stream)]
    assert set(lines) == {f"line {number}" for number in range(LINES)}
    assert sorted(set(lines), key=lines.index) == [f"line {number}" for number in range(LINES)]


def kill_three_times(site):
    """Kill the gateway and start it again, each time when it answers."""
    for _ in range(3):
        site.ask_until({200, 201, 404}, "HEAD", "none")
        site.kill_gateway()


def test_a_stream_that_was_not_made_refuses_an_agent_in_a_sentence(site):
    """An agent drops what is answered with 404, so its log must say what to do."""
    status, _, body = site.ask("POST", "missing", "[{}]", Content_Type="application/json")
    assert (status, body) == (404, b"there is no such stream; PUT makes one\n")


class SyslogNg:
    """The agent itself, with the configuration of the repository for other places."""

    def __init__(self, top, address):
        self.top = top
        self.log = top / "app.log"
        text = configuration("syslog-ng.conf")
        version = subprocess.run(
            ["syslog-ng", "--version"], check=True, capture_output=True, text=True
        ).stdout
        installed = next(
            line.split(":")[1].strip() for line in version.splitlines() if "Config version" in line
        )
        for ours, theirs in {
            "@version: 3.35": f"@version: {installed}", "/var/log/app/app.log": str(self.log),
            "127.0.0.1:7480": address, "/v1/stream/logs": "/v1/stream/syslog",
            "/var/lib/syslog-ng": str(top), "disk-buf-size(268435456)": "disk-buf-size(1048576)",
            "mem-buf-size(16777216)": "mem-buf-size(163840)",
        }.items():  # fmt: skip
            changed = text.replace(ours, theirs)
            assert changed != text or ours == theirs, ours
            text = changed
        (top / "syslog-ng.conf").write_text(text)
        self.process = None

    def start(self):
        """Start it."""
        top = self.top
        self.process = subprocess.Popen(
            ["syslog-ng", "-F", "--no-caps", "-f", top / "syslog-ng.conf", "-R", top / "persist",
             "-c", top / "control", "--pidfile", top / "pid"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def kill(self):
        """Kill it; in the foreground it has no supervisor."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.mark.skipif(shutil.which("syslog-ng") is None, reason="no syslog-ng is installed")
def test_syslog_ng_loses_no_line_though_it_and_the_gateway_are_killed(site, tmp_path):
    """A real agent, with the configuration that operators copy."""
    site.ask_until({200, 201}, "PUT", "syslog", Content_Type="application/json")
    agent = SyslogNg(tmp_path, site.listen)
    agent.log.touch()
    agent.start()
    try:
        for part in range(4):
            with open(agent.log, "a", encoding="ascii") as file:
                first = part * (LINES // 4)
                file.writelines(f"line {first + number}\n" for number in range(LINES // 4))
            assert eventually(lambda: site.read("syslog"), PATIENCE_S)
            (site.kill_gateway if part % 2 else agent.kill)()
            if part % 2 == 0:
                agent.start()
        wanted = {f"line {number}" for number in range(LINES)}

        def has_all():
            return {each["message"] for each in site.read("syslog")} == wanted

        assert eventually(has_all, PATIENCE_S)
    finally:
        agent.kill()
