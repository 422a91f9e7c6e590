"""Nodes that acknowledge before they sync: one that lost power learns everything again."""

import os

from archive_cluster import STREAM, ArchiveCluster
from replicator_host import eventually

from rt.log.files.disk import OsDisk
from sequencer.journal.boot import begin_late

PATIENCE_S = 60.0


def test_a_node_whose_machine_started_again_counts_once_it_has_learned_everything(tmp_path):
    """It may lack what it acknowledged; the others have it, and no message is lost."""
    with ArchiveCluster(tmp_path, 3, lose_confirmed_on_power_cut=True) as cluster:
        cluster.push()
        publisher = cluster.publisher()
        publisher.publish_many([b"%d" % number for number in range(1000)])
        publisher.flush("merged", timeout_s=PATIENCE_S)
        assert all(node.status()["loses_confirmed_on_power_cut"] for node in cluster.nodes.values())

        cluster.stop("n3")
        state = os.path.join(cluster.root, "n3", STREAM, "state")
        begin_late(OsDisk(), state, "an earlier boot")  # as its machine leaves it
        publisher.publish_many([b"%d" % number for number in range(1000, 2000)])
        publisher.flush("merged", timeout_s=PATIENCE_S)
        cluster.stop("n2")  # so that n3 cannot be brought up to date before it is looked at
        cluster.start("n3")
        assert "before they were synced" in cluster.nodes["n3"].status()["lost_state"]
        cluster.start("n2")

        def is_back():
            ours, theirs = cluster.ledger("n3"), cluster.ledger("n1")
            role = cluster.nodes["n3"].status()["role"]
            return role == "follower" and (ours.number, ours.digest) == (2000, theirs.digest)

        assert eventually(is_back, PATIENCE_S), cluster.nodes["n3"].status()
        cluster.stop("n2")  # so that n3 is needed
        publisher.publish_many([b"last"])
        publisher.flush("merged", timeout_s=PATIENCE_S)
        assert eventually(lambda: cluster.ledger("n3").number == 2001, PATIENCE_S)


def test_a_node_that_was_stopped_is_no_learner_when_its_machine_starts_again(tmp_path):
    """Machines are restarted one after another for updates; that costs nothing."""
    with ArchiveCluster(tmp_path, 3, lose_confirmed_on_power_cut=True) as cluster:
        cluster.stop("n3")
        state = os.path.join(cluster.root, "n3", STREAM, "state")
        with open(os.path.join(state, "late"), "rb") as file:
            assert file.readline() == b"\n"
        cluster.start("n3")
        assert not cluster.nodes["n3"].status()["lost_state"]
