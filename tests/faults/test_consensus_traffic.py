"""What nodes send each other: ranges of bytes, and the bytes of small updates at most."""

import pytest
from archive_cluster import ArchiveCluster
from replicator_host import eventually

from sequencer.ledger.instruction import CARRIED_BYTES_MAX

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    ("size", "carry"), [(100, False), (10_000, False), (CARRIED_BYTES_MAX, True)]
)
def test_no_message_goes_over_the_links_between_nodes_that_is_not_to_be_carried(
    tmp_path, size, carry
):
    """Consensus that carried every payload would be as slow as the largest message."""
    with ArchiveCluster(tmp_path, nodes=3, missing_s=60, carry=carry) as cluster:
        cluster.push()
        publisher = cluster.publisher()
        publisher.publish(b"first")
        publisher.flush("merged", timeout_s=60)
        before = told(cluster)
        for _ in range(200):
            publisher.publish(bytes(size))
            publisher.flush("merged", timeout_s=60)
        # a status shows the commit index of the last tick
        assert eventually(lambda: told(cluster)[1] >= before[1] + 200)
        sent, committed = (
            after - early for after, early in zip(told(cluster), before, strict=True)
        )
        assert 100 * committed < sent < 3000 * committed
        assert eventually(lambda: agreed(cluster)["count"] >= 200)
        times = agreed(cluster)
        assert 0 < times["p50"] <= times["p99"]


def answers(cluster):
    """Return each node's status."""
    return [node.status() for node in cluster.nodes.values()]


def agreed(cluster):
    """Return how long agreement took, as the node that led longest has counted it."""
    return max((each["agreement_ms"] for each in answers(cluster)), key=lambda t: t["count"])


def told(cluster):
    """Return the bytes sent by all nodes, and the commit index."""
    heard = answers(cluster)
    return sum(each["peer_bytes"] for each in heard), max(each["committed"] for each in heard)
