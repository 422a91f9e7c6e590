"""What a round costs a node beyond its duties."""

from archive_cluster import ArchiveCluster
from replicator_host import eventually

from rt.log.confirmations import Level
from rt.position import START


class CountingBell:
    """Counts how often a pulling connection is woken."""

    def __init__(self):
        self.ends = []
        self.feed = None

    def set(self):
        self.ends.append(self.feed.end())


def test_a_merge_wakes_a_pulling_connection_once(tmp_path):
    """A second time its thread would look, find nothing, and take the processor from the rest."""
    with ArchiveCluster(tmp_path) as cluster:
        node, bell = cluster.nodes["n1"], CountingBell()
        bell.feed = node.pipeline.feeds.open(bell)
        cluster.push(cluster.addresses)
        publisher = cluster.publisher()
        for _ in range(3):
            publisher.publish(b"x")
            publisher.flush(Level.MERGED, 10)
        feeds = node.pipeline.feeds
        assert eventually(lambda: bell.ends and bell.ends[-1] == feeds.end)
        assert len(bell.ends) == len(set(bell.ends)) >= 3
        assert START not in bell.ends
