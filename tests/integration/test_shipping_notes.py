"""A publisher that waits in vain learns why, although another process ships its session."""

import os
import shutil
import time

import pytest

from replicator.push.client import PushClient
from rt.errors import NAME_TAKEN, FlushTimeout, Refused
from rt.log.notify.confirmations import Level
from rt.log.notify.shipping import FILE_NAME, FRESH_S, ShippingNote
from rt.publisher import Publisher
from tests.archive_cluster import STREAM, ArchiveCluster, connect
from tests.replicator_host import eventually

PATIENCE_S = 60


def test_a_flush_names_the_refusal_of_the_nodes(tmp_path):
    """It used to ask whether rt push runs, which did run, and was refused."""
    with ArchiveCluster(tmp_path) as cluster:
        with cluster.publisher() as publisher:
            push = cluster.push()
            publisher.publish(b"one")
            publisher.flush(Level.MERGED, PATIENCE_S)
            push.stop()
        directory = tmp_path / "pub" / STREAM / "jfk"
        shutil.rmtree(directory)
        publisher = cluster.publisher()
        publisher.publish(b"two")
        push = cluster.push()
        why = "this directory was deleted"  # at first it is not connected yet
        assert eventually(lambda: why in publisher.shipping_note, PATIENCE_S)
        with pytest.raises(FlushTimeout, match=why) as caught:
            publisher.flush(Level.MERGED, 0.1)
        assert "rt push" not in str(caught.value)
        assert caught.value.reason.startswith("localhost:")
        push.stop()
        assert not (directory / FILE_NAME).exists(), "nothing is shipped, so nothing refuses it"
        with pytest.raises(FlushTimeout, match="is `rt push` running"):
            publisher.flush(Level.MERGED, 0.1)


def test_the_second_directory_of_a_session_name_is_refused_while_the_first_is_pushed(tmp_path):
    """It was told to reset the session, which harms the first, and published on for ever."""
    with ArchiveCluster(tmp_path) as cluster:
        first = cluster.publisher()
        first.publish(b"one")
        cluster.push()
        first.flush(Level.MERGED, PATIENCE_S)
        root = tmp_path / "elsewhere"
        second = Publisher(root, stream=STREAM, session="jfk")
        second.publish(b"other")
        push = PushClient(str(root), STREAM, cluster.addresses, cluster.contexts("publisher"))
        push.start()
        try:
            with pytest.raises(Refused, match="in use: 'publisher' is pushing it from") as caught:
                second.flush(Level.MERGED, PATIENCE_S)
            assert caught.value.code == NAME_TAKEN
            assert "reset" not in str(caught.value)
            before = second.next_sequence
            for publish in (lambda: second.publish(b"x"), lambda: second.publish_many([b"x"])):
                with pytest.raises(Refused, match="under another session name"):
                    publish()
            assert second.next_sequence == before, "nothing was taken"
            first.publish(b"two")
            first.flush(Level.MERGED, PATIENCE_S)
        finally:
            push.stop()
            second.close()


def test_an_open_future_of_a_name_that_is_taken_fails(tmp_path):
    """It would wait for as long as its program runs."""
    with ArchiveCluster(tmp_path) as cluster:
        first = cluster.publisher()
        first.publish(b"one")
        cluster.push()
        first.flush(Level.MERGED, PATIENCE_S)
        with connect(cluster, tmp_path / "elsewhere") as client:
            second = client.publisher("jfk")
            receipt = second.publish_future(b"other")
            with pytest.raises(Refused, match="under another session name"):
                receipt.result(PATIENCE_S)
            second.close(timeout_s=0.1)


def test_a_flush_names_the_node_that_does_not_answer(tmp_path):
    """A wrong address looks like a slow node otherwise."""
    with ArchiveCluster(tmp_path) as cluster:
        publisher = cluster.publisher()
        publisher.publish(b"one")
        cluster.push(nodes=[("localhost", 1)])
        assert eventually(lambda: publisher.shipping_note, PATIENCE_S)
        with pytest.raises(FlushTimeout, match="localhost:1: "):
            publisher.flush(Level.MERGED, 0.1)


def test_the_note_goes_when_the_session_is_merged(tmp_path):
    """A reason that has passed must not be given for the next delay."""
    with ArchiveCluster(tmp_path) as cluster:
        cluster.stop("n1")
        publisher = cluster.publisher()
        publisher.publish(b"one")
        cluster.push()
        assert eventually(lambda: publisher.shipping_note, PATIENCE_S)
        cluster.start("n1")
        publisher.flush(Level.MERGED, PATIENCE_S)
        assert eventually(lambda: not publisher.shipping_note, PATIENCE_S)


def test_a_note_that_cannot_be_read_stops_no_publisher(tmp_path):
    """It is another program's file: publishing depends on none."""
    with Publisher(tmp_path, stream=STREAM, session="jfk") as publisher:
        (tmp_path / STREAM / "jfk" / FILE_NAME).mkdir()
        assert publisher.publish(b"one") == 0
        assert publisher.publish_many([b"two"]) == range(1, 2)


def test_the_note_of_a_pusher_that_died_is_not_believed(tmp_path):
    """A killed process takes nothing back."""
    note = ShippingNote(str(tmp_path))
    note.write("no room")
    assert note.read() == "no room"
    late_s = time.time() - FRESH_S
    os.utime(tmp_path / FILE_NAME, (late_s, late_s))
    assert note.read() == ""
    note.write("")
    note.write("")
    assert note.read() == ""
