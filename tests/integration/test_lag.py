"""A reader that follows says when it has not had the end of the stream for too long."""

import threading
from contextlib import suppress

import pytest
from archive_cluster import ArchiveCluster, connect
from replicator_host import eventually

import rt

PATIENCE_S = 60


def test_a_reader_without_nodes_is_late_and_current_once_they_are_back(tmp_path):
    """A copy that stopped looks like a quiet stream."""
    with (
        ArchiveCluster(tmp_path / "cluster") as cluster,
        connect(cluster, tmp_path / "c") as client,
    ):
        client.publisher("jfk").publish(b"AA1", confirm="merged")
        events, late, current = [], threading.Event(), threading.Event()

        def on_event(event):
            events.append(event)
            if isinstance(event, rt.Lagging):
                late.set()
            elif isinstance(event, rt.Current):
                current.set()

        reader = client.subscriber(lag_max_s=1, on_lag="notify", on_event=on_event)
        read = []
        thread = threading.Thread(target=lambda: read.extend(each.payload for each in reader))
        thread.start()
        cluster.stop("n1")
        assert late.wait(PATIENCE_S)
        current.clear()
        cluster.start("n1")
        assert current.wait(PATIENCE_S)
        reader.close()
        thread.join(PATIENCE_S)
        assert read == [b"AA1"]
        lag = next(each for each in events if isinstance(each, rt.Lagging))
        assert "the end of the stream was not read for" in str(lag)


def test_a_cursor_raises_when_its_nodes_are_gone_and_reads_on(tmp_path):
    """A program without on_event must not act on what is old."""
    with (
        ArchiveCluster(tmp_path / "cluster") as cluster,
        connect(cluster, tmp_path / "c") as client,
    ):
        client.publisher("jfk").publish_many([b"AA1", b"AA2"])
        reader = client.subscriber(cursor="etl", lag_max_s=1)
        read = []

        def reads(payload):
            with suppress(rt.LagError):  # until it has reached the node, again
                read.append(next(iter(reader)).payload)
            return read[-1:] == [payload]

        assert eventually(lambda: reads(b"AA1"), 60)
        assert eventually(lambda: reads(b"AA2"), 60)
        cluster.stop("n1")
        with pytest.raises(rt.LagError, match="the end of the stream"):
            next(iter(reader))
        cluster.start("n1")
        client.publisher("lga").publish(b"AA3")
        assert eventually(lambda: reads(b"AA3"), 60)
        assert read == [b"AA1", b"AA2", b"AA3"]
