"""Damaged logs, one node of three, archived beginnings: nothing incomplete is called complete."""

import os

import pytest
from archive_cluster import STREAM, ArchiveCluster
from replicator_host import eventually, frames, log_bytes

from rt.format.frame import HEADER_BYTES, FrameKind
from rt.log.notify.confirmations import Level

PATIENCE_S = 60


def flip_in_the_middle(path, *, kind=FrameKind.RANGE, at=HEADER_BYTES // 2):
    """Flip a bit in a frame of a kind, halfway through a merged file; by default in its header."""
    with open(path, "r+b") as file:
        offset, places = 0, []
        for header, raw in frames(file.read()):
            if header.kind == kind:
                places.append(offset)
            offset += len(raw)
        place = places[len(places) // 2] + at
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def publish(publisher, count):
    """Publish messages, each in a range of its own."""
    for number in range(count):
        publisher.publish(b"%d" % number)
        publisher.flush(Level.MERGED, PATIENCE_S)


DAMAGE = {
    "the header of a range": {},
    "the body of a frame": {"kind": FrameKind.MESSAGES, "at": HEADER_BYTES + 3},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_merged_log_is_refused_mended_and_pulled_from_the_next_node(
    tmp_path, caplog, damage
):
    """Half of it was copied and called complete, and the node never learned of its damage."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        cluster.push()
        publish(cluster.publisher(), 30)
        files = {name: os.path.join(cluster.out(name), "log.0.0") for name in cluster.nodes}
        logs = [cluster.out(name) for name in cluster.nodes]  # the leader's is first to be whole
        assert eventually(lambda: all(log_bytes(each) == log_bytes(logs[0]) for each in logs))
        whole = log_bytes(logs[0])
        flip_in_the_middle(files["n1"], **DAMAGE[damage])
        pull = cluster.pull()  # which asks n1 first
        assert pull.wait_caught_up(PATIENCE_S)
        assert log_bytes(cluster.out("sub")) == whole
        assert "pull from localhost" in caplog.text
        assert eventually(lambda: "it is set aside and fetched again" in caplog.text)
        assert eventually(lambda: log_bytes(cluster.out("n1")) == whole, PATIENCE_S)
        publish(cluster.publisher("lga"), 3)
        assert eventually(lambda: log_bytes(cluster.out("sub")) == log_bytes(cluster.out("n2")))
    assert "this node stops" not in caplog.text


def test_a_copy_of_a_damaged_log_alone_is_never_caught_up(tmp_path, caplog):
    """A node without others cannot mend it; a puller must not take what is left for all of it."""
    with ArchiveCluster(tmp_path) as cluster:
        cluster.push()
        publish(cluster.publisher(), 30)
        flip_in_the_middle(os.path.join(cluster.out("n1"), "log.0.0"))
        pull = cluster.pull()
        assert eventually(lambda: "corrupt at" in pull.status().error)
        assert not pull.wait_caught_up(0.5)
        publish(cluster.publisher("lga"), 1)  # the node continues
    assert "this node stops" not in caplog.text
    assert "nothing after it is served from here" in caplog.text


def test_one_node_of_three_is_not_a_majority_whatever_the_pusher_was_given(tmp_path):
    """`rt push` given one address said that a majority had synced what one node had."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        cluster.stop("n2"), cluster.stop("n3")
        push = cluster.push(cluster.addresses[:1])
        publisher = cluster.publisher()
        publisher.publish(b"x")
        publisher.flush(Level.RECEIVED, PATIENCE_S)
        assert not eventually(push.drained, 1)
        cluster.start("n2")
        assert eventually(push.drained, PATIENCE_S)
        assert eventually(lambda: push.drained(merged=True), PATIENCE_S)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_session_whose_beginning_is_archived_ends_a_drain_with_a_reason(tmp_path, nodes):
    """It cannot be merged in a stream that never saw the beginning, and said nothing about it."""
    with ArchiveCluster(tmp_path / "old", clients=tmp_path / "clients") as cluster:
        push = cluster.push()
        publisher = cluster.publisher()
        for _ in range(3):
            for _ in range(200):
                publisher.publish(bytes(1000))
            publisher.flush(Level.MERGED, PATIENCE_S)
        first = os.path.join(cluster.clients, "pub", STREAM, "jfk", "log.0.0")
        assert eventually(lambda: os.path.getsize(first) == 0, PATIENCE_S)
        publisher.close()
        push.stop()
    with ArchiveCluster(tmp_path / "new", nodes=nodes, clients=tmp_path / "clients") as cluster:
        push = cluster.push()
        assert eventually(lambda: push.blocked() == ["jfk"], PATIENCE_S), push.status()
        assert "archived" in push.status()[0].error
        assert not push.drained(merged=True)
