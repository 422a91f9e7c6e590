"""The client: programs publish and read through a cluster without any further process."""

import asyncio
import json
import logging
import os
import threading
from concurrent.futures import CancelledError
from contextlib import ExitStack

import pytest
from archive_cluster import FILE_BYTES, STREAM, ArchiveCluster, connect, held_bytes
from commands import run
from cut_network import CutNetwork
from faulty import FaultyDisk

import rt
from rt.client import aio
from rt.client.handler import StreamHandler
from rt.client.readers.cursor import CursorState, LocalCursor, decode_cursor, read_cursors
from rt.client.readers.subscription import Subscription
from rt.errors import CorruptLog, FlushTimeout, Misuse, Refused, Stopped
from rt.position import Position

PATIENCE_S = 60


@pytest.fixture
def connected(cluster, tmp_path):
    """Return a client of it with directories of its own."""
    with connect(cluster, tmp_path) as client:
        yield client


def payloads_of(client, session, count, **settings):
    """Return the first messages of a session as the merged stream has them."""
    with client.subscriber(sessions=[session], **settings) as subscriber:
        return [
            message.payload
            for _, message in zip(range(count), subscriber.messages(PATIENCE_S), strict=False)
        ]


def test_a_program_publishes_and_reads_with_nothing_else_running(connected):
    """Two more processes to start were two more things to forget."""
    publisher = connected.publisher("tour")
    assert publisher.publish(b"AA1") == 0
    assert publisher.publish_many([b"B6 2", b"DL3"]) == range(1, 3)
    assert payloads_of(connected, "tour", 3) == [b"AA1", b"B6 2", b"DL3"]
    assert "tour" in repr(publisher)
    assert STREAM in repr(connected)


def test_headers_are_merged_with_their_messages(connected):
    """A trace and a content type travel with the message, whichever call published it."""
    publisher = connected.publisher("headed")
    publisher.publish(b"0", headers={"a": b"0"}, confirm="merged")
    publisher.publish_many([b"1", b"2"], headers=[None, {"a": b"2"}])
    publisher.publish_future(b"3", headers={"a": b"3"}).result(PATIENCE_S)
    with connected.subscriber(sessions=["headed"]) as subscriber:
        found = [
            message.headers
            for _, message in zip(range(4), subscriber.messages(PATIENCE_S), strict=False)
        ]
    assert found == [{"a": b"0"}, {}, {"a": b"2"}, {"a": b"3"}]


def test_headers_are_refused_while_no_node_has_said_that_all_can_read_them(cluster, tmp_path):
    """They cannot be taken back once they are written, and the nodes may be older."""
    client = rt.connect(
        os.path.join(cluster.root, "clients.toml"), root=tmp_path, nodes=["localhost:1"]
    )
    publisher = client.publisher("unheard")
    with pytest.raises(Refused, match="no node has said yet") as caught:
        publisher.publish(b"0", headers={"a": b"0"})
    assert caught.value.code == "headers"
    assert publisher.publish(b"0") == 0
    client.close(timeout_s=0.1)


@pytest.fixture(scope="module")
def long_stream(tmp_path_factory):
    """A stream of its own with a dozen merged files."""
    with ArchiveCluster(tmp_path_factory.mktemp("long")) as running:
        root = tmp_path_factory.mktemp("publisher")
        with connect(running, root) as client, client.publisher("history") as publisher:
            for number in range(60):
                publisher.publish_many([b"%04d" % number + bytes(1000)] * 24)
            publisher.flush("merged", PATIENCE_S)
        yield running


@pytest.mark.parametrize("follow", [True, False])
def test_a_reader_of_the_latest_copies_at_most_one_file(long_stream, tmp_path, follow):
    """A stream of 90 GiB must not be copied for the sake of its next message."""
    with connect(long_stream, tmp_path) as client:
        subscriber = client.subscriber(start="latest", follow=follow)
        with client.publisher(f"live-{follow}".lower()) as publisher:
            publisher.publish(b"now", confirm="merged", timeout_s=PATIENCE_S)
        if follow:
            assert next(subscriber.messages(PATIENCE_S)).payload == b"now"
        client.wait_caught_up(PATIENCE_S)
        out = tmp_path / STREAM / "out"
        assert held_bytes(out) <= 2 * FILE_BYTES  # it may have rolled since
        gaps = []
        late = client.subscriber(follow=False, on_gap="notify", on_event=gaps.append)
        assert [m.payload for m in late][-1] == b"now"
        assert [each.reason for each in gaps if isinstance(each, rt.Gap)] == ["not copied"]
        with pytest.raises(rt.GapError, match="was not copied"):
            next(iter(client.subscriber()))


def test_a_reader_starts_anywhere_in_a_stream_that_was_never_copied(long_stream, tmp_path):
    """The start is the cluster's, not that of the part that was copied."""
    with connect(long_stream, tmp_path / "all") as client:
        every = list(client.subscriber(sessions="history", follow=False))
    middle = every[700]
    for name, start in [("at", middle.position), ("time", rt.AtTime(middle.merge_time_ns))]:
        with connect(long_stream, tmp_path / name) as client:
            reader = client.subscriber(sessions="history", start=start, follow=False)
            found = list(reader)
        assert found == [each for each in every if each.at >= found[0].at]
        assert found[0].merge_time_ns == middle.merge_time_ns
    with connect(long_stream, tmp_path / "cursor") as client:
        reader = client.subscriber(cursor="tail", start=middle.position, follow=False)
        assert next(iter(reader)) == middle
    root, number = tmp_path / "sequence", f"sequence:{middle.sequence}"
    with connect(long_stream, root) as client:
        reader = client.subscriber(sessions="history", start=number, follow=False)
        assert list(reader) == every[700:]
        with pytest.raises(Misuse, match="is a number of one session; choose exactly one"):
            client.subscriber(start=number)
        with pytest.raises(Misuse, match="nodes do not look for sequence numbers"):
            client.subscriber(group="etl", sessions="history", start=number)
    reading = ("subscribe", "--root", root, "--stream", STREAM, "--from", number, "--no-follow")
    shown = run(*reading, "--session", "history", "--output", "json")
    assert len(shown.stdout.splitlines()) == len(every) - 700
    assert run(*reading).exit_code == 2


def test_the_command_pulls_from_a_place_and_says_what_it_lacks(long_stream, tmp_path):
    """A later reader of the copy learns once what is not in it."""
    clients = os.path.join(long_stream.root, "clients.toml")
    pulled = run(
        "pull", "--config", clients, "--root", tmp_path, "--from", "last:5", "--once",
        "--timeout", PATIENCE_S,
    )  # fmt: skip
    assert pulled.exit_code == 0, pulled.output
    reading = ("subscribe", "--root", tmp_path, "--stream", STREAM, "--no-follow")
    assert len(run(*reading, "--from", "last:5", "--output", "json").stdout.splitlines()) == 5
    refused = run(*reading, "--from", "0.0.0")
    assert refused.exit_code == 1
    assert "was not copied (log.0.0" in refused.output
    assert run("verify", tmp_path / STREAM / "out").exit_code == 0
    again = run("pull", "--config", clients, "--root", tmp_path, "--from", "yesterday", "--once")
    assert again.exit_code == 2
    assert "not a start: 'yesterday'" in again.output


def test_a_client_goes_on_with_the_nodes_of_a_configuration_that_was_read_again(cluster, tmp_path):
    """A gateway moves; a program with a thousand open sessions should not have to."""
    port = cluster.addresses[0][1]
    with open(os.path.join(cluster.root, "clients.toml")) as file:
        text = file.read()
    config = tmp_path / "clients.toml"
    with CutNetwork(port) as old, CutNetwork(port) as new, ExitStack() as undo:
        config.write_text(text.replace(f":{port}", f":{old.port}"))
        client = undo.enter_context(rt.connect(config, root=str(tmp_path / "root")))
        assert client.reload() == []
        publisher = client.publisher("moved")
        publisher.publish(b"before", confirm="merged", timeout_s=PATIENCE_S)
        reader = client.subscriber(sessions=["moved"])
        assert next(iter(reader)).payload == b"before"
        cursor = client.subscriber(cursor=rt.Registered("moves"), sessions=["moved"])
        assert next(iter(cursor)).payload == b"before"
        old.cut()
        publisher.publish(b"between")
        config.write_text(text.replace(f":{port}", f":{new.port}"))
        assert client.reload() == []
        publisher.publish(b"after", confirm="merged", timeout_s=PATIENCE_S)
        for each in (reader, cursor):
            assert [next(iter(each)).payload for _ in range(2)] == [b"between", b"after"]
        assert f":{new.port}" in repr(client)
        cursor.ack(sync=True)


def test_a_configuration_that_cannot_be_read_again_changes_nothing(cluster, tmp_path, caplog):
    """A typing error must not stop what runs; what needs another client is named."""
    with open(os.path.join(cluster.root, "clients.toml")) as file:
        text = file.read()
    config = tmp_path / "clients.toml"
    config.write_text(text)
    with rt.connect(config, root=str(tmp_path / "root")) as client:
        publisher = client.publisher("typed")
        config.write_text("nodes = 5\n" + text)
        with pytest.raises(Misuse, match="nodes"):
            client.reload()
        config.write_text(text.replace('identity = "subscriber"', 'identity = "operator"'))
        assert client.reload() == ["pull.identity"]
        assert "changed and not in use until another client is made: pull.id" in caplog.text
        config.unlink()
        with pytest.raises(FileNotFoundError):
            client.reload()
        publisher.publish(b"still", confirm="merged", timeout_s=PATIENCE_S)
    config.write_text(text)
    with pytest.raises(Stopped):
        client.reload()

    async def main():
        async with aio.connect(config, root=str(tmp_path / "twin")) as twin:
            return await twin.reload()

    assert asyncio.run(main()) == []


def test_publish_waits_for_the_level_it_is_asked_for(connected):
    """`merged` must mean that any subscriber can have it."""
    publisher = connected.publisher("waiting")
    assert publisher.publish(b"AA1", confirm="merged", timeout_s=PATIENCE_S) == 0
    assert publisher.confirmed().merged >= publisher.flush("written").position
    assert payloads_of(connected, "waiting", 1, follow=False) == [b"AA1"]


def test_a_future_resolves_to_a_place_in_the_merged_log_at_or_after_the_message(connected):
    """A reader that has come there has read the message."""
    publisher = connected.publisher("futures")
    futures = [publisher.publish_future(b"%d" % number) for number in range(500)]
    ends = [future.result(PATIENCE_S).merged_at for future in futures]
    assert ends == sorted(ends)
    with connected.subscriber(sessions=["futures"], follow=False) as subscriber:
        for end, message in zip(ends, subscriber, strict=True):
            assert message.next_position <= end


def test_futures_resolve_for_every_level_and_call_back(connected):
    """Each level is someone's idea of safe; a callback suits callers without a thread to spare."""
    publisher = connected.publisher("levels")
    called = threading.Event()
    for level in ("written", "synced", "received", "replicated", "merged"):
        future = publisher.publish_future(b"x", confirm=level)
        assert future.result(PATIENCE_S).level.name.lower() == level
    publisher.publish_future(b"y").add_done_callback(lambda _: called.set())
    assert called.wait(PATIENCE_S)


def test_many_threads_that_wait_share_one_round(connected):
    """Group commit: thirty-two waits must not cost thirty-two rounds each."""
    publisher = connected.publisher("threads")
    done = []

    def work():
        for _ in range(20):
            publisher.publish(b"x", confirm="merged", timeout_s=PATIENCE_S)
        done.append(1)

    threads = [threading.Thread(target=work) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 32
    assert publisher.next_sequence == 640


def test_a_cancelled_future_takes_nothing_back_and_disturbs_no_other(connected):
    """Giving up the wait does not take the message back."""
    publisher = connected.publisher("cancelled")
    first, second = publisher.publish_future(b"1"), publisher.publish_future(b"2")
    was_cancelled = first.cancel()
    assert second.result(PATIENCE_S).merged_at
    if was_cancelled:
        with pytest.raises(CancelledError):
            first.result(0)
    assert payloads_of(connected, "cancelled", 2) == [b"1", b"2"]


def test_publishers_wait_for_what_the_configuration_says(cluster, tmp_path):
    """One team runs the stream, and others write programs; each may still choose."""
    with open(os.path.join(cluster.root, "clients.toml")) as file:
        text = file.read()
    config = tmp_path / "clients.toml"
    config.write_text(text + '[publisher]\nconfirm = "received"\nconfirm_timeout_s = "90s"\n')
    with rt.connect(config, root=str(tmp_path / "root")) as client:
        publisher = client.publisher("quick")
        assert publisher.timeout_s == 90
        receipt = publisher.publish_future(b"x").result(PATIENCE_S)
        assert receipt.level.name == "RECEIVED"
        assert publisher.flush().level.name == "RECEIVED"
        own = client.publisher("sure", confirm="merged")
        assert own.publish_future(b"x").result(PATIENCE_S).level.name == "MERGED"
        port = cluster.addresses[0][1]
        unreached = text.replace(f":{port}", ":1")  # a node may merge within a millisecond
        config.write_text(
            unreached + '[publisher]\nconfirm = "synced"\nconfirm_timeout_s = 0.001\n'
        )
        assert client.reload() == []
        later = client.publisher("later")
        assert later.publish_future(b"x").result(PATIENCE_S).level.name == "SYNCED"
        with pytest.raises(FlushTimeout, match=r"within 1 ms"):
            later.publish(b"x", confirm="merged")
        assert publisher.timeout_s == 90, "what is open stays as it is"
        config.write_text(text)
        assert client.reload() == []
    run("status", "--config", config)
    for wrong in ('confirm = "sent"', "confirm_timeout_s = -1", "timeout = 3"):
        config.write_text(f"{text}[publisher]\n{wrong}\n")
        with pytest.raises(Misuse, match="publisher"):
            rt.connect(config, root=str(tmp_path / "root"))


def test_nothing_is_confirmed_by_nodes_that_are_not_there(cluster, tmp_path):
    """The error names the level that was reached; the message stays."""
    client = rt.connect(
        os.path.join(cluster.root, "clients.toml"), root=tmp_path, nodes=["localhost:1"]
    )
    publisher = client.publisher("alone")
    with pytest.raises(FlushTimeout, match="merged was not reached") as caught:
        publisher.publish(b"AA1", confirm="merged", timeout_s=0.05)
    assert caught.value.reached in ("written", "synced")
    future = publisher.publish_future(b"AA2", confirm="received")
    client.close(timeout_s=0.1)
    with pytest.raises(Stopped, match="was closed before that"):
        future.result(PATIENCE_S)
    with pytest.raises(Stopped):
        publisher.publish(b"AA3")
    with pytest.raises(Stopped):
        client.publisher("later")
    with connect(cluster, tmp_path) as again:
        again.publisher("alone").flush("merged", PATIENCE_S)
        assert payloads_of(again, "alone", 2) == [b"AA1", b"AA2"], "the next client ships it"


def test_a_close_that_takes_long_says_what_it_waits_for(cluster, tmp_path, caplog):
    """A program that was ended by ctrl-C hung for ten seconds without a word."""
    config = os.path.join(cluster.root, "clients.toml")
    client = rt.connect(config, root=tmp_path, nodes=["localhost:1"])
    publisher = client.publisher("hung")
    publisher.publish_future(b"AA1", confirm="merged")
    # it says so after a second, unless it is not run again before its time is over
    assert not publisher.close(timeout_s=4)
    client.close()
    said = [each for each in caplog.messages if each.startswith("session hung: ")]
    assert said[0].startswith("session hung: waiting up to 3 s for a majority of the nodes")
    assert "does not have everything yet" in said[1]
    assert len(said) == 2


def test_a_reader_that_does_not_follow_waits_for_the_copy_or_says_why_not(cluster, tmp_path):
    """An old copy's end is not the stream's."""
    with (
        rt.connect(
            os.path.join(cluster.root, "clients.toml"), root=tmp_path, nodes=["localhost:1"]
        ) as client,
        pytest.raises(TimeoutError, match="is not up to date after"),
    ):
        client.subscriber(follow=False, timeout_s=0.05)


def test_a_reader_of_a_copy_that_another_keeps_waits_for_it_too(cluster, connected, tmp_path):
    """It ended wherever that copy happened to be; a warning in a log was all that said so."""
    connected.subscriber()  # keeps the copy in this directory
    with connect(cluster, tmp_path / "in") as publishing, connect(cluster, tmp_path) as second:
        publisher = publishing.publisher("shared-copy")
        for number in range(20):
            publisher.publish(b"%d" % number, confirm="merged")
            read = [*second.subscriber(sessions=[publisher.name], follow=False)]
            assert len(read) == number + 1
        second.wait_caught_up(PATIENCE_S)


# Cursors


def test_a_cursor_continues_where_its_last_reader_stopped(cluster, tmp_path):
    """A program should not have to store positions itself."""
    with connect(cluster, tmp_path) as client:
        publisher = client.publisher("durable")
        publisher.publish_many([b"%d" % number for number in range(10)])
        publisher.flush("merged", PATIENCE_S)
        with client.subscriber(cursor="etl", sessions=["durable"]) as reader:
            first = [m.payload for most in (3, 1) for m in reader.messages(max=most)]
    with connect(cluster, tmp_path) as client:
        with client.subscriber(cursor="etl", sessions=["durable"], follow=False) as reader:
            rest = [message.payload for message in reader]
        assert read_cursors(tmp_path, STREAM)["etl"].epoch == 2
    assert first + rest == [b"%d" % number for number in range(10)]


def test_what_was_not_handled_comes_again(cluster, tmp_path):
    """At least once: a handler that failed has not handled."""
    with connect(cluster, tmp_path) as client:
        client.publisher("failing").publish_many([b"0", b"1", b"2"])
        reader = client.subscriber(cursor="etl", sessions=["failing"], ack="explicit")
        with pytest.raises(ZeroDivisionError):
            reader.run(lambda message: 1 // (1 - int(message.payload)))
        reader.close()
        again = client.subscriber(cursor="etl", sessions=["failing"], ack="auto")
        with pytest.raises(KeyError), again:
            {}[next(iter(again)).payload]
        with client.subscriber(cursor="etl", sessions=["failing"]) as last:
            assert next(iter(last)).payload == b"1", "the failed block acknowledged nothing"


def test_a_cursor_has_one_reader_at_a_time(connected):
    """Two that share a place would each miss what the other took."""
    refusal = pytest.raises(Misuse, match="cursor 'only' of stream 'flights' has a reader")
    with connected.subscriber(cursor="only"), refusal:
        connected.subscriber(cursor="only")
    connected.subscriber(cursor="only").close()


def test_a_cursor_that_cannot_be_stored_is_released(tmp_path):
    """The disk was full when a program left its block: its next reader must not be locked out."""
    with rt.Publisher(tmp_path, stream=STREAM, session="jfk") as publisher:
        publisher.publish(b"x")

    disk = FaultyDisk()
    reader = rt.Subscriber(tmp_path, stream=STREAM, session="jfk", follow=False)
    cursor = LocalCursor(str(tmp_path), STREAM, "full", interval_s=0.0, disk=disk)
    subscription = Subscription(reader, cursor, "auto")
    assert next(iter(subscription)).payload == b"x"
    disk.room = 0
    with pytest.raises(OSError, match="No space left"):
        subscription.__exit__(None, None, None)
    LocalCursor(str(tmp_path), STREAM, "full").close()


def test_a_cursor_of_another_log_is_refused(tmp_path):
    """A stream that was deleted and made again has other messages at the same places."""
    cursor = LocalCursor(str(tmp_path), STREAM, "etl")
    cursor.open_at(Position(100), "ab" * 16)
    cursor.close()
    cursor = LocalCursor(str(tmp_path), STREAM, "etl")
    assert not cursor.is_new
    assert cursor.state.position == 100
    with pytest.raises(Misuse, match="was made for another log"):
        cursor.open_at(Position(0), "cd" * 16)
    cursor.close()


def test_every_flipped_bit_and_cut_of_a_cursor_is_damage(tmp_path):
    """A wrong place silently loses or repeats messages."""
    data = CursorState(Position(4096), 3, 5, "ab" * 16).encode()
    assert decode_cursor(data) == CursorState(Position(4096), 3, 5, "ab" * 16)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_cursor(bytes(flipped)) is None
    assert not any(decode_cursor(data[:end]) for end in range(len(data)))
    LocalCursor(str(tmp_path), STREAM, "etl").close()
    with open(tmp_path / STREAM / ".cursors" / "etl", "wb") as file:
        file.write(data[:-1])
    with pytest.raises(CorruptLog, match="the cursor is damaged"):
        LocalCursor(str(tmp_path), STREAM, "etl")


def test_acknowledgements_never_go_back_and_are_stored_in_time(tmp_path):
    """A late acknowledgement of an earlier message must not repeat what is done."""
    cursor = LocalCursor(str(tmp_path), STREAM, "etl", interval_s=3600)
    cursor.open_at(Position(0), "")
    cursor.ack(Position(500))
    cursor.ack(Position(100))
    assert cursor.state.position == 500
    assert read_cursors(str(tmp_path), STREAM)["etl"].position == 0, "within the interval"
    cursor.ack(Position(600), sync=True)
    assert read_cursors(str(tmp_path), STREAM)["etl"].position == 600
    cursor.ack(Position(700))
    cursor.close()
    assert read_cursors(str(tmp_path), STREAM)["etl"].position == 700


@pytest.mark.parametrize("name", ["", "A", "a.b", "../x", "a" * 65, "-a", ".a"])
def test_a_cursor_name_that_could_leave_the_directory_is_refused(tmp_path, name):
    """A name becomes a path."""
    with pytest.raises(Misuse, match="is not a name for a cursor"):
        LocalCursor(str(tmp_path), STREAM, name)


def test_an_operator_lists_moves_and_forgets_cursors(cluster, tmp_path):
    """At three in the morning an operator asks which reader lags, and has it read again."""
    options = ("--root", tmp_path, "--stream", STREAM)
    with connect(cluster, tmp_path) as client:
        publisher = client.publisher("operated")
        publisher.publish_many([b"0", b"1", b"2"])
        publisher.flush("merged", PATIENCE_S)
        with client.subscriber(cursor="etl", follow=False) as reader:
            *_, last = reader
            held = run("cursor", "reset", "etl", "--to", "earliest", *options)
            assert held.exit_code == 2
            assert "cursor 'etl' of stream 'flights' has a reader" in held.stderr
    [row] = json.loads(run("cursor", "list", "--json", *options).stdout)
    assert Position.parse(row["position"]) >= last.next_position
    assert (row["held"], row["bytes_behind"]) == (False, 0)
    moved = run("cursor", "reset", "etl", "--to", "last:2", *options)
    assert moved.exit_code == 0, moved.stderr
    assert f"cursor etl moved from {row['position']} to " in moved.stdout
    shown = json.loads(run("cursor", "show", "etl", "--json", *options).stdout)
    assert shown["bytes_behind"] > 0
    assert "etl" in run("cursor", "list", *options).stdout
    assert run("cursor", "forget", "etl", *options).exit_code == 0
    unknown = run("cursor", "show", "etl", *options)
    assert unknown.exit_code == 2
    assert "has no cursor 'etl' here; it has none" in unknown.stderr


# asyncio and logging


def test_the_asyncio_twin_publishes_confirms_and_reads(cluster, tmp_path):
    """The same names, awaited; the loop stays free."""

    async def main():
        async with aio.connect(os.path.join(cluster.root, "clients.toml"), root=tmp_path) as client:
            publisher = await client.publisher("async")
            assert await publisher.publish(b"1") == 0
            assert await publisher.publish(b"2", confirm="merged") == 1
            confirmed = await publisher.publish_future(b"3", headers={"a": b"3"})
            assert confirmed.merged_at
            subscriber = await client.subscriber(sessions=["async"])
            found = []
            await publisher.publish(b"4", headers={"a": b"4"})
            publisher.publish_many([b"5"], headers=[{"a": b"5"}])
            async for message in subscriber:
                found.append((message.payload, message.headers.get("a")))
                if len(found) == 5:
                    break
            return found

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == [
        (b"1", None), (b"2", None), (b"3", b"3"), (b"4", b"4"), (b"5", b"5"),
    ]  # fmt: skip


def test_a_wait_in_asyncio_ends_in_time_and_drops_the_oldest_without_waiting(cluster, tmp_path):
    """As the blocking client; the loop must not be blocked by a full disk."""

    async def main():
        clients = os.path.join(cluster.root, "clients.toml")
        async with aio.connect(clients, root=tmp_path, nodes=["localhost:1"]) as client:
            limit = rt.DiskLimit(1 << 19, on_full="drop_oldest")
            publisher = await client.publisher("late", disk_limit=limit)
            with pytest.raises(FlushTimeout, match="merged was not reached"):
                await publisher.publish(b"AA1", confirm="merged", timeout_s=0.05)
            future = publisher.publish_future(b"AA2")
            for _ in range(20):
                publisher.publish_many([bytes(1000)] * 100)
            with pytest.raises(rt.MessagesDropped, match="session late dropped"):
                await future
            assert publisher.dropped()[0].first == 0
            await client.close(timeout_s=0.1)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_log_records_become_messages_and_our_own_do_not(connected):
    """A handler that published what publishing logs would never end."""
    publisher = connected.publisher("logging")
    handler = StreamHandler(publisher)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger, ours = logging.getLogger("shop.orders"), logging.getLogger("rt.client")
    for each in (logger, ours):
        each.addHandler(handler)
    try:
        logger.warning("order %d is late", 7)
        ours.warning("never published")
        handler.handle(
            logging.makeLogRecord(
                {"name": "shop.orders", "levelname": "ERROR", "msg": "bad \udc80 byte"}
            )
        )
        handler.flush()
    finally:
        for each in (logger, ours):
            each.removeHandler(handler)
    with connected.subscriber(sessions=["logging"]) as subscriber:
        found = [next(iter(subscriber)) for _ in range(2)]
    assert [m.payload for m in found] == [b"WARNING order 7 is late", b"ERROR bad \x80 byte"]
    assert {m.key for m in found} == {b"shop.orders"}


def test_wrong_arguments_are_named(cluster, tmp_path):
    """The caller learns which argument is wrong, and what to use."""
    with connect(cluster, tmp_path) as client:
        for argument in ({"confirm": "soon"}, {"session": "../x"}):
            with pytest.raises(Misuse):
                client.publisher(**{"session": "wrong", **argument})
        with pytest.raises(Misuse, match="ack is 'later'; use auto or explicit"):
            client.subscriber(cursor="wrong", ack="later")
        with pytest.raises(Misuse, match="not a start"):
            client.subscriber(start="yesterday-ish")
        client.subscriber(cursor="wrong").close()
    with pytest.raises(Misuse, match="nodes"):
        rt.connect(nodes=[], stream=STREAM)
