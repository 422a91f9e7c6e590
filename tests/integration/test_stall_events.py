"""A program learns that nothing of what it publishes reaches the nodes, and when that is over."""

import logging
import threading

from archive_cluster import ArchiveCluster, connect

import rt
from rt.client.stall_events import StallEvents
from tests.replicator_host import eventually

PATIENCE_S = 60


def test_a_publisher_hears_of_a_stall_and_of_its_end(tmp_path, caplog):
    """Only `rt push` said so; a program found out by its full disk."""
    events = []
    with (
        ArchiveCluster(tmp_path / "cluster") as cluster,
        connect(cluster, tmp_path / "c") as client,
    ):
        publisher = client.publisher("jfk", on_event=events.append)
        other = client.publisher("lga")
        publisher.publish(b"AA1", confirm="merged")
        cluster.stop("n1")
        with caplog.at_level(logging.INFO, "rt.client"):
            publisher.publish(b"AA2")
            other.publish(b"B61")
            assert eventually(lambda: len(events) == 1, PATIENCE_S)
            cluster.start("n1")
            assert eventually(lambda: len(events) == 2, PATIENCE_S)
        publisher.flush("merged", PATIENCE_S)
    stalled, flowing = events
    assert isinstance(stalled, rt.Stalled)
    assert stalled.session == "jfk"
    assert "published messages are not accepted (session jfk)" in str(stalled)
    assert flowing == rt.Flowing("jfk")
    said = [each.getMessage() for each in caplog.records if each.name == "rt.client"]
    assert sum(each.startswith("stalled for") for each in said) == 1


def test_a_function_that_fails_stops_neither_the_watch_nor_others(tmp_path):
    """A mistake in a program's handler must not silence the next event."""
    called, heard = threading.Event(), []
    with ArchiveCluster(tmp_path / "cluster") as cluster:
        push = cluster.push([("localhost", 1)])
        cluster.publisher("jfk").publish(b"AA1")
        cluster.publisher("lga").publish(b"AA1")
        watch = StallEvents(push, stalled_s=0.0)

        def fail(_event):
            called.set()
            raise ZeroDivisionError

        watch.hear("jfk", fail)
        watch.hear("lga", heard.append)
        watch.start()
        assert called.wait(PATIENCE_S)
        assert eventually(lambda: heard, PATIENCE_S)
        assert eventually(lambda: not watch.stuck(), PATIENCE_S)
        watch.forget("jfk", fail)
        watch.stop()
