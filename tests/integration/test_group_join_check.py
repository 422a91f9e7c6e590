"""A session with messages of its own under its group's old numbers is refused, and told why."""

import pytest

from rt.errors import FlushTimeout
from rt.log.notify.confirmations import Level
from rt.publisher import Publisher
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.replicator_host import eventually

PATIENCE_S = 60


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_session_with_messages_of_its_own_under_old_numbers_is_refused(tmp_path, nodes):
    """A publisher that was told to use another name loses nothing in silence."""
    with ArchiveCluster(tmp_path, nodes=nodes) as cluster:

        def opened(session):
            publisher = Publisher(tmp_path / "pub", stream=STREAM, session=session, group="g")
            cluster.undo.callback(publisher.close)
            return publisher

        first, other = opened("jfk"), cluster.publisher("lga")
        push = cluster.push()
        first.publish_many([b"old%d" % number for number in range(100)])
        first.flush(Level.MERGED, PATIENCE_S)
        second = opened("jfk-2")
        second.publish_many([b"new%d" % number for number in range(40)])
        assert eventually(lambda: "does not have message 0" in second.shipping_note, PATIENCE_S)
        with pytest.raises(FlushTimeout, match="its group 'g' has merged it"):
            second.flush(Level.MERGED, 0.1)
        assert eventually(
            lambda: any("does not have message 0" in each.error for each in push.status())
        )

        def stuck():
            return [
                session["stuck"]
                for node in cluster.nodes.values()
                for session in node.status()["sessions"]
                if session["session"] == "jfk-2" and session["stuck"]
            ]

        assert eventually(lambda: len(stuck()) == 1), "the leader says so"
        twin = opened("jfk-3")
        twin.publish_many([b"old%d" % number for number in range(101)])
        twin.flush(Level.MERGED, PATIENCE_S)
        other.publish(b"x")
        other.flush(Level.MERGED, PATIENCE_S)
        assert eventually(lambda: cluster.ledger("n1").watermarks["group g"] == 101)
