"""`rt cluster add`, `remove`, `replace` and `move`, as an operator types them."""

import json
import os

import pytest
from archive_cluster import ArchiveCluster
from commands import run
from replicator_host import eventually

from rt.cli.cluster.members import leaves_first
from rt.config.settings import load
from rt.net.authority.certificates import certificate_files, load_certificate
from rt.net.authority.renewal import hosts_of
from rt.node.founding.cluster_files import free_addresses
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings


@pytest.fixture
def cluster(tmp_path):
    """Three nodes that run in this process."""
    with ArchiveCluster(tmp_path / "flights", nodes=3) as cluster:
        yield cluster


def cluster_command(cluster, *arguments):
    """Run `rt cluster` against it."""
    return run("cluster", *arguments, "--config", os.path.join(cluster.root, "clients.toml"))


def start(cluster, name):
    """Start a node from the configuration that was written for it."""
    path = os.path.join(cluster.root, f"{name}.toml")
    cluster.nodes[name] = Node(load(NodeSettings, path, "node", {}, cluster.settings))
    cluster.nodes[name].start()


def test_a_node_is_added_and_another_removed_by_what_the_commands_print(cluster):
    """Each message says what to do next, and a second run goes on where the first one stopped."""
    [address] = free_addresses(1)
    added = cluster_command(cluster, "add", "n4", "--address", address, "--no-wait")
    assert added.exit_code == 0, added.output
    assert f"n4 is a learner at {address}\n" in added.output
    assert "start it on an empty directory" in added.output
    assert f"rt node --config {cluster.root}/n4.toml" in added.output
    assert "voting: n1, n2, n3; learner: n4" in added.output
    assert os.path.exists(certificate_files(os.path.join(cluster.root, "certs"), "n4").key)

    gave_up = cluster_command(cluster, "add", "n4", "--address", address, "--timeout", "2")
    assert gave_up.exit_code == 1
    assert (
        "n4 was not heard lately; is it running?; run the command again to continue"
        in gave_up.output
    )

    start(cluster, "n4")
    voting = cluster_command(cluster, "add", "n4", "--address", address, "--timeout", "60")
    assert voting.exit_code == 0, voting.output
    assert "n4 has caught up and votes" in voting.output
    assert "4 voters survive the loss of 1, as 3 would" in voting.output

    removed = cluster_command(cluster, "remove", "n2", "--json")
    assert removed.exit_code == 0, removed.output
    named = json.loads(removed.stdout)["members"]
    assert [each["name"] for each in named if each["votes"]] == ["n1", "n3", "n4"]
    assert cluster.nodes["n2"].wait(60)
    fewer = cluster_command(cluster, "remove", "n4", "--yes")
    assert (fewer.exit_code, "voting: n1, n3" in fewer.output) == (0, True), fewer.output
    alone = cluster_command(cluster, "remove", "n3")
    assert (alone.exit_code, "n1 is the only node" in alone.output) == (2, True), alone.output


def test_a_dead_node_is_replaced_by_one_command(cluster):
    """The dead one is removed before the new one votes: it only adds to what a majority needs."""
    cluster.stop("n3")
    [address] = free_addresses(1)
    arguments = ("replace", "n3", "n4", "--address", address, "--timeout")
    assert cluster_command(cluster, *arguments, "2").exit_code == 1  # n4 does not run yet
    assert cluster_command(cluster, *arguments, "1").exit_code == 1  # n3 is removed by now
    start(cluster, "n4")
    done = cluster_command(cluster, *arguments, "30")
    assert done.exit_code == 0, done.output
    assert "voting: n1, n2, n4" in done.output
    status = run("status", "--config", os.path.join(cluster.root, "clients.toml"))
    assert "3 of 3 nodes answer, quorum yes" in status.output, "by the list in the file n3 is one"
    assert "?" not in status.output


def test_a_move_sees_to_the_certificate(cluster):
    """The host of the new address has to be in it, or no client would believe the node."""
    moved = cluster_command(cluster, "move", "n3", "--address", "elsewhere:7420")
    assert moved.exit_code == 0, moved.output
    assert "n3 is reached at elsewhere:7420" in moved.output
    files = certificate_files(os.path.join(cluster.root, "certs"), "n3")
    assert "elsewhere" in hosts_of(load_certificate(files.cert))
    told = cluster.nodes["n1"].status
    assert eventually(lambda: told()["addresses"]["n3"] == "elsewhere:7420")  # a follower, maybe


@pytest.mark.parametrize(
    ("others", "live", "first"), [(2, True, False), (2, False, True), (6, True, True)]
)
def test_a_node_leaves_first_if_it_is_dead_or_seven_vote(others, live, first):
    """An eighth may not vote: replacing one of seven ended with a refusal."""
    members = {f"n{number}": {"votes": True, "live": True} for number in range(others)}
    members |= {"old": {"votes": True, "live": live}, "new": {"votes": False, "live": True}}
    assert leaves_first(members, "old") == first
    assert not leaves_first(members, "gone")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("remove", "n9"), 2, "n9 is not a member; the members are n1, n2, n3"),
        (("add", "n2", "--address", "a:1"), 2, "use rt cluster move"),
        (("add", "n4", "--address", "nowhere"), 2, "--address is not an address"),
        (("add", "../n4", "--address", "a:1"), 2, "n4"),
        (("replace", "n3", "n3", "--address", "a:1"), 2, "a name of its own"),
        (("add", "n4"), 2, "--address"),
        (
            ("remove", "n3"),
            2,
            "n1 and n2 are left, and the stream stops if either fails. Use --yes",
        ),
        (("remove", "n3", "--yes", "--identity", "subscriber"), 3, "an operator or a node may"),
    ],
)
def test_a_mistake_changes_nothing(cluster, arguments, code, words):
    """One sentence, and the code for wrong use or for a refusal."""
    made = cluster_command(cluster, *arguments)
    assert (made.exit_code, words in made.output) == (code, True), made.output
    assert cluster.nodes["n1"].status()["members"] == ["n1", "n2", "n3"]
