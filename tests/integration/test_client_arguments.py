"""A wrong argument of a client is a Misuse that names it, before it publishes or dials."""

import asyncio
import errno

import pytest

import rt
from rt.client import aio
from rt.client import client as client_module
from rt.client import publisher as publisher_module
from rt.errors import Misuse, Stopped
from rt.log.write.writer import SessionWriter
from tests.integration.test_unreachable import STREAM, certs, closed, connected

__all__ = ["certs", "closed"]


@pytest.fixture
def reader(certs, closed, tmp_path):
    """Return a client that may subscribe, and reaches no node."""
    with connected(certs, closed, tmp_path, "etl") as client:
        yield client


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"cursor": 5}, "cursor is a str or Registered, not int"),
        ({"cursor": "a/b"}, "is not a name for a cursor"),
        ({"group": 5}, "group is a str or Group, not int"),
        ({"group": "a b"}, "is not a name for a cursor or a group"),
        ({"ack": "explicit"}, "ack is for a cursor or a group"),
        ({"ack": "sometimes"}, "ack is 'sometimes'"),
        ({"start": None}, "not a start"),
        ({"where": 5}, "where is a condition or a list of them, not int"),
        ({"on_event": "print"}, "on_event is a function, not str"),
        ({"on_gap": "x"}, "on_gap is 'x'"),
        ({"key_prefix": "a"}, "key_prefix is bytes, not str"),
        ({"timeout_s": "5"}, "timeout_s is '5'; use seconds"),
        ({"timeout_s": -1}, "timeout_s is -1; use seconds, 0 or more"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
    ],
)
def test_a_wrong_argument_of_a_subscriber_is_named(reader, wrong, words):
    """Some were an AttributeError, and some were ignored until they were used, or for ever."""
    with pytest.raises(Misuse, match=words):
        reader.subscriber(**wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"confirm": True}, "confirm is a str or Level, not bool"),
        ({"flight": 5}, "flight is a FlightLimit, not int"),
        ({"disk_limit": 5}, "disk_limit is a DiskLimit, not int"),
        ({"writer": {}}, "writer is a WriterSettings, not dict"),
        ({"batching": 3}, "batching is a Batching, not int"),
    ],
)
def test_a_wrong_argument_of_a_publisher_is_named(certs, closed, tmp_path, wrong, words):
    """It was an AttributeError from inside, which names neither the argument nor the remedy."""
    with connected(certs, closed, tmp_path, "jfk") as client:
        with pytest.raises(Misuse, match=words):
            client.publisher("jfk", **wrong)
        client.publisher("jfk").close(0)  # the session was not left open


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"keys_max": 0}, "keys_max is 0; use a whole number, 1 or more"),
        ({"keys_max": "9"}, "keys_max is"),
        ({"checkpoint_s": -1}, "checkpoint_s is -1"),
        ({"key_prefix": "eu-"}, "key_prefix is bytes, not str"),
        ({"where": 5}, "where is a condition"),
    ],
)
def test_a_wrong_argument_of_last_value_is_named(reader, wrong, words):
    """A mapping with room for no key failed at its first one, in another thread."""
    with pytest.raises(Misuse, match=words):
        reader.last_value(**wrong)


@pytest.mark.parametrize(
    ("limit", "wrong", "words"),
    [
        (rt.FlightLimit, {"messages": "5"}, "messages is '5'; use a whole number"),
        (rt.FlightLimit, {"bytes": 1.5}, "bytes is 1.5"),
        (rt.FlightLimit, {"messages": 5, "timeout_s": "x"}, "timeout_s is"),
        (rt.DiskLimit, {"bytes": "1Gi"}, "bytes is '1Gi'; use a whole number"),
        (rt.DiskLimit, {"bytes": 1.5e6}, "bytes is 1500000.0"),
        (rt.DiskLimit, {"bytes": 1 << 20, "timeout_s": -1}, "timeout_s is -1"),
    ],
)
def test_a_wrong_limit_is_named_when_it_is_made(limit, wrong, words):
    """It was a TypeError of a comparison, or was found when the limit was first reached."""
    with pytest.raises(Misuse, match=words):
        limit(**wrong)


def test_nothing_is_published_with_a_wrong_argument(certs, closed, tmp_path):
    """A time-out that is a text raised a TypeError after the message was taken."""
    with connected(certs, closed, tmp_path, "jfk") as client:
        publisher = client.publisher("jfk")
        for wrong, words in (
            ({"confirm": "merged", "timeout_s": "5"}, "timeout_s is"),
            ({"confirm": "yes"}, "confirm: no level is called 'yes'"),
            ({"key": "k"}, "a key is bytes, not str"),
        ):
            with pytest.raises(Misuse, match=words):
                publisher.publish(b"x", **wrong)
        with pytest.raises(Misuse, match="timeout_s is"):
            publisher.flush(timeout_s="5")
        assert publisher.next_sequence == 0
        client.close(0)


def test_without_end_is_a_time_that_a_caller_may_wait(certs, closed, tmp_path):
    """It was an OverflowError, after the message was taken: the caller would publish it again."""
    with connected(certs, closed, tmp_path, "jfk") as client:
        publisher = client.publisher("jfk")
        assert publisher.publish(b"x", confirm="synced", timeout_s=float("inf")) == 0
        assert publisher.publish(b"x", confirm="synced", timeout_s=10**400) == 1
        assert publisher.flush("synced", timeout_s=float("inf")).position
        client.close(0)
    with rt.Publisher(tmp_path, stream=STREAM, session="lga") as local:
        local.publish(b"x")
        assert local.flush("synced", timeout_s=float("inf")).position
        with pytest.raises(Misuse, match="timeout_s is nan; use seconds"):
            local.flush("merged", timeout_s=float("nan"))


def test_what_was_not_shipped_is_not_said_to_be_by_a_second_close(certs, closed, tmp_path):
    """`True` is a promise that a majority of the nodes has synced everything."""
    with connected(certs, closed, tmp_path, "jfk") as client:
        publisher = client.publisher("jfk")
        publisher.publish(b"x")
        assert [publisher.close(0), publisher.close(0)] == [False, False]
        client.close(0)


def test_a_publisher_that_cannot_write_its_last_messages_is_released(
    certs, closed, tmp_path, monkeypatch
):
    """Its session had a live publisher until the process ended, whatever its caller tried."""
    with connected(certs, closed, tmp_path, "jfk") as client:
        publisher = client.publisher("jfk", batching=rt.Batching(linger_s=60))
        publisher.publish(b"x")
        publisher.publish(b"y")
        with monkeypatch.context() as full:
            full.setattr(SessionWriter, "write", fail)
            with pytest.raises(OSError, match="the disk is full"):
                publisher.close(0)
        assert publisher.close(0) is False
        client.publisher("jfk")
        client.close(0)


@pytest.mark.parametrize(
    ("module", "part"), [(client_module, "PushClient"), (publisher_module, "Receipts")]
)
def test_a_publisher_that_cannot_be_made_is_released(
    certs, closed, tmp_path, monkeypatch, module, part
):
    """A process without a descriptor left was refused its own session ever after."""
    with connected(certs, closed, tmp_path, "jfk") as client:
        with monkeypatch.context() as full:
            full.setattr(module, part, fail)
            with pytest.raises(OSError, match="the disk is full"):
                client.publisher("jfk")
        client.publisher("jfk")
        client.close(0)


def fail(*_, **_more):
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, "the disk is full")


def test_nothing_is_published_by_the_asyncio_twin_with_a_wrong_argument(certs, closed, tmp_path):
    """Its time-outs are asyncio's own."""

    async def publish():
        async with aio.connect(
            nodes=closed, certs=certs, identity="jfk", root=tmp_path, stream=STREAM
        ) as client:
            publisher = await client.publisher("jfk")
            with pytest.raises(Misuse, match="timeout_s is"):
                await publisher.publish(b"x", confirm="merged", timeout_s="5")
            assert publisher.next_sequence == 0
            await client.close(0)

    asyncio.run(publish())


def test_a_client_takes_one_address_and_a_path_or_text_as_its_file(closed, tmp_path):
    """A single address was taken apart into letters."""
    assert closed in repr(rt.connect(nodes=closed))
    with pytest.raises(Misuse, match="config is a str or PathLike, not int"):
        rt.connect(5)
    with pytest.raises(OSError, match=r"clients\.toml"):
        rt.connect(tmp_path / "clients.toml")


def test_a_closed_client_says_so_to_a_thread_that_waits_for_its_copy(reader):
    """It said that a subscriber has to be asked for first."""
    reader.close()
    with pytest.raises(Stopped, match="is closed"):
        reader.wait_caught_up(1)


@pytest.mark.parametrize("connect", [rt.connect, aio.connect])
def test_a_client_that_is_told_nothing_says_so_at_once(tmp_path, monkeypatch, connect):
    """It failed at its first use, naming a file that the program had never heard of."""
    monkeypatch.chdir(tmp_path)
    for name in ("CONFIG", "ROOT", "NODES", "CERTS"):
        monkeypatch.delenv(f"RT_{name}", raising=False)
    with pytest.raises(Misuse, match="was given no configuration, and there is no directory"):
        connect(stream="flights")
    monkeypatch.setenv("RT_NODES", "localhost:1")
    assert connect(stream="flights").stream == "flights"
