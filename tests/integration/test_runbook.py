"""The runbook's commands run as they are written: they are copied when something is broken."""

import os
import re
import shlex
import subprocess
import time

import pytest
from commands import clean_environment, run, start

from rt.node.founding.cluster_files import free_addresses
from rt.publisher import Publisher

pytestmark = pytest.mark.process
RUNBOOK = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "docs", "RUNBOOK.md"
)
PATIENCE_S = 60


class Site:
    """A directory with a cluster whose nodes are processes; runs what the runbook says."""

    def __init__(self, directory):
        """Found a cluster of three; the addresses of the runbook are free ones here."""
        self.directory = str(directory)
        self.environment = clean_environment() | {"RT_CONFIG": "flights/clients.toml"}
        free = [*free_addresses(5), *free_addresses(3)]
        self.places = {f"localhost:{7420 + number}": place for number, place in enumerate(free)}
        self.nodes = {}
        first = list(self.places.values())[:3]
        addresses = [word for address in first for word in ("--address", address)]
        clients = ["--publisher", "jfk", "--subscriber", "spark"]
        self.command(
            "rt", "cluster", "init", "flights", "--stream", "flights", *clients, *addresses
        )
        for number in (1, 2, 3):
            self.command("rt", "node", "found", "--config", f"flights/n{number}.toml")
            self.node(f"flights/n{number}.toml")

    def node(self, config, *more):
        """Start a node, in place of one of its name that runs."""
        self.stop(config)
        self.nodes[config] = start(
            "node", "--config", config, *more, cwd=self.directory, stderr=subprocess.DEVNULL
        )
        assert b"serves" in self.nodes[config].stdout.readline()

    def stop(self, config):
        """Stop a node, if it runs."""
        process = self.nodes.pop(config, None)
        if process is not None:
            process.kill()
            process.communicate(timeout=PATIENCE_S)

    def command(self, *words):
        """Run one command to its end: `rt` in this process, what a shell has in its own."""
        if words[0] == "rt":
            done = run(*words[1:], env={"RT_CONFIG": self.environment["RT_CONFIG"]})
            assert done.exit_code == 0, f"{words}\n{done.output}"
        else:
            subprocess.run(words, cwd=self.directory, timeout=PATIENCE_S, check=True)

    def perform(self, block):
        """Run a block of commands, line by line; a node keeps running."""
        block = re.sub(r"localhost:742\d", lambda found: self.places[found[0]], block)
        for line in block.splitlines():
            words = shlex.split(line)
            if words[:3] == ["rt", "node", "--config"]:
                self.node(*words[words.index("--config") + 1 :])
            elif words[:2] == ["rt", "pull"] and words[-1] == "--standby":
                self.nodes["standby"] = start(
                    *words[1:], cwd=self.directory, env=self.environment,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
            elif words[:3] == ["rt", "standby", "status"]:
                self.wait_until_done(words)
            elif words == ["rt", "status"]:
                self.wait_until_healthy()
            else:
                self.command(*words)

    def wait_until_healthy(self):
        """Wait until `rt status` says that a majority works; nodes that have gone do not answer."""
        clients = os.path.join(self.directory, "flights", "clients.toml")
        nodes = [word for place in [*self.places.values()][:5] for word in ("--nodes", place)]
        end = time.monotonic() + PATIENCE_S
        while True:
            shown = run("status", "--config", clients, *nodes, env={"RT_CONFIG": ""}).output
            if "3 of 3 nodes answer, quorum yes" in shown and "copying" not in shown:
                return
            assert time.monotonic() < end, shown
            time.sleep(0.2)

    def wait_until_done(self, words):
        """Repeat a command until it succeeds: what it looks at has just been started."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.command(*words)
                return
            except AssertionError:
                assert time.monotonic() < end
                time.sleep(0.2)

    def close(self):
        """Stop all nodes."""
        for config in list(self.nodes):
            self.stop(config)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A cluster that has merged something; its commands run where it is."""
    monkeypatch.chdir(tmp_path)
    site = Site(tmp_path)
    try:
        with Publisher(str(tmp_path / "rt-data"), stream="flights", session="jfk") as publisher:
            publisher.publish_many([b"AA1 departed"] * 1000)
        site.command("rt", "push", "--drain", "--root", "rt-data")
        yield site
    finally:
        site.close()


def blocks():
    """Return the blocks of commands, in order, by the heading above them."""
    with open(RUNBOOK, encoding="utf-8") as file:
        sections = re.split(r"^## ", file.read(), flags=re.MULTILINE)[1:]
    return [
        (section.splitlines()[0], block)
        for section in sections
        for block in re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    ]


SITES = ("A site is changed on purpose, or comes back", "A site is lost")


def test_the_blocks_about_a_second_site_run_and_it_goes_on(site):
    """A planned change is rehearsed by what is written, and done at night by the same."""
    mine = [(heading, block) for heading, block in blocks() if heading in SITES]
    assert len(mine) == 7
    stops = {
        "flights-c --root": ["standby", *(f"flights-b/n{n}.toml" for n in (4, 5, 6))],
        "standby rejoin --root standby": [f"flights/n{n}.toml" for n in (1, 2, 3)],
    }
    for _, block in mine[:2]:
        site.perform(block)
    names = sorted(name for name in site.nodes if name.startswith("flights-b"))
    assert names == ["flights-b/n4.toml", "flights-b/n5.toml", "flights-b/n6.toml"]
    assert os.path.exists(os.path.join(site.directory, "copied", "flights", "out", "log.0.0"))
    for _, block in mine[2:]:
        for words, names in stops.items():
            for name in names if words in block and "dry-run" not in block else ():
                site.stop(name)
        site.perform(block)


def test_each_block_of_the_runbook_runs_and_leaves_a_healthy_cluster(site):
    """In this order, as an operator would meet them: one loss after the other, then most."""
    stops = {
        "Replace a lost node: it is dead, and another machine takes its place": ["n3"],
        "A disk is new, a directory was lost, or a node says FORKED": ["n2"],
        "A node gets another address": ["n2"],
        "The majority is lost for good": ["n1", "n2"],
    }
    every = [(heading, block) for heading, block in blocks() if heading not in SITES]
    headings = [heading for heading, _ in every]
    assert len(headings) == 8
    assert set(stops) <= set(headings)
    done = set()
    for heading, block in every:
        for name in stops.get(heading, ()) if heading not in done else ():
            site.stop(f"flights/{name}.toml")
        done.add(heading)
        site.perform(block)
    assert os.path.exists(os.path.join(site.directory, "saved", "flights", "out", "log.0.0"))
    assert os.path.exists(os.path.join(site.directory, "copied", "flights", "out", "log.0.0"))
