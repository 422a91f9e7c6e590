"""Flight limits: a publisher is never further ahead of the nodes than it was allowed."""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from archive_cluster import ArchiveCluster

import rt
from rt.client import aio
from rt.client.flight import Flight, FlightLimit
from rt.errors import LimitReached, Misuse, Stopped
from rt.position import Position

PATIENCE_S = 60


class Session:
    """A session whose log grows by a byte a message, and nodes that merge when they are told to."""

    def __init__(self):
        self.published = self.size = self.merged = self.flushes = 0

    def end(self):
        self.flushes += 1
        return Position(self.published)

    def taken(self):
        return (self.published, self.size)

    def flight(self, **limit):
        return Flight(FlightLimit(**limit), self.taken, self.end, lambda: Position(self.merged))

    def publish(self, flight, messages=1, size=1):
        flight.admit(messages, size)
        self.published += messages
        self.size += size


def test_so_many_messages_are_in_flight_and_no_more():
    """Room comes back as the nodes merge, and only then."""
    session = Session()
    flight = session.flight(messages=100, on_full="error")
    for round_ in range(1, 5):
        while session.published < 100 * round_:
            session.publish(flight)
        with pytest.raises(LimitReached, match="100 messages of 100 bytes are published and not"):
            session.publish(flight)
        session.merged = session.published
    assert session.flushes < 60, "the log is flushed by the step, not by the message"


def test_a_part_that_was_merged_makes_room_for_as_much():
    """In steps of an eighth."""
    session = Session()
    flight = session.flight(bytes=800, on_full="error")
    for _ in range(80):
        session.publish(flight, size=10)
    session.merged = 40
    for _ in range(40):
        session.publish(flight, size=10)
    with pytest.raises(LimitReached):
        session.publish(flight, size=10)


def test_a_message_larger_than_the_limit_goes_alone():
    """Otherwise it could never be published."""
    session = Session()
    flight = session.flight(bytes=10, on_full="error")
    session.publish(flight, size=500)
    with pytest.raises(LimitReached):
        session.publish(flight, size=1)
    session.merged = 1
    session.publish(flight, size=500)


def test_a_thread_that_others_overtake_is_admitted_and_lets_no_more_fly():
    """While it flushes the log, others publish a good part of the limit, and mark what they do."""
    session, overtaken = Session(), []

    def end():
        if not overtaken:
            overtaken.append(True)
            for _ in range(25):
                session.publish(flight)
        return Position(session.published)

    session.end = end
    flight = session.flight(messages=80, on_full="error")
    for round_ in range(1, 4):
        while session.published < 80 * round_:
            session.publish(flight)
        with pytest.raises(LimitReached):
            session.publish(flight)
        assert session.published == 80 * round_
        session.merged = session.published
    assert overtaken


def test_a_publisher_waits_for_room_or_says_that_it_took_too_long():
    """Blocking is for programs that may wait; a time-out for those that may not wait for ever."""
    session = Session()
    flight = session.flight(messages=1)
    session.publish(flight)
    waiting = threading.Thread(target=session.publish, args=(flight,))
    waiting.start()
    time.sleep(0.02)
    assert session.published == 1
    session.merged = 1
    waiting.join(PATIENCE_S)
    assert session.published == 2
    short = session.flight(messages=1, timeout_s=0.01)
    session.publish(short)
    with pytest.raises(LimitReached):
        session.publish(short)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({}, "needs messages or bytes"), ({"messages": 0}, "messages is 0; use"),
        ({"bytes": -1}, "bytes is -1; use"),
        ({"bytes": 9, "on_full": "drop"}, "use block or error"),
    ],
)  # fmt: skip
def test_an_impossible_limit_is_refused_with_a_reason(limit, words):
    """It would block for ever, or never."""
    with pytest.raises(Misuse, match=words):
        FlightLimit(**limit)


def test_a_real_publisher_blocks_until_the_nodes_merge(tmp_path):
    """With the nodes away it stops at the limit; with them back it goes on by itself."""
    with ArchiveCluster(tmp_path / "cluster") as cluster:
        clients = os.path.join(cluster.root, "clients.toml")
        with rt.connect(clients, root=tmp_path / "root") as client:
            limit = rt.FlightLimit(messages=50, on_full="error")
            publisher = client.publisher("jfk", flight=limit)
            cluster.stop("n1")
            for _ in range(50):
                publisher.publish(b"x", key=b"k")
            with pytest.raises(LimitReached):
                publisher.publish(b"x", key=b"k")
            cluster.start("n1")
            publisher.flush("merged", PATIENCE_S)
            assert len(publisher.publish_many([b"x"] * 50)) == 50
            publisher.flush("merged", PATIENCE_S)
            blocking = client.publisher("lga", flight=rt.FlightLimit(bytes=1000))
            for _ in range(200):
                blocking.publish(bytes(100))
            blocking.flush("merged", PATIENCE_S)


def test_a_close_ends_a_wait_for_room(tmp_path):
    """With the nodes away for good, the thread that publishes would never end."""
    with ArchiveCluster(tmp_path / "cluster") as cluster:
        clients = os.path.join(cluster.root, "clients.toml")
        cluster.stop("n1")
        client = rt.connect(clients, root=tmp_path / "root")
        limit = rt.FlightLimit(messages=1, timeout_s=PATIENCE_S)
        publisher = client.publisher("jfk", flight=limit)
        publisher.publish(b"x")
        with ThreadPoolExecutor() as pool:
            blocked = pool.submit(publisher.publish, b"y")
            with pytest.raises(TimeoutError):
                blocked.result(0.1)
            client.close(timeout_s=0.1)
            with pytest.raises(Stopped, match="'jfk' is closed"):
                blocked.result(60)


def test_a_limit_that_blocks_is_refused_in_asyncio(tmp_path):
    """The event loop would be blocked."""

    async def main():
        async with aio.connect(root=tmp_path, nodes=["localhost:1"]) as client:
            await client.publisher("jfk", flight=rt.FlightLimit(messages=1, timeout_s=PATIENCE_S))

    with pytest.raises(Misuse, match="stops the event loop; use on_full='error'"):
        asyncio.run(main())


def test_a_flood_asks_once_for_each_frame_and_stays_within_its_limit(tmp_path):
    """A limit that costs every message is switched off by those who need it."""
    asked = []

    def admit(messages, size):
        asked.append((messages, size))
        return (50, 10_000)

    batching = rt.Batching(linger_s=60)
    with rt.Publisher(tmp_path, stream="s", session="a", batching=batching) as publisher:
        publisher.limit_flight(admit)
        publisher.publish(b"alone", key=b"k")
        assert publisher.taken == (1, 6)
        for _ in range(500):
            publisher.publish(b"x")
        assert len(asked) == 11, "a frame holds as many messages as were allowed"
        for _ in range(20):
            publisher.publish(bytes(1000))
        assert len(asked) == 14, "or as many bytes"
        publisher.publish_many([b"ab"] * 3, [b"c"] * 3)
        assert asked[-1] == (3, 9)
        assert publisher.taken == (524, 6 + 500 + 20_000 + 9)


def test_a_frame_that_another_thread_wrote_meanwhile_lets_one_message_pass(tmp_path):
    """Otherwise a whole frame, thousands of messages, goes beyond a limit of a few."""
    asked, read = [], []

    def admit(_messages, size):
        asked.append(size)
        return (1, 10_000)

    def clock():
        """Be read after a message was admitted, and before it is taken."""
        read.append(time.time_ns())
        if len(read) == 2:
            publisher.publish(b"of another thread, which fills the frame")
        return read[0]

    options = {"batching": rt.Batching(linger_s=60), "clock": clock}
    with rt.Publisher(tmp_path, stream="s", session="a", **options) as publisher:
        publisher.limit_flight(admit)
        publisher.publish(b"alone")
        for _ in range(10):
            publisher.publish(b"x")
        assert len(asked) == 12, "each message is asked for"
        assert publisher.taken == (12, 5 + 40 + 10)
