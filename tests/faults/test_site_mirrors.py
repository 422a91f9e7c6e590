"""Mirrors of a site, as processes: one crosses to the cluster, and another when that is killed."""

import json
import os
import signal

import pytest
from archive_cluster import STREAM, ArchiveCluster
from replicator_host import eventually

from rt import Subscriber
from rt.net.authority.certificates import issue
from rt.net.authority.identity import CertificateRole
from rt.node.founding.cluster_files import free_addresses
from tests.commands import run, start

pytestmark = pytest.mark.faults
PATIENCE_S = 60.0
NAMES = ("m1", "m2", "m3")


class Site:
    """Three mirrors beside a cluster; `stop` ends what is left of them."""

    def __init__(self, cluster, root):
        self.cluster, self.root, self.running = cluster, root, {}
        self.certs = os.path.join(cluster.root, "certs")
        for name in NAMES:
            issue(self.certs, name, CertificateRole.MIRROR, streams=(STREAM,))
        self.addresses = dict(zip(NAMES, free_addresses(len(NAMES)), strict=True))

    def start(self, name):
        """Start a mirror, which knows all of them."""
        nodes = [f"--nodes={host}:{port}" for host, port in self.cluster.addresses]
        site = [f"--site={each}={address}" for each, address in self.addresses.items()]
        command = [
            "pull", "--root", self.copy(name), "--stream", STREAM, "--certs", self.certs,
            "--identity", name, "--standby", "--serve", self.addresses[name], *nodes, *site,
        ]  # fmt: skip
        with open(os.path.join(self.root, f"{name}.log"), "ab") as log:
            self.running[name] = start(*command, stdout=log, stderr=log)

    def kill(self, name):
        """Kill a mirror, as a power cut would."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)

    def stop(self):
        """End all."""
        for name in list(self.running):
            self.kill(name)

    def copy(self, name):
        """Return the directory of a mirror's copy."""
        return os.path.join(self.root, name)

    def crossing(self):
        """Return the mirrors that copy from a node now, by the nodes' own word."""
        return {
            each["peer"]
            for node in self.cluster.nodes.values()
            for each in node.status()["clients"]
            if each["kind"] == "pull" and each["peer"] in NAMES
        }

    def is_complete(self, name):
        """Whether a copy ends where the cluster's log does."""
        end = str(self.cluster.ledger("n1").end)
        shown = run("standby", "status", "--root", self.copy(name), "--stream", STREAM, "--json")
        return shown.exit_code == 0 and json.loads(shown.stdout.split("\n}")[0] + "}")["end"] == end

    def status(self, name):
        """Return what `rt standby status` says of a mirror."""
        shown = run("standby", "status", "--root", self.copy(name), "--stream", STREAM)
        return shown.output

    def payloads(self, name):
        """Return what a copy holds, in order."""
        with Subscriber(self.copy(name), stream=STREAM, follow=False) as subscriber:
            return [bytes(each.payload) for each in subscriber]


@pytest.fixture
def site(tmp_path):
    """A cluster of three nodes, and three mirrors that are not started."""
    with ArchiveCluster(tmp_path / "far", 3, clients=tmp_path / "clients") as cluster:
        site = Site(cluster, str(tmp_path))
        cluster.push()
        yield site
        site.stop()


def test_one_mirror_crosses_and_another_when_it_is_killed_and_none_lacks_a_message(site):
    """The way between two sites is long and paid for; the log goes over it once."""
    publisher, sent = site.cluster.publisher(), []

    def publish(count):
        batch = [b"%d" % number for number in range(len(sent), len(sent) + count)]
        publisher.publish_many(batch)
        publisher.flush("merged", timeout_s=PATIENCE_S)
        sent.extend(batch)

    def all_have_it(names):
        return eventually(lambda: all(map(site.is_complete, names)), PATIENCE_S)

    for name in NAMES:
        site.start(name)
        assert eventually(lambda: os.path.exists(site.copy("m1")), PATIENCE_S)
    publish(500)
    assert all_have_it(NAMES), [site.status(name) for name in NAMES]
    assert eventually(lambda: site.crossing() == {"m1"}, PATIENCE_S), site.crossing()
    near = f"it comes from {site.addresses['m1']}, a mirror of this site"
    assert eventually(lambda: near in site.status("m2"), PATIENCE_S), site.status("m2")
    assert eventually(lambda: near in site.status("m3"), PATIENCE_S), site.status("m3")
    assert "a node of the cluster" in site.status("m1")

    site.kill("m1")
    publish(500)
    assert all_have_it(["m2", "m3"]), [site.status(name) for name in NAMES]
    assert eventually(lambda: site.crossing() == {"m2"}, PATIENCE_S), site.crossing()
    near = f"it comes from {site.addresses['m2']}, a mirror of this site"
    assert eventually(lambda: near in site.status("m3"), PATIENCE_S), site.status("m3")

    site.start("m1")
    publish(500)
    assert all_have_it(NAMES), [site.status(name) for name in NAMES]
    assert eventually(lambda: site.crossing() == {"m1"}, PATIENCE_S), site.crossing()
    publish(10)
    assert all_have_it(NAMES), [site.status(name) for name in NAMES]
    assert [site.payloads(name) == sent for name in NAMES] == [True] * 3


def test_a_mirror_that_is_not_of_the_site_it_names_is_refused(tmp_path):
    """It would not know which of them it follows."""
    shown = run("pull", "--root", tmp_path, "--identity", "m9", "--site", "m1=a:7420", "--standby")
    assert shown.exit_code == 2
    assert "site names m1, and not us: m9" in shown.stderr
