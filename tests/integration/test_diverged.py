"""A session with different bytes on different nodes: none stops, no confirmation is wrong."""

import os
import shutil
from pathlib import Path

import pytest
from archive_cluster import STREAM, ArchiveCluster
from replicator_host import eventually

from replicator.push.client import PushClient
from rt.errors import FlushTimeout
from rt.log.notify.confirmations import Level
from rt.publisher import Publisher
from rt.subscriber import Subscriber

PATIENCE_S = 60  # three nodes, restarted, on a machine that does other work
NAMES = ("n1", "n2", "n3")


def publish(root, payloads, session="jfk"):
    """Return a publisher of one life that has written these."""
    publisher = Publisher(str(root), stream=STREAM, session=session)
    for payload in payloads:
        publisher.publish(payload)
        publisher.flush(Level.WRITTEN)
    return publisher


def pusher(cluster, root, *names):
    """Start to push what is below a directory to these nodes."""
    places = dict(zip(NAMES, cluster.addresses, strict=True))
    push = PushClient(
        str(root), STREAM, [places[name] for name in names], cluster.contexts("publisher"),
        refused_retry_s=0.2,
    )  # fmt: skip
    push.start()
    cluster.undo.callback(push.stop)
    return push


def has_copy(cluster, name, session):
    """Whether a node's copy of the newest file of a session is what the publisher has."""
    newest = max(session.glob("log.?.0"))
    copy = Path(cluster.root, name, STREAM, "in", "jfk", newest.name)
    return copy.exists() and copy.read_bytes() == newest.read_bytes()


def payloads_of(cluster, name):
    """Return the session's messages in a node's merged log."""
    root = os.path.join(cluster.root, name)
    with Subscriber(root, stream=STREAM, sessions=["jfk"], follow=False) as subscriber:
        return [message.payload for message in subscriber]


def are_equal(cluster):
    """Whether all nodes have merged the same, to the same end."""
    ledgers = [cluster.ledger(name) for name in NAMES]
    return len({(each.end, each.digest) for each in ledgers}) == 1


@pytest.mark.parametrize("kept", [0, 0.5, None])
def test_a_publishers_power_cut_stops_no_node(tmp_path, kept):
    """Bytes may reach one node though the publisher's disk then loses them.

    The publisher's next life writes others in their place, and the other nodes merge those. The
    first node sets its copy aside, and gets the agreed bytes.
    """
    pub = tmp_path / "pub"
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        push = cluster.push()
        with publish(pub, [b"base%d" % n for n in range(5)]) as publisher:
            publisher.flush(Level.MERGED, PATIENCE_S)
        push.stop()
        cluster.stop("n2"), cluster.stop("n3")
        session = pub / STREAM / "jfk"
        confirmed = (session / "confirmed").read_bytes()
        push = pusher(cluster, pub, "n1")
        publish(pub, [b"lost%d" % n for n in range(10)]).close()
        assert eventually(lambda: has_copy(cluster, "n1", session), PATIENCE_S)
        assert eventually(
            lambda: cluster.nodes["n1"].pipeline.inboxes.get("jfk").unsynced == 0, PATIENCE_S
        )
        push.stop()
        cluster.stop("n1")

        cut_power(session, kept)
        (session / "confirmed").write_bytes(confirmed)
        cluster.start("n2"), cluster.start("n3")
        push = pusher(cluster, pub, "n2", "n3")
        publisher = publish(pub, [b"kept%d" % n for n in range(20)])
        cluster.undo.callback(publisher.close)
        publisher.flush(Level.MERGED, PATIENCE_S)
        cluster.start("n1")
        pusher(cluster, pub, "n1")
        publisher.publish(b"last")
        publisher.flush(Level.MERGED, PATIENCE_S)
        assert eventually(lambda: are_equal(cluster), PATIENCE_S)
        assert eventually(lambda: has_copy(cluster, "n1", session), PATIENCE_S)
        expected = [b"base%d" % n for n in range(5)]
        expected += [b"lost%d" % n for n in range(5 if kept else 0)]
        expected += [b"kept%d" % n for n in range(20)] + [b"last"]
        for name in NAMES:
            assert payloads_of(cluster, name) == expected
        assert cluster.nodes["n1"].failure is None


def cut_power(session, kept):
    """Lose the second life: all of it, half of it, or its file as well."""
    file = session / "log.1.0"
    manifest = (session / "manifest").read_bytes().splitlines(keepends=True)
    kept_lines = [line for line in manifest if b"log.1.0" not in line]
    (session / "manifest").write_bytes(b"".join(kept_lines))
    os.unlink(f"{file}.idx")
    if kept is None:
        os.unlink(file)
    else:
        os.truncate(file, int(file.stat().st_size * kept))


def test_a_publisher_that_sends_each_node_other_bytes_stops_none(tmp_path):
    """A certificate says which sessions may be pushed, not what is in them.

    Its own session is refused as diverged; the nodes and the sessions of others go on.
    """
    roots = [tmp_path / f"pub{number}" for number in range(3)]
    publish(roots[0], []).close()
    for root in roots[1:]:
        shutil.copytree(roots[0], root)
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        publishers = []
        for root, name in zip(roots, NAMES, strict=True):
            publishers.append(publish(root, [b"%s-%d" % (name.encode(), n) for n in range(9)]))
            cluster.undo.callback(publishers[-1].close)
            pusher(cluster, root, name)
        assert eventually(
            lambda: all(cluster.ledger(name).number == 9 for name in NAMES), PATIENCE_S
        )
        assert eventually(lambda: are_equal(cluster), PATIENCE_S)
        [truth] = {tuple(payloads_of(cluster, name)) for name in NAMES}
        for publisher, name in zip(publishers, NAMES, strict=True):
            mine = truth == tuple(b"%s-%d" % (name.encode(), n) for n in range(9))
            if not mine:
                with pytest.raises(FlushTimeout):
                    publisher.flush(Level.MERGED, 1)
        with publish(tmp_path / "other", [b"fine"], session="lga") as other:
            pusher(cluster, tmp_path / "other", *NAMES)
            other.flush(Level.MERGED, PATIENCE_S)
        assert eventually(lambda: are_equal(cluster), PATIENCE_S)
        assert eventually(
            lambda: [cluster.nodes[name].status()["diverged"] for name in NAMES].count(["jfk"]) == 2
        )
        for name in NAMES:
            assert cluster.nodes[name].failure is None
