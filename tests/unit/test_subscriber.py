"""Subscriber: every message, once and in order, from any place, while the log grows."""

import asyncio
import gc
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from zlib import crc32

import pytest
from logs import TIME_NS, MergedLog, rows

from rt import (
    AtTime,
    Batching,
    BeyondEnd,
    CaughtUp,
    CorruptLog,
    Gap,
    GapError,
    Last,
    Misuse,
    NewRun,
    Poisoned,
    PoisonError,
    Position,
    Publisher,
    Subscriber,
    WriterSettings,
)
from rt.format.frame import HEADER_BYTES, parse_header, seal_header
from rt.format.manifest import Archived, encode_entry
from rt.inspect.verify import open_log, verify_log
from rt.limits import KIB

PAUSE_S = 10.0  # far more than it takes; a test that waits so long has failed


def publisher_of(root, **kwargs):
    """Return a publisher of the session used here."""
    return Publisher(str(root), stream="flights", session="jfk", **kwargs)


def subscriber_of(root, **kwargs):
    """Return a subscriber of that session."""
    return Subscriber(str(root), stream="flights", session="jfk", **kwargs)


def open_files():
    """Return the descriptors of this process, and what they are of."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


def open_below(root):
    """Return how many descriptors are of files there; threads of earlier tests have others."""
    return sum(target.startswith(f"{root}/") for _, target in open_files())


@pytest.mark.parametrize("is_in_cycle", [False, True])
def test_a_subscriber_that_is_dropped_leaves_nothing_open(tmp_path, is_in_cycle):
    """A service that opened one for each request, and closed none, ran out of descriptors."""
    with publisher_of(tmp_path) as publisher:
        publisher.publish(b"AA1")
    # Threads that earlier tests have left may open and close descriptors of the same numbers.
    assert any(leaves_nothing(tmp_path, is_in_cycle) for _ in range(5))


def leaves_nothing(root, is_in_cycle):
    """Drop a subscriber that watches its directory; return whether it has closed everything."""
    before = open_files()
    subscriber = subscriber_of(root)
    assert subscriber.next_batch(PAUSE_S) is not None
    assert subscriber.next_batch(0.01) is None  # so it watches the directory
    opened = open_files() - before
    if is_in_cycle:
        subscriber.idle = lambda kept=subscriber: kept
    del subscriber
    gc.collect()
    return len(opened) == 4 and not opened & open_files()


@pytest.fixture
def merged(tmp_path):
    """Give a merged log of three sessions: keys, compression, repeats, rolls."""
    with MergedLog(str(tmp_path / "flights" / "out")) as log:
        for place in range(12):
            payloads = [b"%02d%d" % (place, each) for each in range(5)]
            log.merge(
                ["jfk", "lga", "jfk-4"][place % 3], payloads[:2], payloads[2:],
                keys=place % 2 == 0, level=place % 4, skip=[0, 1, 3][place % 3],
            )  # fmt: skip
            if place == 6:
                log.roll()
        yield log


def read(root, **kwargs):
    """Return the messages of the merged log that are there now."""
    with Subscriber(str(root), stream="flights", follow=False, **kwargs) as subscriber:
        return list(subscriber)


def test_a_merged_log_gives_every_message_with_all_its_fields(tmp_path, merged):
    """Session, number, merge time, key: what a program needs to trust its place."""
    assert rows(read(tmp_path)) == merged.expected
    positions = [message.position for message in read(tmp_path)]
    assert positions == sorted(set(positions))


def test_every_message_position_and_every_byte_is_a_place_to_resume(tmp_path, merged):
    """Whatever a program stored, nothing is lost and nothing comes twice."""
    every = read(tmp_path)
    for place, message in enumerate(every):
        assert read(tmp_path, start=message.position) == every[place:]
        assert read(tmp_path, start=message.next_position) == every[place + 1 :]
    for byte in range(merged.appender.end.offset + 1):
        start = Position.of(0, 1, byte)
        expected = [message for message in every if message.position >= start]
        assert read(tmp_path, start=start) == expected


def test_the_position_is_right_after_every_message_of_a_batch(tmp_path, merged):
    """A reader that stops in the middle of a frame and resumes there must not lose the rest."""
    every = read(tmp_path)
    for count in range(1, len(every) + 1):
        with Subscriber(str(tmp_path), stream="flights", follow=False) as subscriber:
            for place, _ in enumerate(subscriber, start=1):
                if place == count:
                    break
            position = subscriber.position
            assert read(tmp_path, start=position) == every[count:]
            assert list(subscriber) == every[count:], "iterating again continues"
        assert subscriber.position >= every[-1].next_position


def test_the_position_is_right_when_messages_are_selected(tmp_path, merged):
    """Counting what is left of the selection led to a place after messages never given."""
    prefix = b"0"
    wanted = [message for message in read(tmp_path) if message.key.startswith(prefix)]
    assert len(wanted) > 10
    for count in range(1, len(wanted) + 1):
        with Subscriber(
            str(tmp_path), stream="flights", follow=False, key_prefix=prefix
        ) as subscriber:
            messages = iter(subscriber)
            given = [next(messages) for _ in range(count)]
            position = subscriber.position
        assert given == wanted[:count]
        assert read(tmp_path, start=position, key_prefix=prefix) == wanted[count:]


@pytest.mark.parametrize(
    ("sessions", "names"),
    [
        (["jfk"], {"jfk"}), (["jfk*"], {"jfk", "jfk-4"}), (["lga", "jfk-*"], {"lga", "jfk-4"}),
        ([], set()), (["ewr"], set()), (["*"], {"jfk", "lga", "jfk-4"}),
    ],
)  # fmt: skip
def test_sessions_are_selected_by_name_and_glob(tmp_path, merged, sessions, names):
    """A reader of one airport does not pay for the others."""
    expected = [row for row in merged.expected if row.session in names]
    assert rows(read(tmp_path, sessions=sessions)) == expected


def test_what_is_not_selected_is_not_decoded(tmp_path):
    """A filter that decodes what it skips is no faster than none."""
    with MergedLog(str(tmp_path / "flights" / "out")) as log:
        log.merge("jfk", [b"AA1", b"AA2"])
        log.merge("lga", [b"B61", b"B62"], keys=True)
    spoil(tmp_path / "flights" / "out" / "log.0.0")  # after its range
    assert len(read(tmp_path, sessions=["lga"])) == 2
    assert read(tmp_path, key_prefix=b"zz") == [], "the other frame has no keys"
    for selected in ({"sessions": ["jfk"]}, {}):
        with pytest.raises(PoisonError):
            read(tmp_path, **selected)


def test_batches_hold_the_same_messages_as_columns(tmp_path, merged):
    """For programs that need speed."""
    with Subscriber(str(tmp_path), stream="flights", follow=False) as subscriber:
        batches = list(subscriber.batches())
    assert [m for batch in batches for m in batch.messages()] == read(tmp_path)
    assert [p for batch in batches for p in batch.payloads()] == [
        row.payload for row in merged.expected
    ]
    assert batches[-1].next_position == read(tmp_path)[-1].next_position


def test_arrow_batches_are_equal_to_the_messages(tmp_path, merged):
    """Spark and pandas read these; an offset wrong by one would shift a column."""
    pytest.importorskip("pyarrow")
    with Subscriber(str(tmp_path), stream="flights", follow=False) as subscriber:
        tables = [batch.to_arrow().to_pylist() for batch in subscriber.batches()]
    assert [row for table in tables for row in table] == [
        {
            "payload": m.payload, "key": m.key, "time_ns": m.time_ns,
            "merge_time_ns": m.merge_time_ns, "sequence": m.sequence, "number": m.number,
            "position": int(m.position), "session": m.session,
            "headers": sorted(m.headers.items()),
        }
        for m in read(tmp_path)
    ]  # fmt: skip


def test_arrow_without_pyarrow_says_what_to_install(tmp_path, merged, monkeypatch):
    """It is optional."""
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with Subscriber(str(tmp_path), stream="flights", follow=False) as subscriber:
        batch = subscriber.next_batch()
    with pytest.raises(Misuse, match="extra 'arrow'"):
        batch.to_arrow()


@pytest.mark.parametrize("watch", ["inotify", "poll"])
def test_a_directory_that_is_made_later_is_read_when_it_is_there(tmp_path, watch):
    """Programs of one system start in any order."""
    found = []

    def follow():
        with subscriber_of(tmp_path / "later", watch=watch) as subscriber:
            found.extend(message.payload for _, message in zip(range(4), subscriber, strict=False))

    thread = threading.Thread(target=follow)
    thread.start()
    with publisher_of(tmp_path / "later") as publisher:
        publisher.publish(b"a")
        publisher.publish(b"b")
    with publisher_of(tmp_path / "later") as publisher:
        publisher.publish_many([b"c", b"d"])
    thread.join(PAUSE_S)
    assert found == [b"a", b"b", b"c", b"d"]


def test_a_log_is_followed_across_rolls_and_runs_while_it_is_written(tmp_path):
    """The main job, under load: every message once and in order."""
    settings = WriterSettings(file_bytes_max=64 * KIB)
    events, found = [], []

    def write():
        for life in range(4):
            with publisher_of(
                tmp_path, writer=settings, batching=Batching(frame_bytes=4 * KIB)
            ) as publisher:
                for _ in range(1500):
                    publisher.publish(
                        b"%d" % publisher.next_sequence + bytes(100), key=b"%d" % life
                    )

    thread = threading.Thread(target=write)
    thread.start()
    with subscriber_of(tmp_path, on_event=events.append) as subscriber:
        for message in subscriber.messages(timeout_s=PAUSE_S):
            found.append(message.sequence)
            if len(found) == 6000:
                break
    thread.join()
    assert found == list(range(6000))
    runs = [event for event in events if isinstance(event, NewRun)]
    assert [event.position for event in runs] == [Position.of(run, 0, 0) for run in (1, 2, 3)]
    assert any(isinstance(event, CaughtUp) for event in events)


def test_a_reader_takes_so_many_messages_at_a_time(tmp_path):
    """Each iteration continues where the last one ended."""
    with publisher_of(tmp_path) as publisher, subscriber_of(tmp_path) as subscriber:
        publisher.publish_many([b"%d" % number for number in range(5)])
        publisher.flush("written")
        taken = [list(subscriber.messages(0, max=most)) for most in (2, 0, 2, 2)]
        assert [[m.payload for m in each] for each in taken] == [
            [b"0", b"1"], [], [b"2", b"3"], [b"4"],
        ]  # fmt: skip
        for wrong in (-1, 1.5, "2", True):
            with pytest.raises(Misuse, match="max is"):
                subscriber.messages(max=wrong)


def test_a_pause_ends_the_iteration_and_it_continues_later(tmp_path):
    """A program that also does other things looks in now and then."""
    with publisher_of(tmp_path) as publisher, subscriber_of(tmp_path) as subscriber:
        assert list(subscriber.messages(timeout_s=0)) == []
        publisher.publish(b"a")
        publisher.flush("written")
        assert [m.payload for m in subscriber.messages(timeout_s=0.05)] == [b"a"]
        assert subscriber.next_batch(timeout_s=0) is None
        publisher.publish(b"b")
        publisher.flush("written")
        assert [m.payload for m in subscriber.messages(timeout_s=0.05)] == [b"b"]


@pytest.mark.parametrize("watch", ["inotify", "poll"])
def test_another_thread_stops_a_waiting_subscriber_at_once(tmp_path, watch):
    """A service must end when asked to."""
    waiting = threading.Event()
    with (
        subscriber_of(tmp_path, watch=watch, on_event=lambda _event: waiting.set()) as subscriber,
        publisher_of(tmp_path),
    ):
        thread = threading.Thread(target=lambda: list(subscriber))
        thread.start()
        assert waiting.wait(PAUSE_S)
        subscriber.stop()
        thread.join(PAUSE_S)
        assert not thread.is_alive()
        assert list(subscriber) == []


@pytest.mark.parametrize("watch", ["inotify", "poll"])
@pytest.mark.parametrize("looks", range(1, 5))
def test_another_thread_closes_a_subscriber_that_looks_for_messages(tmp_path, watch, looks):
    """A client's `close` does; the thread that iterated met a closed file, or left another open."""
    publisher_of(tmp_path).close()
    before = open_files()
    subscriber = subscriber_of(tmp_path, watch=watch)
    left, looking, closed = iter(range(looks)), threading.Event(), threading.Event()

    def idle():
        if next(left, None) is None:
            looking.set()
            closed.wait(PAUSE_S)

    subscriber.idle = idle
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(list, subscriber)
        assert looking.wait(PAUSE_S)
        subscriber.close()
        closed.set()
        assert reading.result(PAUSE_S) == []
    assert open_files() <= before


def test_a_stop_in_the_middle_of_a_batch_keeps_the_place(tmp_path, merged):
    """A slow consumer must not have to finish 10,000 messages first."""
    every = read(tmp_path)
    with Subscriber(str(tmp_path), stream="flights") as subscriber:
        given = []
        for message in subscriber:
            given.append(message)
            if len(given) == 3:
                subscriber.stop()
        assert given == every[:3]
        assert read(tmp_path, start=subscriber.position) == every[3:]
        assert list(subscriber) == []


def test_asyncio_iterates_without_blocking_the_loop(tmp_path):
    """Other tasks go on while this one waits."""

    async def run():
        with subscriber_of(tmp_path) as subscriber, publisher_of(tmp_path) as publisher:
            found = []

            async def collect():
                async for message in subscriber:
                    found.append(message.payload)
                    if len(found) == 3:
                        return

            task = asyncio.create_task(collect())
            for ticks, payload in enumerate((b"a", b"b", b"c")):
                publisher.publish(payload)
                publisher.flush("written")
                while len(found) <= ticks and not task.done():
                    await asyncio.sleep(0)
            await asyncio.wait_for(task, PAUSE_S)
            return found

    assert asyncio.run(run()) == [b"a", b"b", b"c"]


def test_asyncio_ends_at_the_end_and_on_stop(tmp_path, merged):
    """The same ends as the blocking iterator."""

    async def run(subscriber, stop_at=10**9):
        found = []
        async for message in subscriber:
            found.append(message)
            if len(found) == stop_at:
                subscriber.stop()
        return found

    every = read(tmp_path)
    with Subscriber(str(tmp_path), stream="flights", follow=False) as subscriber:
        assert asyncio.run(run(subscriber)) == every
    with Subscriber(str(tmp_path), stream="flights") as subscriber:
        assert asyncio.run(run(subscriber, 3)) == every[:3]
        assert read(tmp_path, start=subscriber.position) == every[3:]


def test_a_cancelled_wait_loses_nothing(tmp_path):
    """`wait_for` around an iteration is how asyncio programs write timeouts."""

    async def run():
        found = []
        with subscriber_of(tmp_path) as subscriber, publisher_of(tmp_path) as publisher:

            async def collect(count):
                async for message in subscriber:
                    found.append(message.payload)
                    if len(found) == count:
                        return

            for number in range(8):
                publisher.publish(b"%d" % number)
                publisher.flush("written")
                try:
                    await asyncio.wait_for(collect(8), 0.001 * (number % 4))
                except TimeoutError:
                    continue
            if len(found) < 8:
                await asyncio.wait_for(collect(8), PAUSE_S)
        return found

    assert asyncio.run(run()) == [b"%d" % number for number in range(8)]


@pytest.fixture
def rolled(tmp_path):
    """Give a session of five files, the second and third archived on demand."""
    for number in range(5):
        with publisher_of(tmp_path) as publisher:
            publisher.publish(b"%d" % number)
    directory = tmp_path / "flights" / "jfk"

    def archive(*runs):
        for run in runs:
            start = Position.of(run, 0, 0)
            with open(directory / "manifest", "ab") as file:
                file.write(encode_entry(Archived(start, TIME_NS, "limit")))
            os.truncate(directory / start.file_name, 0)

    return archive


def test_a_gap_is_an_error_that_says_what_is_left(tmp_path, rolled):
    """Messages that are gone must not go unnoticed."""
    with subscriber_of(tmp_path, follow=False) as subscriber:
        messages = iter(subscriber)
        assert next(messages).payload == b"0"
        rolled(1, 2)
        with pytest.raises(GapError, match=r"archived \(limit; log\.1\.0, log\.2\.0\)") as error:
            next(messages)
    gap = error.value.gap
    assert (gap.end, gap.files) == (Position.of(3, 0, 0), ("log.1.0", "log.2.0"))
    with subscriber_of(tmp_path, follow=False, start=gap.end) as subscriber:
        assert [message.payload for message in subscriber] == [b"3", b"4"]


def test_a_gap_that_a_cancelled_wait_met_is_raised_by_the_next(tmp_path, rolled):
    """A timeout at the wrong moment would hide it."""
    met, cancelled = threading.Event(), threading.Event()

    class Slow(ThreadPoolExecutor):
        def submit(self, call, *args):
            return super().submit(slowly, call, *args)

    def slowly(call, *args):
        met.set()
        assert cancelled.wait(PAUSE_S)
        return call(*args)

    async def run(subscriber):
        return [message.payload async for message in subscriber]

    async def cancel(subscriber):
        loop = asyncio.get_running_loop()
        loop.set_default_executor(Slow(1))
        task = asyncio.create_task(run(subscriber))
        with ThreadPoolExecutor(1) as other:
            assert await loop.run_in_executor(other, met.wait, PAUSE_S)
        task.cancel()
        await asyncio.sleep(0)
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(GapError, match=r"log\.1\.0"):
            await run(subscriber)
        return await run(subscriber)

    with subscriber_of(tmp_path, follow=False, start=Position.of(1, 0, 0)) as subscriber:
        rolled(1, 2)
        assert asyncio.run(cancel(subscriber)) == [b"3", b"4"]


@pytest.mark.parametrize(("on_gap", "told"), [("notify", 1), ("skip", 0)])
def test_a_gap_may_be_reported_or_skipped(tmp_path, rolled, on_gap, told):
    """A dashboard continues; an auditor does not."""
    events = []
    rolled(0)
    rolled(1)
    with subscriber_of(
        tmp_path, follow=False, start=Position(0), on_gap=on_gap, on_event=events.append
    ) as subscriber:
        assert [message.payload for message in subscriber] == [b"2", b"3", b"4"]
    assert len([event for event in events if isinstance(event, Gap)]) == told


def test_the_file_being_read_may_be_archived_under_the_reader(tmp_path):
    """Retention does not ask subscribers."""
    settings = WriterSettings(file_bytes_max=64 * KIB)
    events = []
    with (
        publisher_of(tmp_path, writer=settings) as publisher,
        subscriber_of(tmp_path, on_gap="notify", on_event=events.append) as subscriber,
    ):
        publisher.publish_many([bytes(2000)] * 20)
        assert next(subscriber.messages(PAUSE_S)).sequence == 0
        publisher.publish_many([bytes(2000)] * 8)
        for _ in range(20):
            publisher.publish_many([bytes(10_000)] * 6)
        directory = tmp_path / "flights" / "jfk"
        with open(directory / "manifest", "ab") as file:
            file.write(encode_entry(Archived(Position(0), TIME_NS, "disk")))
        os.truncate(directory / "log.0.0", 0)
        rest = [m.sequence for m in subscriber.messages(timeout_s=0.05)]
    assert rest[:19] == list(range(1, 20)), "what was read already is given out"
    assert any(isinstance(event, Gap) for event in events)
    assert rest[19:] == list(range(28, 148))


def test_an_archived_rest_is_a_gap_and_not_the_end(tmp_path, rolled):
    """Without a newer file the loss looked like a log that was read to its end."""
    rolled(0, 1, 2, 3, 4)
    with subscriber_of(tmp_path, follow=False, start=Position(0)) as subscriber:
        with pytest.raises(GapError, match=r"archived \(limit; log\.0\.0, log\.1\.0") as error:
            list(subscriber)
        assert error.value.gap.end == subscriber.position == Position.of(4, 0, 88)
        assert list(subscriber) == [], "it is raised once"


BEYOND = {"a file that is growing": (0, 50_000), "a file to come": (7, 0)}


@pytest.mark.parametrize("place", BEYOND)
def test_a_start_beyond_the_end_is_an_error_unless_it_is_waited_for(tmp_path, place):
    """A position of another log, or a log that lost its end: an empty answer would hide both."""
    start = Position.of(0, *BEYOND[place])
    with publisher_of(tmp_path) as publisher:
        publisher.publish(b"a")
        publisher.flush("written")
        with (
            subscriber_of(tmp_path, start=start, follow=False) as subscriber,
            pytest.raises(Misuse, match=rf"the log ends at 0\.0\.88, before the start {start}"),
        ):
            list(subscriber)
        events = []
        with subscriber_of(tmp_path, start=start, on_event=events.append) as subscriber:
            for _ in range(3):
                assert subscriber.next_batch(timeout_s=0) is None
        assert events == [BeyondEnd(start, Position(88))], "said once, and not called caught up"


def test_a_copy_that_reaches_the_start_is_caught_up_there(tmp_path):
    """A copy may lag behind the one that a position came from; that passes."""
    events = []
    with publisher_of(tmp_path, batching=Batching(linger_s=0)) as publisher:
        publisher.publish(b"a")
        start = Position(176)
        with subscriber_of(tmp_path, start=start, on_event=events.append) as subscriber:
            assert subscriber.next_batch(timeout_s=0) is None
            publisher.publish(b"b")
            assert subscriber.next_batch(timeout_s=0) is None
            publisher.publish(b"c")
            assert subscriber.next_batch(timeout_s=0).payloads() == [b"c"]
    assert events == [BeyondEnd(start, Position(88)), CaughtUp(start)]


def test_earliest_begins_after_what_is_archived(tmp_path, rolled):
    """Asking for whatever is left is not a gap."""
    rolled(0, 1)
    with subscriber_of(tmp_path, follow=False) as subscriber:
        assert [message.payload for message in subscriber] == [b"2", b"3", b"4"]


def test_damage_is_raised_with_its_position_and_again_on_the_next_try(tmp_path):
    """A loop that catches the error and retries must not get past it."""
    with publisher_of(tmp_path, batching=Batching(linger_s=0)) as publisher:
        for _ in range(3):
            publisher.publish(bytes(100))
    path = tmp_path / "flights" / "jfk" / "log.0.0"
    data = bytearray(path.read_bytes())
    at = parse_header(data).size
    data[at + 90] ^= 1
    path.write_bytes(data)
    with subscriber_of(tmp_path) as subscriber:
        messages = iter(subscriber)
        assert next(messages).sequence == 0
        for _ in range(3):
            with pytest.raises(CorruptLog) as error:
                next(iter(subscriber))
            assert error.value.position == at
            assert "log.0.0" in str(error.value)


def test_columns_that_lie_under_a_good_crc_are_damage_too(tmp_path):
    """A foreign writer's mistake must end in the same named error, and not be passed over."""
    with publisher_of(tmp_path) as publisher:
        publisher.publish_many([b"a", b"b"])
        publisher.publish_many([b"c"])
    path = tmp_path / "flights" / "jfk" / "log.0.0"
    data = bytearray(path.read_bytes())
    header = parse_header(data)
    body = slice(HEADER_BYTES, HEADER_BYTES + header.length)
    data[HEADER_BYTES + 16] = 7  # the first offset, which is 0
    data[:HEADER_BYTES] = seal_header(header._replace(body_crc=crc32(data[body])))
    path.write_bytes(data)
    with subscriber_of(tmp_path, follow=False) as subscriber:
        for _ in range(2):
            with pytest.raises(CorruptLog, match="go back"):
                list(subscriber)
            assert subscriber.position == 0
    with subscriber_of(tmp_path, start=AtTime(TIME_NS)) as subscriber:
        with pytest.raises(CorruptLog, match="go back") as error:
            next(iter(subscriber))
        assert error.value.position == 0


def spoil(path):
    """Have the offsets in the second frame of a file go back; return where the frame begins."""
    data = bytearray(path.read_bytes())
    at = parse_header(data).size
    header = parse_header(data, at)
    body = slice(at + HEADER_BYTES, at + HEADER_BYTES + header.length)
    data[at + HEADER_BYTES + 8 * header.messages] = 9  # the first offset, which is 0
    data[at : at + HEADER_BYTES] = seal_header(header._replace(body_crc=crc32(data[body])))
    path.write_bytes(data)
    return at


@pytest.fixture
def poisoned(tmp_path):
    """Give a session whose second of three frames is whole, and holds offsets that go back."""
    with publisher_of(tmp_path) as publisher:
        for payloads in ([b"a"], [b"b", b"c"], [b"d"]):
            publisher.publish_many(payloads)
    at = spoil(tmp_path / "flights" / "jfk" / "log.0.0")
    return Poisoned("jfk", Position(at), Position(at + 2), 2, "the offsets of the messages go back")


def test_a_poisoned_frame_is_a_typed_error_that_says_where_to_continue(tmp_path, poisoned):
    """One lying publisher stopped every reader of the stream, and none knew how to get past it."""
    with subscriber_of(tmp_path, follow=False) as subscriber:
        messages = iter(subscriber)
        assert next(messages).payload == b"a"
        for _ in range(2):
            with pytest.raises(PoisonError, match=r"of session jfk at 0\.0\.88 cannot") as error:
                next(iter(subscriber))
            assert error.value.event == poisoned
            assert isinstance(error.value, CorruptLog)
    with subscriber_of(tmp_path, follow=False, start=poisoned.end) as subscriber:
        assert [message.payload for message in subscriber] == [b"d"]


@pytest.mark.parametrize(("on_poison", "said"), [("notify", 1), ("skip", 0)])
@pytest.mark.parametrize("in_batches", [False, True])
def test_a_poisoned_frame_is_passed_over_by_policy(tmp_path, poisoned, on_poison, said, in_batches):
    """A stream of a thousand sessions continues without the one frame that cannot be decoded."""
    events = []
    with subscriber_of(
        tmp_path, follow=False, on_poison=on_poison, on_event=events.append
    ) as subscriber:
        if in_batches:
            found = [payload for batch in subscriber.batches() for payload in batch.payloads()]
        else:
            found = [message.payload for message in subscriber]
    assert found == [b"a", b"d"]
    assert [event for event in events if isinstance(event, Poisoned)] == [poisoned] * said


def test_a_start_by_time_passes_over_a_poisoned_frame_by_policy(tmp_path, poisoned):
    """The search for a time decodes frames; what reading may skip must not stop it."""
    with subscriber_of(tmp_path, follow=False) as subscriber:
        start = AtTime(next(iter(subscriber)).time_ns + 1)
    with subscriber_of(tmp_path, follow=False, start=start, on_poison="skip") as subscriber:
        assert [message.payload for message in subscriber] == [b"d"]
    with (
        subscriber_of(tmp_path, follow=False, start=start) as subscriber,
        pytest.raises(PoisonError) as error,
    ):
        list(subscriber)
    assert error.value.event == poisoned


def test_verify_reports_a_poisoned_frame(tmp_path, poisoned):
    """A log that stops its readers must not be called whole."""
    log = open_log(str(tmp_path / "flights" / "jfk"))
    report = verify_log(log, lambda _count: None)
    log.close()
    assert report.is_wrong
    assert [fault for fault in report.faults if f"{poisoned.position}" in fault]
    assert "session jfk is whole, yet its 2 messages cannot be decoded" in report.faults[0]


def test_latest_and_last_begin_where_they_say(tmp_path):
    """A new subscriber of a long log."""
    with publisher_of(tmp_path) as publisher:
        publisher.publish_many([b"%d" % number for number in range(100)])
        with (
            subscriber_of(tmp_path, start="latest") as late,
            subscriber_of(tmp_path, start=Last(3), follow=False) as last,
        ):
            assert late.next_batch(timeout_s=0) is None
            assert [message.sequence for message in last] == [97, 98, 99]
            publisher.publish(b"new")
            assert next(late.messages(PAUSE_S)).payload == b"new"


def test_the_position_can_be_asked_for_before_and_after(tmp_path, merged):
    """A program stores it in a `finally`."""
    subscriber = Subscriber(str(tmp_path), stream="flights", follow=False)
    assert subscriber.position == 0
    every = list(subscriber)
    subscriber.close()
    assert read(tmp_path, start=subscriber.position) == []
    assert every


def test_every_type_that_makes_sense_is_taken(tmp_path, merged):
    """A path is a path, one name is a list of one, and a start may come from a configuration."""
    every = read(tmp_path)
    assert list(Subscriber(tmp_path, stream="flights", follow=False)) == every
    assert read(tmp_path, start="last:3") == every[-3:]
    assert read(tmp_path, sessions="jfk") == read(tmp_path, sessions=["jfk"])
    for prefix in (bytearray(b"02"), memoryview(b"02")):
        assert read(tmp_path, key_prefix=prefix) == read(tmp_path, key_prefix=b"02")


@pytest.mark.parametrize(
    "kwargs",
    [
        {"stream": "../x"}, {"session": "A"}, {"sessions": ["a/b"]}, {"on_gap": "ignore"},
        {"key_prefix": "AA"}, {"start": "newest"},
    ],
)  # fmt: skip
def test_impossible_arguments_are_refused_at_once(tmp_path, kwargs):
    """Not in the thread that iterates."""
    with pytest.raises(Misuse):
        Subscriber(str(tmp_path), **{"stream": "flights", **kwargs})


def test_descriptors_are_given_back(tmp_path, merged):
    """A service opens a subscriber per request."""
    before = open_below(tmp_path)
    for start in ("earliest", "latest", Last(3)):
        read(tmp_path, start=start)
    assert open_below(tmp_path) == before


@pytest.mark.parametrize("start", ["latest", Last(3)])
def test_descriptors_are_given_back_where_the_end_is_damaged(tmp_path, start):
    """A service retries until somebody has repaired the log."""
    with publisher_of(tmp_path) as publisher:
        publisher.publish(bytes(100))
    path = tmp_path / "flights" / "jfk" / "log.0.0"
    path.write_bytes(path.read_bytes()[:-8])
    before, counts = open_below(tmp_path), set()
    with subscriber_of(tmp_path, start=start) as subscriber:
        for _ in range(3):
            with pytest.raises(CorruptLog):
                next(iter(subscriber))
            counts.add(open_below(tmp_path))
        assert len(counts) == 1
    assert open_below(tmp_path) == before


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_descriptors_are_given_back_where_only_the_position_was_asked_for(tmp_path, merged, start):
    """It may be asked for before anything is read, and after the end."""
    before = open_below(tmp_path)
    with Subscriber(str(tmp_path), stream="flights", start=start) as subscriber:
        place = subscriber.position
    assert subscriber.position == place
    assert open_below(tmp_path) == before


def test_a_log_that_was_deleted_and_made_again_is_reported_as_another(tmp_path):
    """A reader of the deleted log would wait for ever, in silence."""
    with publisher_of(tmp_path) as publisher:
        publisher.publish(b"a")
    with subscriber_of(tmp_path, watch="poll") as subscriber:  # it looks more often
        messages = iter(subscriber)
        assert next(messages).payload == b"a"
        shutil.rmtree(tmp_path / "flights" / "jfk")
        assert not list(subscriber.batches(timeout_s=0.05)), "it is gone: it may come back"
        with publisher_of(tmp_path) as publisher:
            publisher.publish(b"b")
        with pytest.raises(CorruptLog, match="deleted, and another made in its place"):
            next(messages)
    assert [each.payload for each in read(tmp_path, session="jfk")] == [b"b"]
