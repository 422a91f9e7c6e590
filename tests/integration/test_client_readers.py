"""Readers of a client: their copy may end, their filter may pass over, their share may change."""

import errno
import gc
import os
import subprocess
import sys
import threading
import weakref
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import pytest
from archive_cluster import STREAM, ArchiveCluster, connect
from commands import run
from faulty import FaultyDisk
from logs import MergedLog
from replicator_host import eventually

import rt
from replicator.pull.client import PullClient, PullStatus
from replicator.pull.end_wait import EndWait
from rt.client.client import Client
from rt.client.readers.cursor import CursorState, LocalCursor, decode_cursor, read_cursors
from rt.client.readers.settings import ConnectionSettings
from rt.client.readers.stream_copy import StreamCopy
from rt.errors import Misuse, Stopped, WriterFailed
from rt.format.checksum import crc32
from rt.net.loop.event_loop import EventLoop
from rt.position import START, Position

PATIENCE_S = 60


def reading_of(cluster, root):
    """Return the settings of readers."""
    nodes = tuple(f"{host}:{port}" for host, port in cluster.addresses)
    certs = os.path.join(cluster.root, "certs")
    return ConnectionSettings(str(root), STREAM, nodes, certs, "subscriber")


@pytest.mark.parametrize("cursor", [None, "etl"])
def test_a_reader_whose_copy_has_ended_says_so(cluster, tmp_path, cursor):
    """It would wait for ever for what nothing copies any more."""
    disk = FaultyDisk()
    reading = reading_of(cluster, tmp_path)
    with (
        connect(cluster, tmp_path / "in") as publishing,
        Client(reading, reading, partial(PullClient, disk=disk)) as client,
    ):
        publisher = publishing.publisher("dying" if cursor is None else "dying-cursor")
        publisher.publish(b"first", confirm="merged")
        reader = client.subscriber(cursor=cursor, sessions=[publisher.name])
        messages = reader.messages(PATIENCE_S)
        assert next(messages).payload == b"first"

        def fail(what):
            if what == "sync":
                raise OSError(errno.EIO, "Input/output error")

        disk.step = fail
        publisher.publish(b"second", confirm="merged")
        with pytest.raises(WriterFailed, match="this copy has ended"):
            for _ in messages:
                pass
        with pytest.raises(WriterFailed, match="this copy has ended"):
            client.subscriber()
        with pytest.raises(WriterFailed, match="this copy has ended"):
            client.wait_caught_up(PATIENCE_S)


def test_a_reader_that_does_not_follow_has_what_was_confirmed_before_it_began(cluster, tmp_path):
    """25 of 300 ended before a message that was merged: "up to date" was true of an hour ago."""
    with connect(cluster, tmp_path / "in") as publishing, connect(cluster, tmp_path) as client:
        publisher = publishing.publisher("confirmed")
        for number in range(100):
            publisher.publish(b"%d" % number, confirm="merged")
            client.subscriber(start="latest").close()
            if number % 2:
                client.wait_caught_up(PATIENCE_S)
            read = [*client.subscriber(sessions=[publisher.name], follow=False)]
            assert [int(message.payload) for message in read] == [*range(number + 1)]


def test_a_copy_whose_node_is_silent_is_not_called_up_to_date(cluster, tmp_path):
    """A paused source left a reader with 301 of 401 messages, and no error."""
    loop = EventLoop()
    pull = SimpleNamespace(
        running=True, start=lambda: None, stop=lambda: True, on_succession=lambda _rejoin: None,
        status=lambda: PullStatus("n1:1", Position(8), Position(8), START, True, False, ""),
        ask_end=lambda: EndWait([("n1", 1)], lambda _node: Position(16), lambda: Position(8), loop),
    )  # fmt: skip
    copied = StreamCopy(
        reading_of(cluster, tmp_path), lambda: loop, threading.Lock(), lambda *_given, **_more: pull
    )
    copied.begin(START, PATIENCE_S, follow=True)
    late = []

    def is_late():
        with pytest.raises(TimeoutError) as caught:
            copied.wait_end(0.2)
        late.append(str(caught.value))
        return "no node says" not in late[-1]  # a busy machine may not have asked in time

    assert eventually(is_late)
    assert copied.stop()
    loop.stop()
    assert late[-1] == (
        "the copy is not up to date after 200 ms: the copy has come to 0.0.8, and the stream to "
        "0.0.16; it is copied from n1:1"
    )


def test_a_copy_of_another_log_is_not_complete_however_long_it_is(cluster, tmp_path):
    """After a cluster was founded again, a copy of the last one may be further than the stream."""
    with MergedLog(str(tmp_path / STREAM / "out")) as log:
        for _ in range(9):
            log.merge("jfk", [b"of another cluster"])
            log.roll()
    late = []
    with connect(cluster, tmp_path) as client:

        def is_compared():
            with pytest.raises(TimeoutError) as caught:
                client.subscriber(follow=False, timeout_s=1)
            late.append(str(caught.value))
            return "is a copy of the log" in late[-1]  # a busy node may not have said so in time

        assert eventually(is_compared), late
    assert "no node has compared the copy with its log yet" in late[-1]


@pytest.mark.parametrize("kind", ["plain", "cursor", "registered", "group", "last value"])
def test_a_client_keeps_no_reader_that_was_closed(cluster, tmp_path, kind):
    """A program that reads something for each request that it serves runs for months."""
    with connect(cluster, tmp_path) as client:

        def opened():
            if kind == "last value":
                return client.last_value()
            arguments = {
                "plain": {"follow": False},
                "cursor": {"cursor": "kept"},
                "registered": {"cursor": rt.Registered("kept")},
                "group": {"group": "kept"},
            }
            return client.subscriber(**arguments[kind])

        with opened() as reader:
            gone = weakref.ref(reader)
        del reader
        opened().close()

        def is_gone():
            gc.collect()
            return gone() is None

        assert eventually(is_gone), "a thread that is at work for it may hold it for a moment"


def test_a_client_closes_the_readers_that_are_left(cluster, tmp_path):
    """Their threads would wait for ever."""
    with connect(cluster, tmp_path) as client:
        left = client.subscriber()
    assert next(left.messages(PATIENCE_S), None) is None, "it was closed with the client"


def test_what_cannot_be_closed_keeps_nothing_else_open(cluster, tmp_path):
    """A full disk under one cursor must not leave the others held."""
    client = connect(cluster, tmp_path)
    first, second = client.subscriber(cursor="one"), client.subscriber(cursor="two")
    first.ack(Position(8))
    (tmp_path / STREAM / ".cursors" / "one.tmp").mkdir()  # it is in the way of what is stored
    with pytest.raises(IsADirectoryError):
        client.close()
    LocalCursor(str(tmp_path), STREAM, second.name).close()
    with pytest.raises(Stopped, match="is closed"):
        client.subscriber()


@pytest.mark.parametrize("ack", ["auto", "explicit"])
def test_a_cursor_that_was_closed_is_not_stored_over_its_next_reader(tmp_path, ack):
    """A client was closed while a handler worked; the cursor had another reader by then."""
    with MergedLog(str(tmp_path / STREAM / "out")) as log:
        log.merge("jfk", [b"%d" % number for number in range(4)])
    reader = rt.Subscriber(tmp_path, stream=STREAM, follow=False)
    closed = LocalCursor(str(tmp_path), STREAM, "etl", interval_s=0.0)
    late = rt.Subscription(reader, closed, ack)
    messages = late.messages()
    found = [next(messages), next(messages)]
    late.close()
    with closing(LocalCursor(str(tmp_path), STREAM, "etl")) as moved:
        moved.move_to(Position(0))
        before = read_cursors(str(tmp_path), STREAM)
        if ack == "explicit":
            with pytest.raises(Stopped, match="cursor 'etl' is closed"):
                late.ack(found[1], sync=True)
        assert next(messages, None) is None
        with pytest.raises(Stopped, match="cursor 'etl' is closed"):
            closed.open_at(Position(9), "")
        late.__exit__(None, None, None)
        assert read_cursors(str(tmp_path), STREAM) == before


@pytest.mark.parametrize("ack", ["auto", "explicit"])
def test_what_a_filter_passes_over_is_acknowledged_with_the_rest(tmp_path, ack):
    """Otherwise a cursor lags for ever on a stream that has nothing for it, and pins its files."""
    out = tmp_path / STREAM / "out"
    with MergedLog(str(out)) as log:
        log.merge("jfk", [b"wanted"])
        log.merge("lga", [b"not wanted"])
        end = log.appender.end
    reader = rt.Subscriber(tmp_path, stream=STREAM, sessions=["jfk"], follow=False)
    cursor = LocalCursor(str(tmp_path), STREAM, "etl")
    with rt.Subscription(reader, cursor, ack) as messages:
        found = next(messages.messages())
        if ack == "explicit":
            assert not list(messages), "there is no other"
            assert messages.acked < found.next_position, "it was not handled yet"
            messages.ack(found)
        assert not list(messages)
        assert messages.acked == end
    assert read_cursors(str(tmp_path), STREAM)["etl"].position == end


def test_a_cursor_is_not_used_for_another_share(tmp_path):
    """Its position says how far one share was handled; the keys of another were not."""
    LocalCursor(str(tmp_path), STREAM, "etl", share="1/3").close()
    cursor = LocalCursor(str(tmp_path), STREAM, "etl", share="1/3")
    cursor.open_at(Position(64), "")
    cursor.close()
    with pytest.raises(Misuse, match="was used for share 1/3 and not for share 1/4"):
        LocalCursor(str(tmp_path), STREAM, "etl", share="1/4")
    with pytest.raises(Misuse, match="was used for share 1/3 and not for all keys"):
        LocalCursor(str(tmp_path), STREAM, "etl", share="")
    reset = LocalCursor(str(tmp_path), STREAM, "etl")
    reset.move_to(Position(0))
    reset.close()
    LocalCursor(str(tmp_path), STREAM, "etl", share="1/4").close()


def test_a_cursor_of_an_earlier_version_is_read():
    """An upgrade must not send every reader back to the beginning."""
    new = CursorState(Position(4096), 3, 5, "ab" * 16).encode()
    body = new[8:48]
    old = b"RTK\x01" + crc32(body).to_bytes(4, "little") + body
    assert decode_cursor(old) == CursorState(Position(4096), 3, 5, "ab" * 16)
    assert decode_cursor(old + b"\0" * 12) is None
    assert decode_cursor(old[:-1]) is None


def test_the_command_goes_on_where_its_cursor_stopped(tmp_path):
    """A shell script needs a place, too; what it was given is not given again."""
    out = tmp_path / STREAM / "out"
    options = ("--root", tmp_path, "--stream", STREAM, "--cursor", "etl", "--no-follow")
    with MergedLog(str(out)) as log:
        log.merge("jfk", [b"one", b"two"], [b"three"])
        assert run("subscribe", *options, "--count", "1").stdout == "one\n"
        assert run("subscribe", *options).stdout == "two\nthree\n"
        log.merge("lga", [b"other"])
        before = read_cursors(str(tmp_path), STREAM)["etl"].position
        wrong = run("subscribe", *options, "--session", "jkf")
        assert wrong.stdout == ""
        assert f"no message matched; cursor etl stays at {before}" in wrong.stderr
        assert read_cursors(str(tmp_path), STREAM)["etl"].position == before
        log.merge("jfk", [b"four"])
        again = run("subscribe", *options, "--from", "earliest")
        assert again.stdout == "other\nfour\n", "a cursor that exists goes on"
        log.merge("lga", [b"more"])
        log.merge("jfk", [b"five"])
        log.merge("lga", [b"last"])
        assert run("subscribe", *options, "--session", "jfk").stdout == "five\n"
        assert read_cursors(str(tmp_path), STREAM)["etl"].position == log.appender.end
    held = LocalCursor(str(tmp_path), STREAM, "etl")
    refused = run("subscribe", *options)
    held.close()
    assert (refused.exit_code, "has a reader" in refused.output) == (2, True)
    own = run("subscribe", *options, "--own-session", "jfk")
    assert (own.exit_code, "leave out --own-session" in own.output) == (2, True)
    other = run("subscribe", *options, "--share", "1/2")
    assert "was used for all keys and not for share 1/2" in other.output


LOGGING = """
import logging, sys, rt
from rt.client.handler import StreamHandler
publisher = rt.Publisher(sys.argv[1], stream="flights", session="logs")
logging.getLogger("shop").addHandler(StreamHandler(publisher))
for number in range(500):
    logging.getLogger("shop").warning("order %d", number)
"""


def test_a_program_that_logs_and_ends_loses_no_record(tmp_path):
    """The last lines before an exit are the ones that are looked for."""
    subprocess.run([sys.executable, "-c", LOGGING, str(tmp_path)], check=True, timeout=PATIENCE_S)
    with rt.Subscriber(tmp_path, stream=STREAM, session="logs", follow=False) as reader:
        found = [each.payload for each in reader]
    assert found == [b"order %d" % number for number in range(500)]


def test_a_close_that_still_waits_leaves_the_next_publisher_of_its_session_alone(tmp_path):
    """Its end stopped the shipping of the session for good, and in silence."""
    with ArchiveCluster(tmp_path / "c", nodes=1) as cluster, connect(cluster, tmp_path) as client:
        first = client.publisher("again")
        first.publish(b"1", confirm="merged", timeout_s=PATIENCE_S)
        cluster.stop("n1")
        first.publish(b"2")
        ending = threading.Thread(target=first.close, args=(3.0,))
        ending.start()
        opened = []

        def is_open():
            try:
                opened.append(client.publisher("again"))
            except Misuse:
                return False  # the first publisher still has it
            return True

        assert eventually(is_open)
        assert ending.is_alive(), "the first still waits"
        ending.join()
        cluster.start("n1")
        opened[0].publish(b"3", confirm="merged", timeout_s=PATIENCE_S / 2)
        assert opened[0].confirmed().merged > START
