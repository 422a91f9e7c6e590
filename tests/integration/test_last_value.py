"""Last values: a mapping that follows the stream, equal to one built from the whole of it."""

import os
import subprocess
import sys
import time
from random import Random
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from archive_cluster import STREAM, connect
from commands import clean_environment
from logs import MergedLog
from replicator_host import eventually

from rt.client.readers.checkpoint import Checkpoint, Values
from rt.client.readers.last_value import LastValue
from rt.errors import Misuse
from rt.format.message import Message, Origin
from rt.limits import MESSAGE_BYTES_MAX
from rt.position import START, Position
from rt.subscriber import Subscriber

PATIENCE_S = 60
LOG_ID = "ab" * 16


def value(at, payload=b"x"):
    """A message of the merged log."""
    return Message(payload, b"k%d" % at, 7 * at, at, 3 * at, at, Origin("jfk", 11 * at))


def test_values_follow_the_stream_over_restarts(cluster, tmp_path):
    """At each stop they are what a dictionary of the whole stream is; an empty payload removes."""
    random, expected = Random(7), {}
    with connect(cluster, tmp_path / "in") as publishing:
        publisher = publishing.publisher("prices")
        for _ in range(4):
            keys = [b"eu-%d" % random.randrange(20) for _ in range(100)]
            payloads = [random.choice([b"", b"%d" % random.randrange(1000)]) for _ in keys]
            publisher.publish_many([*payloads, b"no key", b"other"], [*keys, b"", b"us-1"])
            publisher.flush("merged", PATIENCE_S)
            expected |= dict(zip(keys, payloads, strict=True))
            with connect(cluster, tmp_path) as client:
                values = client.last_value(key_prefix=b"eu-")
                client.wait_caught_up(PATIENCE_S)
                client.subscriber(follow=False).close()
                follow_to(values, client, publisher)
                found = {key: message.payload for key, message in values.items()}
                assert found == {key: payload for key, payload in expected.items() if payload}
                assert all(each.session == "prices" for each in values.values())


def follow_to(values, client, publisher):
    """Wait until the values have everything that is merged."""
    end = [*client.subscriber(sessions=[publisher.name], follow=False)][-1].next_position
    while values.position < end:
        values.wait_caught_up(PATIENCE_S)


def test_a_first_wait_returns_with_every_key(cluster, tmp_path):
    """It returned with none of 10,000: the copy had only begun, and that much of it was read."""
    with connect(cluster, tmp_path / "in") as publishing:
        publisher = publishing.publisher("early")
        for part in range(20):
            keys = [b"early-%d" % (part * 200 + number) for number in range(200)]
            publisher.publish_many([bytes(2000)] * 200, keys)
        publisher.flush("merged", PATIENCE_S)
    for number in range(3):
        with connect(cluster, tmp_path / f"c{number}") as client:
            values = client.last_value(key_prefix=b"early-")
            values.wait_caught_up(PATIENCE_S)
            assert len(values) == 4000


def test_values_of_a_copy_that_begins_later_are_an_error(cluster, tmp_path):
    """Keys that were published before its beginning looked as if they had never been."""
    with connect(cluster, tmp_path / "in") as publishing:
        publisher = publishing.publisher("begun-later")
        publisher.publish(b"1", b"later-a", confirm="merged")
        cluster.ask({"do": "roll"})
        publisher.publish(b"2", b"later-b", confirm="merged")
    with connect(cluster, tmp_path) as client:
        assert next(iter(client.subscriber(start="last:1"))).key == b"later-b"
        values = client.last_value(key_prefix=b"later-")
        with pytest.raises(
            Misuse, match=r"this copy lacks the log from 0\.0\.0 to .* another root"
        ):
            values.wait_caught_up(PATIENCE_S)
        with pytest.raises(Misuse, match="this copy lacks"):
            values.get(b"later-a")


def test_a_restart_reads_only_what_came_since(cluster, tmp_path):
    """Of a stream of 90 GiB it must not read everything again."""
    with connect(cluster, tmp_path / "in") as publishing:
        publisher = publishing.publisher("restarted")
        publisher.publish_many([b"1", b"2"], [b"re-a", b"re-b"])
        publisher.flush("merged", PATIENCE_S)
        with connect(cluster, tmp_path) as client:
            first = client.last_value(key_prefix=b"re-")
            follow_to(first, client, publisher)
        reached = first.position
        with connect(cluster, tmp_path) as client:
            again = client.last_value(key_prefix=b"re-")
            assert again.position >= reached, "it begins where the last one ended"
            assert again[b"re-b"].payload == b"2"
            assert len(client.last_value(key_prefix=b"re-", where="key=re-a")) in (0, 1)


def test_more_keys_than_allowed_are_an_error_and_not_a_loss(cluster, tmp_path):
    """Memory is bounded; a mapping that lacks keys without a word is wrong."""
    with connect(cluster, tmp_path) as client:
        publisher = client.publisher("many")
        publisher.publish_many([b"x"] * 11, [b"many-%d" % number for number in range(11)])
        publisher.flush("merged", PATIENCE_S)
        values = client.last_value(key_prefix=b"many-", keys_max=10)
        with pytest.raises(Misuse, match="more than keys_max = 10 keys"):
            look_on(values)
        with pytest.raises(Misuse, match="more than keys_max = 10 keys"):
            values.wait_caught_up(PATIENCE_S)


def look_on(values):
    """Look until that raises."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        assert len(values) <= 10
        time.sleep(0.01)  # or the thread that reads would hardly run


def test_a_checkpoint_is_whole_or_the_one_before_counts(tmp_path):
    """A process may die at any byte of it."""
    checkpoint = Checkpoint(str(tmp_path), STREAM, "prices", LOG_ID)
    assert checkpoint.load() == Values(START, {})
    older = Values(Position(640), {b"k1": value(1)})
    newer = Values(Position(1280), {b"k%d" % at: value(at, b"\0" * at) for at in range(3000)})
    checkpoint.store(older)
    checkpoint.store(newer)
    assert Checkpoint(str(tmp_path), STREAM, "prices", LOG_ID).load() == newer
    assert Checkpoint(str(tmp_path), STREAM, "prices", "cd" * 16).load() == Values(START, {})
    path = os.path.join(checkpoint.directory, "values", "b", "log.0.0")
    size = os.path.getsize(path)
    for cut in (size - 1, size // 2, 1, 0):
        os.truncate(path, cut)
        assert Checkpoint(str(tmp_path), STREAM, "prices", LOG_ID).load() == older
    checkpoint.close()
    checkpoint = Checkpoint(str(tmp_path), STREAM, "prices", LOG_ID)
    checkpoint.load()
    checkpoint.store(newer)
    assert Checkpoint(str(tmp_path), STREAM, "prices", LOG_ID).load() == newer


def test_one_of_two_that_follow_the_same_choice_stores_it(tmp_path):
    """They would delete what the other is writing; after its end the second one takes over."""
    values = [Values(Position(64 * n), {b"k%d" % n: value(n)}) for n in range(4)]
    first, second = (Checkpoint(str(tmp_path), STREAM, "prices", LOG_ID) for _ in range(2))
    first.store(values[1])
    assert second.load() == values[1]
    second.store(values[2])
    assert second.load() == values[1], "it was not the one to store it"
    first.store(values[2])
    first.close()
    second.store(values[3])
    assert Checkpoint(str(tmp_path), STREAM, "prices", LOG_ID).load() == values[3]
    slots = os.listdir(os.path.join(second.directory, "values"))
    assert len(slots) == 2, "the one before is whole until the new one is"
    second.close()


def test_the_web_example_publishes_and_serves(cluster, tmp_path):
    """One asyncio process that does both, as its text says."""
    environment = clean_environment() | {"RT_ROOT": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    clients = os.path.join(cluster.root, "clients.toml")
    program = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "web.py")
    process = subprocess.Popen(
        [sys.executable, program, clients, "0"], stdout=subprocess.PIPE, env=environment, text=True
    )
    try:
        address = process.stdout.readline().strip()
        put = Request(f"{address}/eur-usd", data=b"1.08", method="PUT")
        assert get(put) == (201, b"")  # the body of another answer says why
        end_s = time.monotonic() + PATIENCE_S
        while (found := get(f"{address}/eur-usd")) != (200, b"1.08"):
            assert time.monotonic() < end_s, found
        assert get(f"{address}/unknown") == (404, b"")
        strange = Request(f"{address}/eur-usd", method="PUT", headers={"Content-Length": "x"})
        assert get(strange)[0] == 400
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def get(url):
    """Status and body of a page."""
    try:
        with urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_value_too_large_to_be_stored_ends_no_last_values(tmp_path, caplog):
    """A checkpoint stores more beside each value; the largest messages did not fit."""
    largest = b"k1" + bytes(MESSAGE_BYTES_MAX - 4)  # its key is its first two bytes
    with MergedLog(str(tmp_path / STREAM / "out"), log_id=LOG_ID) as log:
        log.merge("jfk", [largest], keys=True)

    def reader(place, meet):
        return Subscriber(str(tmp_path), stream=STREAM, start=place, on_event=meet, watch="poll")

    values = LastValue(
        reader, Checkpoint(str(tmp_path), STREAM, "large", LOG_ID), Values(START, {}),
        lambda _timeout_s: START, keys_max=10, checkpoint_s=0.0,
    )  # fmt: skip
    with values:
        assert eventually(lambda: "the last values are not stored" in caplog.text)
        assert values[b"k1"].payload == largest
    assert values[b"k1"].payload == largest
