"""Members of a running cluster are added, replaced, moved and removed, over real connections."""

import os
import shutil
import time
from dataclasses import replace

import pytest

from rt.config.settings import load
from rt.errors import ManifestError, Misuse, Refused
from rt.net.authority.certificates import LOCAL_HOSTS, issue
from rt.net.authority.identity import CertificateRole
from rt.node.founding.cluster_files import free_addresses, init_local_cluster
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings
from tests.archive_cluster import ArchiveCluster


class ChangingCluster(ArchiveCluster):
    """A cluster whose members change; an operator's request is repeated while it has to wait."""

    def change(self, do, name, address=""):
        """Ask for a change until it is made; the answer has the members."""
        request = {"do": do, "name": name, "address": address}
        end = time.monotonic() + 60
        while True:
            try:
                return self.ask(request, "operator")
            except Refused as error:
                waits = {"not-caught-up", "handing-over", "changing", "moving", "undecided"}
                if error.code not in waits or time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def voters(self):
        """The names of the members that vote."""
        answer = self.ask({"do": "members"}, "operator")
        return [each["name"] for each in answer["members"] if each["votes"]]

    def join(self, name, address):
        """Start a node on an empty directory."""
        certs = os.path.join(self.root, "certs")
        if not os.path.exists(os.path.join(certs, f"{name}.pem")):
            issue(certs, name, CertificateRole.NODE, hosts=LOCAL_HOSTS)
        members = self.ask({"do": "members"}, "operator")["members"]
        first = load(NodeSettings, self.places[0].config, "node", {}, self.settings)
        settings = replace(
            first, name=name, listen=address, root=os.path.join(self.root, name),
            members=tuple(f"{each['name']}={each['address']}" for each in members),
        )  # fmt: skip
        self.nodes[name] = Node(settings)
        self.nodes[name].start()

    def wait_for_equal_logs(self):
        """Wait until all nodes that run have merged the same."""
        end = time.monotonic() + 60
        while len({node.status()["digest"] for node in self.nodes.values()}) > 1:
            assert time.monotonic() < end, [node.status() for node in self.nodes.values()]
            time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path):
    """Three nodes that have merged something."""
    with ChangingCluster(tmp_path, nodes=3) as cluster:
        cluster.push()
        publisher = cluster.publisher()
        publisher.publish_many([b"before"] * 2000)
        publisher.flush("merged", timeout_s=60)
        cluster.say = publisher
        yield cluster


def test_a_dead_node_is_replaced_and_the_new_one_counts(cluster):
    """The merged log is copied to the new node; then two of the three may be any two."""
    cluster.stop("n3")
    shutil.rmtree(os.path.join(cluster.root, "n3"))
    [address] = free_addresses(1)
    cluster.change("add-member", "n4", address)
    with pytest.raises(Refused, match="n4 was not heard lately; is it running"):
        cluster.ask({"do": "promote-member", "name": "n4"}, "operator")
    cluster.join("n4", address)
    cluster.change("remove-member", "n3")
    cluster.change("promote-member", "n4")
    assert cluster.voters() == ["n1", "n2", "n4"]
    cluster.say.publish(b"after")
    cluster.say.flush("merged", timeout_s=60)
    cluster.wait_for_equal_logs()
    assert cluster.nodes["n4"].status()["messages"] == 2001


def test_the_leader_is_removed_after_it_has_handed_over(cluster):
    """It ends by itself and its files stay; the others merge on."""
    leader = cluster.nodes["n1"].status()["leader"]
    answer = cluster.change("remove-member", leader)
    assert leader not in [each["name"] for each in answer["members"]]
    assert cluster.nodes[leader].wait(60)
    assert "removed from its cluster" in str(cluster.nodes[leader].failure)
    cluster.stop(leader)
    with pytest.raises(Refused, match="empty its directory"):
        cluster.start(leader)
    cluster.say.publish(b"after")
    cluster.say.flush("merged", timeout_s=60)
    cluster.wait_for_equal_logs()


def test_a_node_moves_and_the_others_find_it_without_a_restart(cluster):
    """Its new address is in the log; what its own file says decides only where it listens."""
    followers = {"n1", "n2", "n3"} - {cluster.nodes["n1"].status()["leader"]}
    name = max(followers)
    cluster.stop(name)
    [address] = free_addresses(1)
    cluster.change("move-member", name, address)
    place = next(each for each in cluster.places if each.name == name)
    settings = load(NodeSettings, place.config, "node", {}, cluster.settings)
    cluster.nodes[name] = Node(replace(settings, listen=address))
    cluster.nodes[name].start()
    cluster.say.publish(b"after")
    cluster.say.flush("merged", timeout_s=60)
    cluster.wait_for_equal_logs()


def test_a_change_without_a_quorum_is_refused(cluster):
    """The operator learns why, and nothing has changed."""
    with pytest.raises(Refused, match="n9 is not a member; the members are n1, n2, n3"):
        cluster.change("remove-member", "n9")
    with pytest.raises(Refused, match="subscriber subscriber may not ask this"):
        cluster.ask({"do": "remove-member", "name": "n3"}, "subscriber")
    leader = cluster.nodes["n1"].status()["leader"]
    others = sorted({"n1", "n2", "n3"} - {leader})
    cluster.stop(others[0])
    time.sleep(1.2)  # longer than an election timeout, until the leader takes it for dead
    with pytest.raises(Refused, match="2 nodes vote and 2 have to be live"):
        cluster.change("remove-member", others[1])
    assert cluster.voters() == ["n1", "n2", "n3"]


def test_a_node_of_a_cluster_does_not_start_alone_because_its_file_lists_no_members(tmp_path):
    """It would reach none of the others, refuse them all, and treat damage as if it had no peer."""
    place = init_local_cluster(str(tmp_path), "flights", 3)[0]
    settings = load(NodeSettings, place.config, "node", {}, {"reserve": 0})
    node = Node(settings, founding=True)
    node.start()
    node.stop()
    with pytest.raises(Misuse, match="its log has the members n1, n2, n3, but"):
        Node(replace(settings, members=()))
    again = Node(settings)
    again.start()
    again.stop()


def test_a_node_that_was_away_during_a_replacement_elects_a_leader_with_the_new_one(cluster):
    """Its log does not list the new node, which has the newer log; the two are a majority."""
    cluster.stop("n1")
    [address] = free_addresses(1)
    cluster.change("add-member", "n4", address)
    cluster.join("n4", address)
    cluster.change("promote-member", "n4")
    answer = cluster.change("remove-member", "n2")
    assert [each["name"] for each in answer["members"]] == ["n1", "n3", "n4"]
    assert cluster.nodes["n2"].wait(60)
    cluster.stop("n2")
    cluster.stop("n3")
    cluster.start("n1")
    cluster.say.publish(b"after")
    cluster.say.flush("merged", timeout_s=60)
    cluster.wait_for_equal_logs()
    assert cluster.nodes["n1"].status()["messages"] == 2001


def test_a_cluster_that_shrank_to_one_node_keeps_its_damaged_logs_in_place(cluster):
    """No other node has what they held: set aside, they would be replaced by nothing."""
    for name in ("n3", "n2"):
        answer = cluster.change("remove-member", name)
        assert cluster.nodes[name].wait(60)
        cluster.stop(name)
        cluster.places = [each for each in cluster.places if each.name != name]
    assert [each["name"] for each in answer["members"]] == ["n1"]
    for _ in range(2):
        cluster.stop("n1")
        cluster.start("n1")
    cluster.stop("n1")
    copy = damaged(os.path.join(cluster.root, "n1", "flights", "in", "jfk"))
    [sentence] = cluster.start("n1")
    assert "refused until it is mended" in sentence
    assert os.path.exists(copy)
    cluster.stop("n1")
    merged = damaged(cluster.out("n1"))
    with pytest.raises(ManifestError):
        cluster.start("n1")
    assert os.path.exists(merged)


def damaged(directory):
    """Flip a bit in a log's manifest; return its path."""
    path = os.path.join(directory, "manifest")
    with open(path, "r+b") as file:
        line = file.readline()
        file.seek(len(line) // 2)
        file.write(bytes([line[len(line) // 2] ^ 1]))
    return path
