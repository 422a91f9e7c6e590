"""Members of a running cluster are added, replaced, moved and removed, over real connections."""

import os
import shutil
import time
from dataclasses import replace

import pytest

from replicator.pull.client import PullClient
from replicator.push.client import PushClient
from rt import Publisher, Subscriber
from rt.cli.common.asking import ask_nodes
from rt.cli.common.exits import REFUSED, exit_code
from rt.cli.look.status import report_of
from rt.client.readers.settings import ConnectionSettings
from rt.config.settings import load
from rt.errors import ManifestError, Misuse, Refused, RemovedFromCluster
from rt.net.addresses import parse_address
from rt.net.authority.certificates import LOCAL_HOSTS, certificate_files, issue
from rt.net.authority.identity import CertificateRole
from rt.net.known_nodes import KnownNodes
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import free_addresses, init_local_cluster
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings
from tests.archive_cluster import ArchiveCluster
from tests.replicator_host import eventually


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

    def configured(self):
        """What an operator's file says, unchanged since the cluster was founded."""
        return ConnectionSettings(
            stream="flights", nodes=tuple(each.address for each in self.places),
            certs=os.path.join(self.root, "certs"), identity="operator",
        )  # fmt: skip

    def voters(self):
        """The names of the members that vote."""
        answer = self.ask({"do": "members"}, "operator")
        return [each["name"] for each in answer["members"] if each["votes"]]

    def is_live(self, name):
        """Whether the leader has heard of a member lately."""
        answer = self.ask({"do": "members", "decided": True}, "operator")
        return next(each["live"] for each in answer["members"] if each["name"] == name)

    def join(self, name, address):
        """Start a node on an empty directory."""
        certs = os.path.join(self.root, "certs")
        if not os.path.exists(os.path.join(certs, f"{name}.pem")):
            issue(certs, name, CertificateRole.NODE, hosts=LOCAL_HOSTS)
        members = {
            each["name"]: each["address"]
            for each in self.ask({"do": "members"}, "operator")["members"]
        }
        members[name] = address
        first = load(NodeSettings, self.places[0].config, "node", {}, self.settings)
        settings = replace(
            first, name=name, listen=address, root=os.path.join(self.root, name),
            members=tuple("=".join(each) for each in members.items()),
        )  # fmt: skip
        self.nodes[name] = Node(settings)
        self.nodes[name].start()

    def publish_merged(self):
        """Publish one message more, and wait until every node that runs has merged it.

        A node's status is as of its last step, so on a busy machine a receipt may precede it.
        """
        self.say.publish(b"after")
        self.say.flush("merged", timeout_s=60)
        assert eventually(lambda: self.counts() == [2001], 60), self.statuses()

    def counts(self):
        """Return the counts of merged messages, one for each digest that a node has."""
        found = {each["digest"]: each["messages"] for each in self.statuses()}
        return list(found.values())

    def statuses(self):
        """Return the status of each node that runs."""
        return [node.status() for node in self.nodes.values()]


@pytest.fixture
def cluster(tmp_path):
    """Three nodes that have merged something."""
    with ChangingCluster(tmp_path, nodes=3) as cluster:
        cluster.push()
        publisher = cluster.publisher()
        publisher.publish_many([b"before"] * 2000)
        publisher.flush("merged", timeout_s=60)
        # two nodes may have merged it before the third has heard of the leader
        assert eventually(lambda: cluster.counts() == [2000], 60), cluster.statuses()
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
    assert "it is a learner, so no" in " ".join(told(cluster))
    cluster.join("n4", address)
    assert eventually(lambda: "n4 is a learner: it is being added" in " ".join(told(cluster)), 60)
    assert "state" not in " ".join(told(cluster)), "it had none to lose"
    cluster.change("remove-member", "n3")
    cluster.change("promote-member", "n4")
    assert cluster.voters() == ["n1", "n2", "n4"]
    cluster.publish_merged()
    report = report_of(ask_nodes(cluster.configured()))
    assert sorted(each.name for each in report.nodes) == ["n1", "n2", "n4"]
    assert all(not each.error for each in report.nodes)


def told(cluster):
    """Return what `rt status` says is wrong."""
    return [each.said for each in report_of(ask_nodes(cluster.configured())).problems]


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
    cluster.publish_merged()


def test_a_node_that_was_away_while_it_was_removed_learns_it_from_the_others(cluster):
    """Its log still lists it: it looked for a leader for ever, and none of the others listened."""
    name = max({"n1", "n2", "n3"} - {cluster.nodes["n1"].status()["leader"]})
    cluster.stop(name)
    cluster.change("remove-member", name)
    cluster.start(name)
    assert cluster.nodes[name].wait(60)
    failure = cluster.nodes[name].failure
    assert isinstance(failure, RemovedFromCluster)
    assert "removed from its cluster" in str(failure)
    assert exit_code(failure) == REFUSED
    cluster.stop(name)
    with pytest.raises(Refused, match="empty its directory"):
        cluster.start(name)
    cluster.publish_merged()


def test_a_node_that_was_removed_and_added_again_is_not_taken_for_removed(cluster):
    """It starts before it is added, and until then all others say that it was removed."""
    name = max({"n1", "n2", "n3"} - {cluster.nodes["n1"].status()["leader"]})
    address = next(each.address for each in cluster.places if each.name == name)
    cluster.change("remove-member", name)
    assert cluster.nodes[name].wait(60)
    cluster.stop(name)
    shutil.rmtree(os.path.join(cluster.root, name))
    cluster.join(name, address)
    assert eventually(lambda: any("removed" in each for each in cluster.nodes[name].peers.problems(
        {"n1", "n2", "n3"}).values()), 60)  # fmt: skip
    cluster.change("add-member", name, address)
    cluster.change("promote-member", name)
    assert cluster.nodes[name].failure is None
    cluster.publish_merged()


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
    cluster.publish_merged()


def test_a_change_without_a_quorum_is_refused(cluster):
    """The operator learns why, and nothing has changed."""
    with pytest.raises(Refused, match="n9 is not a member; the members are n1, n2, n3"):
        cluster.change("remove-member", "n9")
    with pytest.raises(Refused, match="subscriber subscriber may not ask this"):
        cluster.ask({"do": "remove-member", "name": "n3"}, "subscriber")
    leader = cluster.nodes["n1"].status()["leader"]
    others = sorted({"n1", "n2", "n3"} - {leader})
    cluster.stop(others[0])
    assert eventually(lambda: not cluster.is_live(others[0]), 60), "the leader takes it for dead"
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
    cluster.publish_merged()


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


def test_clients_of_one_node_outlive_all_nodes_that_there_were_at_first(cluster, tmp_path):
    """Each is replaced in turn, and neither the pusher nor the puller is started again."""
    [first, *_] = [parse_address(each.address) for each in cluster.places]
    files = os.path.join(cluster.root, "certs")
    push_nodes, pull_nodes = (
        KnownNodes([first], str(tmp_path / f"{each}.nodes"), look_s=0.5) for each in "ab"
    )
    contexts = [
        Contexts(certificate_files(files, each), client_context, "flights")
        for each in ("publisher", "subscriber")
    ]
    push = PushClient(
        str(tmp_path / "pub"), "flights", [first], contexts[0], known=push_nodes
    )  # fmt: skip
    pull = PullClient(str(tmp_path / "sub"), "flights", [first], contexts[1], known=pull_nodes)
    publisher = Publisher(str(tmp_path / "pub"), stream="flights", session="lga")
    push.start(), pull.start()
    try:
        for number, place in enumerate(cluster.places, 4):
            publisher.publish(b"%d" % number)
            publisher.flush("merged", timeout_s=60)
            [address] = free_addresses(1)
            cluster.change("add-member", f"n{number}", address)
            cluster.join(f"n{number}", address)
            cluster.change("promote-member", f"n{number}")
            cluster.change("remove-member", place.name)
            assert cluster.nodes[place.name].wait(60)
            cluster.stop(place.name)
            assert eventually(lambda a=address: parse_address(a) in pull_nodes.addresses, 60)
            assert eventually(lambda a=address: parse_address(a) in push_nodes.addresses, 60)
        publisher.publish(b"last")
        publisher.flush("merged", timeout_s=60)
        assert pull.wait_caught_up(60)
        old = {each.address for each in cluster.places}
        pushed = set()

        def has_moved():
            pushed.clear()
            pushed.update(each.node for each in push.status())
            return len(pushed) == 3 and not old & pushed

        assert eventually(has_moved, 60), pushed
        assert pull.status().node not in old
        reader = Subscriber(
            str(tmp_path / "sub"), stream="flights", sessions=["lga"], follow=False
        )  # fmt: skip
        with reader:
            assert [each.payload for each in reader] == [b"4", b"5", b"6", b"last"]
    finally:
        publisher.close(), push.stop(), pull.stop()
    assert first not in KnownNodes([first], str(tmp_path / "a.nodes")).addresses
