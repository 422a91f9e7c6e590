"""A rolling update: nodes of an earlier commit and of this one form one cluster, both ways."""

import io
import json
import os
import subprocess
import sys
import tarfile
from contextlib import ExitStack, suppress

import pytest

from replicator.push.client import PushClient
from rt.cli.look.node_versions import different_versions, node_version, strangers
from rt.errors import NO_HEADERS, PeerError, Refused
from rt.net.addresses import parse_address
from rt.net.authority.certificates import certificate_files
from rt.net.status import ask_status
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import init_local_cluster
from rt.publisher import Publisher
from rt.subscriber import Subscriber
from sequencer.ledger.format_level import NEWEST
from tests.commands import PATIENCE_S, clean_environment, run
from tests.layout import ROOT
from tests.replicator_host import eventually

pytestmark = pytest.mark.faults

# The last commit whose nodes speak version 7 of the nodes' protocol and no other.
BEFORE = "328eb57dc7ec55cfba63b679735345443ced60c7"
# The last commit whose nodes cannot read headers: version 9.
WITHOUT_HEADERS = "c4a47fc8b5388919e30a64c6ab9c8d3f0b8559eb"
# Of rt 0.1.0: level 10 of the formats, and no levels to be agreed on.
RELEASE_0_1 = "557101feede4a0006cbae8c99dc29d2fd2f1ec19"
PACKAGES = ("rt", "replicator", "sequencer", "archiver")
STREAM = "flights"


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """The packages as they were when nodes spoke version 7."""
    return extracted(BEFORE, tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def without_headers(tmp_path_factory):
    """The packages as they were when no node could read headers."""
    return extracted(WITHOUT_HEADERS, tmp_path_factory.mktemp("without"))


@pytest.fixture(scope="module")
def release_0_1(tmp_path_factory):
    """The packages of rt 0.1.0."""
    return extracted(RELEASE_0_1, tmp_path_factory.mktemp("release"))


def extracted(commit, directory):
    """Write a commit's packages, from the repository's history; skip where it does not reach."""
    found = subprocess.run(
        ["git", "archive", commit, *PACKAGES], cwd=ROOT, capture_output=True, check=False
    )
    if found.returncode:
        pytest.skip(f"commit {commit[:7]} is not in this clone's history; fetch it to run this")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return str(directory)


class Cluster:
    """Three nodes, each a process that runs one of the two versions, and a publisher."""

    def __init__(self, root, undo):
        self.root, self.undo = str(root), undo
        self.places = {each.name: each for each in init_local_cluster(self.root, STREAM, 3)}
        self.running = {}
        self.count = 0
        files = certificate_files(os.path.join(self.root, "certs"), "publisher")
        self.asking = Contexts(files, client_context)
        addresses = [parse_address(each.address) for each in self.places.values()]
        self.addresses, self.contexts = addresses, Contexts(files, client_context)
        push = PushClient(f"{self.root}/pub", STREAM, addresses, self.contexts)
        push.start()
        undo.callback(push.stop)
        self.publisher = undo.enter_context(
            Publisher(f"{self.root}/pub", stream=STREAM, session="jfk")
        )
        undo.callback(self.stop_all)

    def found(self, name, code):
        """Found a node with the packages of a directory, and start it."""
        config = self.places[name].config
        if code == str(ROOT):
            assert run("node", "found", "--config", config).exit_code == 0
        elif os.path.exists(os.path.join(code, "rt/cli/cluster/found.py")):
            command = [sys.executable, "-m", "rt", "node", "found", "--config", config]
            environment = clean_environment() | {"PYTHONPATH": code}
            subprocess.run(command, cwd=code, env=environment, check=True, capture_output=True)
        else:
            self.start(name, code, "--found")
            return
        self.start(name, code)

    def start(self, name, code, *options):
        """Start a node with the packages of a directory."""
        command = [sys.executable, "-m", "rt", "-v", "node", "--config", self.places[name].config]
        with open(f"{self.root}/{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                [*command, *options], cwd=code, stdout=log, stderr=log,
                env=clean_environment() | {"PYTHONPATH": code},
            )  # fmt: skip

    def stop(self, name):
        """Stop a node as a service manager does."""
        process = self.running.pop(name)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0, self.log(name)

    def stop_all(self):
        """Stop every node."""
        for name in list(self.running):
            self.stop(name)

    def log(self, name):
        """What a node has logged."""
        with open(f"{self.root}/{name}.log", encoding="utf-8") as file:
            return file.read()

    def status(self, name):
        """A node's status; {} while it does not answer."""
        try:
            return ask_status(parse_address(self.places[name].address), self.asking)
        except (OSError, PeerError):
            return {}

    def level(self):
        """The level of the cluster's formats."""
        config = f"{self.root}/clients.toml"
        shown = run("cluster", "upgrade", "status", "--json", "--config", config)
        assert shown.exit_code == 0, shown.output
        return json.loads(shown.stdout)

    def finalize(self):
        """Let the cluster use all that this version can read."""

        def is_final():
            config = f"{self.root}/clients.toml"
            shown = run("cluster", "upgrade", "finalize", "--json", "--config", config)
            return shown.exit_code == 0 and json.loads(shown.stdout)["level"] == NEWEST

        assert eventually(is_final, PATIENCE_S), self.level()

    def publish(self):
        """Publish a hundred messages, have them merged, and wait until all nodes have them."""
        self.publisher.publish_many(b"%d" % each for each in range(self.count, self.count + 100))
        self.count += 100
        self.publisher.flush("merged", timeout_s=PATIENCE_S)
        states = {}

        def agree():
            for name in self.places:
                states[name] = self.status(name)
            ends = {(each.get("messages"), each.get("digest")) for each in states.values()}
            return len(ends) == 1 and ends.pop()[0] == self.count

        assert eventually(agree, PATIENCE_S), (states, *map(self.log, self.places))
        return states


def test_each_node_in_turn_is_updated_and_taken_back_while_messages_flow(before, tmp_path):
    """In every mixture they merge the same log, and a node goes back on the same files."""
    now = str(ROOT)
    with ExitStack() as undo:
        cluster = Cluster(tmp_path, undo)
        for name in cluster.places:
            cluster.found(name, before)
        assert not any("speaks" in each for each in cluster.publish().values())
        for name in cluster.places:  # the update
            cluster.stop(name)
            cluster.start(name, now)
            states = cluster.publish()
            versions = {each: node_version(state) for each, state in states.items()}
            assert strangers(versions) == []
            assert bool(different_versions(versions)) == (name != "n3")
        assert "it runs an older version of rt" in cluster.log("n1")
        assert eventually(lambda: protocols(cluster, "n1") == {NEWEST}, PATIENCE_S)
        cluster.publish()
        for name in ("n3", "n2", "n1"):  # and the way back: nothing was written that it cannot read
            cluster.stop(name)
            cluster.start(name, before)
            cluster.publish()
        shown = run("status", "--config", f"{tmp_path}/clients.toml")
        assert shown.exit_code == 0, shown.output


def test_headers_wait_for_the_last_node_and_none_are_taken_before(without_headers, tmp_path):
    """One publisher of a newer version could stop each older node for good."""
    now = str(ROOT)
    with ExitStack() as undo:
        cluster = Cluster(tmp_path, undo)
        for name in cluster.places:
            cluster.found(name, without_headers)
        cluster.publish()
        for name in ("n1", "n2"):
            cluster.stop(name)
            cluster.start(name, now)
            cluster.publish()
        with pytest.raises(Refused, match=r"node n3 runs rt .* reads up to level 9") as caught:
            cluster.publisher.publish(b"no", headers={"a": b"1"})
        assert caught.value.code == NO_HEADERS
        assert "update rt on every node" in str(caught.value)
        # what another program writes all the same is not taken, and no node is harmed by it
        early = Publisher(tmp_path / "elsewhere", stream=STREAM, session="lga")
        undo.callback(early.close)
        early.publish(b"early", headers={"a": b"1"})
        pusher = PushClient(
            str(tmp_path / "elsewhere"), STREAM, cluster.addresses, cluster.contexts
        )
        pusher.start()
        undo.callback(pusher.stop)
        refused = "messages with headers are not taken yet: node n3 runs"
        assert eventually(lambda: refused in early.shipping_note, PATIENCE_S)
        cluster.publish()
        cluster.stop("n3")
        cluster.start("n3", now)
        cluster.publish()
        cluster.finalize()
        early.flush("merged", timeout_s=PATIENCE_S)

        def publish():
            with suppress(Refused):
                return cluster.publisher.publish(b"yes", headers={"b": b"2"})
            return None

        assert eventually(lambda: publish() is not None, PATIENCE_S)
        cluster.count += 2
        cluster.publish()
        cluster.stop("n2")  # what was agreed on needs no node that is down
        cluster.stop("n1")
        cluster.start("n1", now)
        cluster.publisher.publish(b"again", headers={"b": b"3"})
        cluster.publisher.flush("merged", timeout_s=PATIENCE_S)
        with Subscriber(f"{tmp_path}/n3", stream=STREAM, follow=False) as reader:
            found = [message.headers for message in reader if message.headers]
        assert found == [{"a": b"1"}, {"b": b"2"}, {"b": b"3"}]


def test_an_update_is_undone_until_it_is_finalized_and_not_after_that(release_0_1, tmp_path):
    """Nodes of the release before read all that was written, however long the update takes."""
    now = str(ROOT)
    with ExitStack() as undo:
        cluster = Cluster(tmp_path, undo)
        for name in cluster.places:
            cluster.found(name, release_0_1)
        cluster.publish()
        for code in (now, release_0_1, now):  # there, back again, and there for good
            for name in cluster.places:
                cluster.stop(name)
                cluster.start(name, code)
                cluster.publish()
                if code == now:
                    sealed = run("cluster", "seal", "--config", f"{tmp_path}/clients.toml")
                    assert sealed.exit_code != 0, name
        level = cluster.level()
        assert (level["level"], level["agreed"]) == (10, None)
        cluster.finalize()
        assert cluster.level()["agreed"]["level"] == NEWEST
        cluster.publish()
        cluster.stop("n3")
        cluster.start("n3", release_0_1)
        refused = "it reads up to level 10 of the cluster's formats, and the cluster has level 12"
        assert eventually(lambda: refused in cluster.log("n3"), PATIENCE_S)
        for name in ("n1", "n2"):
            assert eventually(lambda name=name: refused in cluster.log(name), PATIENCE_S)
        cluster.publisher.publish(b"two nodes are enough")
        cluster.publisher.flush("merged", timeout_s=PATIENCE_S)
        cluster.count += 1
        cluster.stop("n3")
        cluster.start("n3", now)
        cluster.publish()
        for command in ("seal", "unseal"):
            shown = run("cluster", command, "--config", f"{tmp_path}/clients.toml")
            assert shown.exit_code == 0, shown.output


def protocols(cluster, name):
    """Return the versions of the nodes' protocol that a node speaks with those it hears."""
    versions = cluster.status(name).get("peer_versions", {})
    return {each["protocol"] for each in versions.values()} if len(versions) == 2 else set()
