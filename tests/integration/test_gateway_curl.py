"""The curl lines of the guide, run one by one against a gateway."""

import json
import os
import re
import shutil
import subprocess

import pytest
from archive_cluster import ArchiveCluster
from replicator_host import eventually

from rt.client.client import connect
from rt.gateway.gateway import Gateway
from rt.gateway.settings import GatewaySettings
from rt.net.admin import AdminClient

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("curl") is None, reason="no curl is installed"),
]
GUIDE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "GUIDE.md")
EVENT = 'event: data\ndata:[{"gate": 7},{"gate": 8}]\n'
TIMED_OUT = 28  # what curl says of a stream of events that it was told to leave


def lines_of_the_guide():
    """Return the shell lines of the chapter, with those that go on joined."""
    with open(GUIDE, encoding="utf-8") as file:
        chapter = file.read().partition("\n## From another language\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", chapter, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [each for each in lines if not each.startswith("rt gateway")]


class Shell:
    """Runs lines with a gateway's address in place of the guide's; none waits for news."""

    def __init__(self, address):
        self.address, self.names = address, dict(os.environ)

    def ran(self, line):
        """Run a line; return whether it was answered without an error, and what it printed."""
        waits = "live=" in line or "wait=" in line
        limit_s = 2 if waits else 60
        line = line.replace("127.0.0.1:7480", self.address)
        line = line.replace("curl ", f"curl -fsS -m {limit_s} ")
        done = subprocess.run(
            ["bash", "-c", line], check=False, capture_output=True, text=True, env=self.names,
            timeout=120,
        )  # fmt: skip
        return done.returncode == 0 or (waits and done.returncode == TIMED_OUT), done.stdout

    def run(self, line):
        """Run a line that has to succeed; return what it printed."""
        is_answered, printed = self.ran(line)
        assert is_answered, line
        return printed


@pytest.fixture
def shell(tmp_path):
    """A shell, and a gateway for everyone on this machine."""
    with ArchiveCluster(tmp_path / "cluster") as cluster:
        nodes = AdminClient(cluster.addresses, cluster.contexts("subscriber"), keep=True)
        settings, root = GatewaySettings("127.0.0.1:0", append=True), str(tmp_path / "edge")
        client = connect(f"{cluster.root}/clients.toml", root=root)
        with Gateway(settings, client, root, nodes) as gateway:
            yield Shell(gateway.url.split("/")[2])


def test_each_curl_line_of_the_guide_does_what_it_says(shell):
    """A line that a newcomer copies and that fails is the last one that is copied."""
    printed = {}
    for line in lines_of_the_guide():
        if name := re.match(r"([A-Z]+)=(\S+)$", line):
            shell.names[name[1]] = name[2].replace("127.0.0.1:7480", shell.address)
            continue
        if not printed:  # nodes that have just started may need seconds to agree on headers
            assert eventually(lambda line=line: shell.ran(line)[0], 60)
        printed[line] = shell.run(line)
        if "live=sse" in line:  # it is left after 2 s, whatever it has sent by then
            assert eventually(lambda line=line: EVENT in shell.run(line), 60)
            continue
        if "/v1/cursors/etl?from" in line:
            taken = json.loads(printed[line])
            shell.names |= {"EPOCH": str(taken["epoch"]), "NEXT": taken["position"]}

    def said(part):
        [found] = [text for line, text in printed.items() if part in line]
        return found

    assert len(printed) == 9
    assert said('?offset=-1" ') == '[{"gate": 7},{"gate": 8}]'
    [append] = [line for line in printed if "Producer-Seq" in line]
    shell.run(append)  # once more
    ending = shell.run('curl "$GATES?offset=-1"')
    assert ending == '[{"gate": 7},{"gate": 8},{"gate": 9}]'
