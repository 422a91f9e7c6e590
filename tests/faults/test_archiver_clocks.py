"""Clocks that jump on a real node: nothing is archived early, all that is due is in the end."""

import time

import pytest
from archive_cluster import ArchiveCluster
from replicator_host import eventually

from rt.node.retain.retention import Machine

pytestmark = pytest.mark.faults
HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
PAYLOAD = b"x" * 1000


class Clocks:
    """The wall clock and the steady clock, for the whole process."""

    def __init__(self, monkeypatch):
        self.wall = self.steady = self.seen = 0
        self._wall_ns, self._steady_ns = time.time_ns, time.monotonic_ns
        monkeypatch.setattr(time, "time_ns", self.now_ns)

    def now_ns(self):
        """The wall clock."""
        return self._wall_ns() + self.wall

    def steady_ns(self):
        """How long the machine has been up."""
        self.seen = self._steady_ns() + self.steady
        return self.seen

    def pass_by(self, duration_ns):
        """Advance both clocks."""
        self.wall += duration_ns
        self.steady += duration_ns


@pytest.fixture
def clocks(monkeypatch):
    """Clocks that a test sets."""
    return Clocks(monkeypatch)


def publish(publisher, count):
    """Publish messages and wait until they are merged."""
    for first in range(0, count, 50):
        publisher.publish_many([PAYLOAD] * min(50, count - first))
    publisher.flush("merged", timeout_s=60)


def begin(cluster, clocks):
    """Start a stream that keeps files for two hours; return its publisher and its archiver."""
    archiver = cluster.nodes["n1"].pipeline.retention
    archiver.machine = Machine(now_ns=clocks.now_ns, steady_ns=clocks.steady_ns)
    cluster.set_policy(time=120)
    cluster.push()
    publisher = cluster.publisher()
    publish(publisher, 600)
    return publisher, archiver


def look(clocks):
    """Wait until an archiver has looked at the clocks as they are now."""
    now_ns = clocks.steady_ns()
    assert eventually(lambda: clocks.seen > now_ns, 60)


def gone(cluster):
    """The files that are archived."""
    return [row.file for row in cluster.rows("n1") if row.state == "archived"]


def rolled(cluster):
    """The files that are not, and are not active."""
    return [row.file for row in cluster.rows("n1") if row.state == "rolled"]


@pytest.mark.parametrize("jump", [DAY_NS, 365 * DAY_NS, -DAY_NS, -365 * DAY_NS])
def test_a_clock_that_jumps_and_is_set_right_archives_nothing_early_and_all_in_the_end(
    tmp_path, clocks, jump
):
    """Files merged meanwhile carry a wrong time for ever, and must still be archived in time."""
    with ArchiveCluster(tmp_path) as cluster:
        publisher, _ = begin(cluster, clocks)
        clocks.wall += jump
        publish(publisher, 600)
        time.sleep(0.6)
        clocks.pass_by(HOUR_NS // 2)
        time.sleep(0.6)
        assert gone(cluster) == []
        clocks.wall -= jump
        publish(publisher, 600)
        time.sleep(0.6)
        assert gone(cluster) == []
        old = rolled(cluster)
        assert len(old) > 10
        clocks.pass_by(HOUR_NS)
        time.sleep(0.6)
        assert gone(cluster) == []
        clocks.pass_by(HOUR_NS)
        assert eventually(lambda: set(old) <= set(gone(cluster)), 60), (old, gone(cluster))
        new = rolled(cluster)
        publish(publisher, 600)
        clocks.pass_by(HOUR_NS)
        assert len(rolled(cluster)) > len(new)


@pytest.mark.parametrize("jump", [DAY_NS, 365 * DAY_NS])
def test_a_clock_that_stays_ahead_is_believed_after_an_hour(tmp_path, clocks, jump):
    """It is taken to be right in the end, and files old by it are archived."""
    with ArchiveCluster(tmp_path) as cluster:
        _, archiver = begin(cluster, clocks)
        old = rolled(cluster)
        look(clocks)
        clocks.wall += jump
        assert eventually(lambda: archiver.clock.is_holding, 60)
        clocks.pass_by(HOUR_NS * 3 // 4)
        look(clocks)
        assert archiver.clock.is_holding
        assert gone(cluster) == []
        clocks.pass_by(HOUR_NS // 2)
        assert eventually(lambda: gone(cluster) == old, 60), (old, gone(cluster))


def test_a_stream_rolls_by_age_after_a_clock_was_a_year_ahead(tmp_path, clocks):
    """Its active file began in the future."""
    with ArchiveCluster(tmp_path) as cluster:
        publisher, _ = begin(cluster, clocks)
        clocks.wall += 365 * DAY_NS
        publish(publisher, 600)
        clocks.wall -= 365 * DAY_NS
        publish(publisher, 10)
        time.sleep(0.6)
        last = cluster.rows("n1")[-1]
        assert last.is_active
        for _ in range(3):
            clocks.pass_by(HOUR_NS)
            time.sleep(0.3)
        assert eventually(lambda: last.file in rolled(cluster) + gone(cluster), 60)
