"""The gateway's appends: the log decides, and what it has made of them is answered."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from rt.errors import DiskFailed
from rt.format.message import Message, Origin
from rt.gateway.follower import StreamFollower
from rt.gateway.model import Producer, StreamChange
from rt.gateway.store import StreamStore
from rt.gateway.writing import StreamWriter
from rt.position import START, Position

PLAIN = StreamChange("create", "text/plain", has_data=False)


class Log:
    """A client, its publisher and its subscriber; messages are merged when a test says so."""

    def __init__(self):
        self.name, self.messages, self.read, self.merged = "", [], 0, 0
        self.news, self.error, self.is_stopped = threading.Condition(), None, False

    def publisher(self, name, disk_limit=None):
        self.name, self.disk_limit = name, disk_limit
        return self

    @property
    def next_sequence(self):
        return len(self.messages)

    def publish_many(self, payloads, keys, headers):
        for payload, key, header in zip(payloads, keys, headers, strict=True):
            at = len(self.messages)
            origin = Origin(self.name, at, header)
            self.messages.append(Message(payload, key, 0, at, at, at + 1, origin))
            if self.error is not None:
                raise self.error

    def flush(self, level):
        pass

    def merge(self):
        with self.news:
            self.merged = len(self.messages)
            self.news.notify_all()

    @property
    def position(self):
        return Position(self.read)

    def messages_until(self, idle_s):
        with self.news:
            self.news.wait_for(lambda: self.read < self.merged or self.is_stopped, idle_s)
        while self.read < self.merged:
            self.read += 1
            yield self.messages[self.read - 1]

    def stop(self):
        with self.news:
            self.is_stopped = True
            self.news.notify_all()

    def close(self):
        pass


@pytest.fixture
def gateway(tmp_path):
    """A writer, the log that it publishes to, and who follows it."""
    log, store = Log(), StreamStore(str(tmp_path / "store"), "log")
    reading = SimpleNamespace(  # the names of a subscriber
        messages=log.messages_until, stop=log.stop, close=log.close, position=START
    )
    follower = StreamFollower(store, reading, lambda: START)
    follower.start()
    writer = StreamWriter(log, str(tmp_path), store, follower)
    yield SimpleNamespace(log=log, store=store, follower=follower, writer=writer)
    follower.stop()


def append(seq=0, **fields):
    """An append of the producer p."""
    return StreamChange("append", "text/plain", Producer("p", 0, seq), **fields)


async def change(gateway, *changes, is_merged=True):
    """Begin a request; returns once it is published."""
    gateway.follower.serve()
    before = len(gateway.log.messages)
    payloads = [b"x" if each.has_data else b"" for each in changes]
    request = asyncio.ensure_future(gateway.writer.change("gates", "", changes, payloads))
    while len(gateway.log.messages) < before + len(changes) and not request.done():
        await asyncio.sleep(0)
    if is_merged:
        gateway.log.merge()
        await request
    return request


def test_a_repeated_append_is_not_answered_before_the_first_is_merged(gateway):
    """The client gave up waiting; an answer now would promise what the log does not have."""

    async def check():
        await change(gateway, PLAIN)
        first = await change(gateway, append(), is_merged=False)
        again = await change(gateway, append(), is_merged=False)
        assert not first.done()
        assert not again.done()
        gateway.log.merge()
        return [(await each).status for each in (first, again)]

    assert asyncio.run(check()) == [200, 204]


def test_an_array_that_was_cut_off_is_published_again(gateway):
    """Its first messages are there; the answer must not say that all are."""
    parts = [append(part=number, last=number == 2) for number in range(3)]

    async def check():
        await change(gateway, PLAIN)
        gateway.log.publish_many([b"x"] * 2, [b"gates"] * 2, [p.encode() for p in parts[:2]])
        gateway.log.merge()
        return (await change(gateway, *parts)).result()

    assert asyncio.run(check()).is_new
    assert gateway.store.get("gates").heard["p"].next == (1, 0)
    assert len(gateway.log.messages) == 6


def test_what_another_gateway_appended_counts_while_requests_are_under_way(gateway):
    """A producer that comes back from there goes on with its own number."""

    async def check():
        await change(gateway, PLAIN)
        slow = await change(gateway, StreamChange("append"), is_merged=False)
        gateway.log.publish_many([b"x"], [b"gates"], [append().encode()])
        return (await change(gateway, append(1))).result(), await slow

    assert [each.status for each in asyncio.run(check())] == [200, 204]


def test_a_gap_that_another_gateway_has_filled_is_none(gateway):
    """Its client was sent here, and this gateway has not read so far yet."""

    async def check():
        await change(gateway, PLAIN)
        gateway.log.publish_many([b"x"], [b"gates"], [append().encode()])
        filled = (await change(gateway, append(1))).result()
        return filled, (await change(gateway, append(5))).result()

    assert [(each.status, each.seq) for each in asyncio.run(check())] == [(200, 1), (409, 2)]


def test_what_may_be_published_in_part_is_said(gateway):
    """The disk was full after the first message."""

    async def check():
        await change(gateway, PLAIN)
        gateway.log.error = DiskFailed("no space left")
        return (await change(gateway, append(last=False), append(part=1), is_merged=False)).result()

    verdict = asyncio.run(check())
    assert (verdict.status, "nothing" in verdict.words) == (503, False)
    assert "in part" in verdict.words


def test_who_waits_hears_of_a_change_after_what_was_executed_before_the_first_request(gateway):
    """A gateway that is started again executes messages before anyone asks."""
    gateway.log.publish_many([b""], [b"gates"], [PLAIN.encode()])
    gateway.log.merge()
    executed = threading.Event()
    while gateway.store.get("gates") is None:
        executed.wait(0.001)

    async def check():
        gateway.follower.serve()
        with gateway.follower.waiting("gates") as news:
            verdict = (await change(gateway, append())).result()
            await asyncio.wait_for(news, 30)
            return verdict, news.done()

    verdict, is_heard = asyncio.run(check())
    assert (verdict.status, is_heard) == (200, True)
