"""A client ships the sessions of all its publishers over one connection to each node."""

import gc
import logging
import os
import shutil
import threading
from contextlib import suppress
from weakref import ref

import pytest
from archive_cluster import STREAM, connect

from rt.errors import FlushTimeout
from tests.replicator_host import eventually

PATIENCE_S = 60
# Threads of a process that all sessions share, which grow to their number when there is work.
_SHARED = ("pool", "peer", "sync sessions", "batch sessions")


@pytest.fixture
def client(cluster, tmp_path):
    """Return a client of it."""
    with connect(cluster, tmp_path) as client:
        yield client


def sockets():
    """Return how many sockets this process has."""
    links = []
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it
            links.append(os.readlink(f"/proc/self/fd/{each}"))
    return sum(each.startswith("socket:") for each in links)


def threads():
    """Return how many threads this process has, but those that all sessions share."""
    return sum(not each.name.startswith(_SHARED) for each in threading.enumerate())


def test_ten_publishers_take_no_connection_and_no_pusher_more_than_one(client):
    """Each had three connections and eight threads: a program with ten had 85 threads."""
    client.publisher("one").publish(b"x", confirm="merged", timeout_s=PATIENCE_S)
    before, connections = threads(), sockets()
    for number in range(9):
        more = client.publisher(f"more{number}")
        more.publish(b"x", confirm="merged", timeout_s=PATIENCE_S)
    # fewer if something of an earlier test was ending
    assert eventually(lambda: sockets() <= connections, PATIENCE_S), (sockets(), connections)
    names = [each.name for each in threading.enumerate()]
    # The node in this process may have started some of its pool; a thread each would be nine.
    assert eventually(lambda: threads() < before + 5, PATIENCE_S), (before, names)


def test_a_session_that_is_refused_stops_no_other(client, tmp_path, caplog):
    """They share a connection; what is wrong with one log ends its channel and nothing else."""
    other = client.publisher("sound")
    other.publish(b"x", confirm="merged", timeout_s=PATIENCE_S)
    with client.publisher("lost") as publisher:
        publisher.publish(b"x", confirm="merged", timeout_s=PATIENCE_S)
    shutil.rmtree(tmp_path / STREAM / "lost")
    caplog.set_level(logging.INFO)
    again = client.publisher("lost")
    with pytest.raises(FlushTimeout):
        again.publish(b"another log of the same name", confirm="merged", timeout_s=2)
    for _ in range(3):
        other.publish(b"x", confirm="merged", timeout_s=PATIENCE_S)
    assert "connected" not in caplog.text, "the connection was ended, and made again"
    assert not again.close(0)
    assert other.close()


def test_a_closed_session_may_be_shipped_by_another_while_the_client_goes_on(
    client, cluster, tmp_path
):
    """A node takes a session from one connection at a time, and this one stays for the others."""
    stays = client.publisher("stays")
    with client.publisher("moves") as publisher:
        publisher.publish(b"here", confirm="merged", timeout_s=PATIENCE_S)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(tmp_path / STREAM / "moves", elsewhere / STREAM / "moves")
    with connect(cluster, elsewhere) as other:
        moved = other.publisher("moves")
        assert moved.publish(b"there", confirm="merged", timeout_s=PATIENCE_S) == 1
        stays.publish(b"x", confirm="merged", timeout_s=PATIENCE_S)


def test_a_publisher_that_was_closed_is_not_kept(client):
    """A program may open one for each request; its client kept them all, and what they had open."""
    closed = client.publisher("closed")
    closed.publish(b"x", confirm="merged", timeout_s=PATIENCE_S)
    gone = ref(closed)
    closed.close()
    del closed
    client.publisher("closed").publish(b"x", confirm="merged", timeout_s=PATIENCE_S)

    def is_gone():
        gc.collect()
        return gone() is None

    assert eventually(is_gone, PATIENCE_S)  # a thread may be at its last turn for it


def test_the_largest_message_ends_no_connection(client, caplog):
    """The rest of it that the socket did not take was more than a connection might keep."""
    publisher = client.publisher("large")
    for _ in range(2):
        publisher.publish(os.urandom((16 << 20) - 100), confirm="merged", timeout_s=PATIENCE_S)
    assert not [each for each in caplog.records if "has not read" in each.getMessage()]
