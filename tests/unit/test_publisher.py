"""Publisher: accepts a message or says why not; accepted messages are never lost or repeated."""

import errno
import math
import os
import threading
import time

import pytest
from faulty import FaultyDisk, fail_call
from logs import TIME_NS
from replicator_host import eventually

from rt import (
    Batching,
    Confirmations,
    FlushTimeout,
    Fsync,
    Misuse,
    Publisher,
    RtError,
    Stopped,
    Subscriber,
    WriterFailed,
    WriterSettings,
)
from rt.limits import KIB
from rt.log.notify.confirmations import ConfirmationsFile
from rt.log.write.batcher import Batcher
from rt.log.write.pending import PendingFrame
from rt.position import Position

PATIENT = Batching(linger_s=30, frame_bytes=64 * KIB)
PROMPT = Batching(linger_s=0)
NEVER = WriterSettings(fsync=Fsync.NEVER)


def opened(root, **kwargs):
    """Return a publisher of the session used here."""
    return Publisher(str(root), stream="flights", session="jfk", **kwargs)


def read(root, **kwargs):
    """Return the messages of the session now."""
    with Subscriber(
        str(root), stream="flights", session="jfk", follow=False, **kwargs
    ) as subscriber:
        return list(subscriber)


def numbers(root):
    """Return the sequence numbers and payloads of the session now."""
    return [(message.sequence, message.payload) for message in read(root)]


def test_a_lone_message_can_be_read_as_soon_as_publish_returns(tmp_path):
    """A heartbeat or an alarm must not wait for company, however long the linger is."""
    with opened(tmp_path, batching=PATIENT) as publisher:
        assert publisher.publish(b"alone") == 0
        assert numbers(tmp_path) == [(0, b"alone")]


def test_messages_that_keep_their_distance_are_each_alone(tmp_path):
    """One that had to wait must not make the next wait, or a steady pace never leaves at once."""
    now_ns = 10**18
    with opened(tmp_path, batching=PATIENT, clock=lambda: now_ns) as publisher:
        publisher.publish(b"first")
        now_ns += 10 * 10**9
        publisher.publish(b"soon after")
        assert len(numbers(tmp_path)) == 1
        now_ns += 29 * 10**9
        publisher.flush("written")
        now_ns += 2 * 10**9
        publisher.publish(b"alone")
        assert [payload for _, payload in numbers(tmp_path)] == [b"first", b"soon after", b"alone"]


def test_a_message_that_comes_soon_after_waits_for_company_and_no_longer(tmp_path):
    """A flood pays one write for thousands; the linger is the most it costs."""
    with opened(tmp_path, batching=Batching(linger_s=0.05)) as publisher:
        for place in range(100):
            publisher.publish(b"%d" % place)
        with Subscriber(str(tmp_path), stream="flights", session="jfk") as subscriber:
            found = []
            for batch in subscriber.batches(timeout_s=10):
                found.append(len(batch))
                if sum(found) == 100:
                    break
    assert found[0] == 1
    assert len(found) < 20


def test_a_frame_is_written_when_it_is_full(tmp_path):
    """A linger of minutes must not hold back a flood, nor memory grow with it."""
    with opened(tmp_path, batching=Batching(linger_s=60, frame_bytes=KIB)) as publisher:
        publisher.publish(b"alone")
        for _ in range(22):  # two frames of eleven
            publisher.publish(bytes(88))
        assert [message.sequence for message in read(tmp_path)] == list(range(23))


def test_a_frame_that_fills_does_not_make_the_next_message_wait_twice(tmp_path):
    """It waits since it came, and not since the thread that writes it found the last one gone."""
    pending, lock = PendingFrame(KIB), threading.Lock()
    batcher = Batcher(str(tmp_path), lock, pending, 60.0, pending.clear)
    for _ in range(2):  # the first is written in between, as its frame fills
        with lock:
            pending.payloads.append(b"x")
            batcher.rouse()
            batcher.written()
    assert 0 < batcher.turn() <= 60
    batcher.stop()
    with opened(tmp_path, batching=Batching(linger_s=0.05, frame_bytes=KIB)) as publisher:
        publisher.publish(b"alone")
        for _ in range(12):
            publisher.publish(bytes(88))
        assert eventually(lambda: len(numbers(tmp_path)) == 13)


def test_flush_writes_what_is_waiting(tmp_path):
    """A program that flushes wants it to be there now."""
    with opened(tmp_path, batching=PATIENT) as publisher:
        publisher.publish(b"alone")
        publisher.publish(b"waiting")
        assert len(numbers(tmp_path)) == 1
        confirmed = publisher.flush("written")
        assert len(numbers(tmp_path)) == 2
        assert publisher.flush().position == confirmed.position
        assert read(tmp_path)[-1].next_position <= confirmed.position


def test_keys_times_and_payloads_are_read_as_they_were_published(tmp_path):
    """With and without keys in one frame, bytes-like objects, times of the past."""
    with opened(tmp_path, batching=PATIENT) as publisher:
        publisher.publish(b"alone")
        publisher.publish(b"plain")
        publisher.publish(bytearray(b"array"), key=memoryview(b"view"), time_ns=TIME_NS)
        publisher.publish(b"", key=b"")
        publisher.publish_many([b"x", b"y"], keys=[b"kx", b"ky"], times_ns=[1, -1])
    found = [(m.payload, m.key) for m in read(tmp_path)]
    assert found == [
        (b"alone", b""), (b"plain", b""), (b"array", b"view"), (b"", b""), (b"x", b"kx"),
        (b"y", b"ky"),
    ]  # fmt: skip
    times = [m.time_ns for m in read(tmp_path)]
    assert (times[2], times[4], times[5]) == (TIME_NS, 1, -1)
    assert abs(times[0] - time.time_ns()) < 60e9


def test_many_messages_fill_frames_of_the_size_that_is_set(tmp_path):
    """Between the edges cost is per frame; tiny or endless ones would both be slow."""
    with opened(tmp_path, batching=Batching(frame_bytes=KIB)) as publisher:
        assert publisher.publish_many([bytes(100)] * 50) == range(50)
        assert publisher.publish_many([]) == range(50, 50)
    with Subscriber(str(tmp_path), stream="flights", session="jfk", follow=False) as subscriber:
        assert [len(batch) for batch in subscriber.batches()] == [10] * 5


@pytest.mark.parametrize("level", [0, 3])
def test_the_largest_message_is_taken_and_one_byte_more_is_not(tmp_path, level):
    """The limit is named, and what is refused leaves no trace."""
    settings = WriterSettings(fsync=Fsync.NEVER, compression=level)
    with opened(tmp_path, batching=Batching(message_bytes_max=1000), writer=settings) as publisher:
        publisher.publish(bytes(990), key=bytes(10))
        with pytest.raises(Misuse, match=r"1001 bytes is larger .* 1000 \(message_bytes_max\)"):
            publisher.publish(bytes(990), key=bytes(11))
        with pytest.raises(Misuse, match="1001"):
            publisher.publish_many([b"first", bytes(1001)])
        assert publisher.publish(b"next") == 1
    assert [len(payload) for _, payload in numbers(tmp_path)] == [990, 4]


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"payload": "text"}, "not str"),
        ({"payload": None}, "not NoneType"),
        ({"payload": b"", "key": "text"}, "not str"),
        ({"payload": b"", "time_ns": "now"}, "64 bits"),
        ({"payload": b"", "time_ns": 1.5}, "64 bits"),
        ({"payload": b"", "time_ns": 1 << 63}, "64 bits"),
    ],
)
def test_a_wrong_type_is_refused_before_it_can_spoil_a_frame(tmp_path, kwargs, reason):
    """Taken into a batch it would make every later call fail."""
    with opened(tmp_path, batching=PATIENT) as publisher:
        publisher.publish(b"alone")
        with pytest.raises(Misuse, match=reason):
            publisher.publish(**kwargs)
        publisher.publish(b"next")
    assert numbers(tmp_path) == [(0, b"alone"), (1, b"next")]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"payloads": [b"x", "text"]},
        {"payloads": [b"x"], "keys": ["text"]},
        {"payloads": [b"x"], "keys": [b"a", b"b"]},
        {"payloads": [b"x"], "times_ns": []},
        {"payloads": [b"x", b"y"], "times_ns": [1, 1 << 63]},
        {"payloads": [b"x"], "times_ns": ["now"]},
    ],
)
def test_many_messages_are_checked_before_any_is_taken(tmp_path, kwargs):
    """Half a batch in the log would have to be found and repeated by the caller."""
    with opened(tmp_path) as publisher:
        with pytest.raises(Misuse):
            publisher.publish_many(**kwargs)
        assert publisher.next_sequence == 0
    assert numbers(tmp_path) == []


def test_a_closed_publisher_says_so(tmp_path):
    """A message that is silently dropped is lost."""
    publisher = opened(tmp_path)
    publisher.publish(b"x")
    publisher.close()
    publisher.close()
    for act in (
        lambda: publisher.publish(b"y"),
        lambda: publisher.publish_many([b"y"]),
        lambda: publisher.publish_many([]),
        publisher.flush,
    ):
        with pytest.raises(Stopped, match="'jfk' is closed"):
            act()
    assert numbers(tmp_path) == [(0, b"x")]


def test_a_second_publisher_of_a_session_is_refused(tmp_path):
    """Two would give one number to two messages."""
    with opened(tmp_path), pytest.raises(Misuse, match="live writer"):
        opened(tmp_path)


def test_a_flush_may_wait_for_ever(tmp_path):
    """Whether it has to wait at all is chance; that it may must not be an error."""
    never = WriterSettings(fsync=Fsync.NEVER)
    with opened(tmp_path, writer=never) as publisher:
        publisher.publish(b"a")
        assert publisher.flush("synced", math.inf).position == Position(88)


def test_a_flush_does_not_wait_for_a_file_without_a_frame(tmp_path):
    """A life that was killed before its first frame leaves one; nodes confirm what is in frames."""
    with opened(tmp_path) as publisher:
        publisher.publish(b"a")
        end = publisher.flush("synced").position
    (tmp_path / "flights" / "jfk" / "log.1.0").touch()
    ConfirmationsFile(str(tmp_path / "flights" / "jfk")).write(Confirmations(end, end, end, end))
    with opened(tmp_path) as publisher:
        assert publisher.flush("merged", 0.1).position == end


def test_numbers_continue_after_a_restart_and_may_only_be_skipped_forward(tmp_path):
    """Deduplication goes by number: one given twice is one message dropped."""
    with opened(tmp_path, batching=PATIENT) as publisher:
        publisher.publish(b"a")
        publisher.publish(b"b")
        publisher.skip_to(10)
        assert publisher.publish(b"c") == 10
        for wrong in (10, 0, -1, 1 << 63):
            with pytest.raises(Misuse, match="11"):
                publisher.skip_to(wrong)
    with opened(tmp_path) as publisher:
        assert publisher.next_sequence == 11
        publisher.publish(b"d")
    assert [number for number, _ in numbers(tmp_path)] == [0, 1, 10, 11]


def test_many_threads_share_one_publisher(tmp_path):
    """Each number once, each thread's own messages in its order."""
    taken = {}

    def run(name):
        taken[name] = [publisher.publish(b"%d %d" % (name, place)) for place in range(300)]

    with opened(tmp_path, batching=Batching(frame_bytes=KIB)) as publisher:
        threads = [threading.Thread(target=run, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = dict(numbers(tmp_path))
    assert sorted(found) == list(range(1200))
    for name, given in taken.items():
        assert given == sorted(given)
        assert [found[number] for number in given] == [b"%d %d" % (name, p) for p in range(300)]


def test_a_full_disk_refuses_the_message_keeps_the_earlier_and_goes_on_later(tmp_path):
    """The refused one is not delivered later: the caller was told, and may publish it again."""
    disk = FaultyDisk()
    with opened(tmp_path, batching=PROMPT, writer=NEVER, disk=disk) as publisher:
        publisher.publish(b"before")
        for room in (0, 1, 40, 87):
            disk.room = room
            with pytest.raises(OSError, match="space") as error:
                publisher.publish(b"refused", key=b"k")
            assert error.value.errno == errno.ENOSPC
            assert numbers(tmp_path) == [(0, b"before")], "nothing torn is visible"
        disk.room = None
        assert publisher.publish(b"after") == 1
    assert numbers(tmp_path) == [(0, b"before"), (1, b"after")]


def test_what_was_taken_before_the_disk_was_full_is_written_when_there_is_space(tmp_path):
    """`publish` returned a number for it; it waits in memory and is tried again."""
    disk = FaultyDisk()
    with opened(tmp_path, batching=Batching(linger_s=0.05), writer=NEVER, disk=disk) as publisher:
        publisher.publish(b"alone")
        disk.room = 50
        publisher.publish(b"taken", key=b"k")
        with pytest.raises(OSError, match="space"):
            publisher.flush("written")
        with pytest.raises(OSError, match="space"):
            publisher.publish_many([b"refused"] * 5)
        assert publisher.next_sequence == 2
        disk.room = None
        with Subscriber(
            str(tmp_path), stream="flights", session="jfk", start="last:0"
        ) as subscriber:
            assert next(subscriber.messages(timeout_s=10)).payload == b"taken"
        publisher.publish(b"after")
    assert numbers(tmp_path) == [(0, b"alone"), (1, b"taken"), (2, b"after")]


def test_what_a_full_disk_refuses_at_the_end_is_named(tmp_path):
    """`publish` had returned numbers for it; "no space left" did not say that they are lost."""
    disk = FaultyDisk()
    publisher = opened(tmp_path, batching=Batching(linger_s=60), writer=NEVER, disk=disk)
    publisher.publish(b"alone")
    disk.room = 0
    publisher.publish(b"taken")
    publisher.publish(b"taken")
    with pytest.raises(OSError, match="session 'jfk' is closed without messages 1 to 2") as error:
        publisher.close()
    assert error.value.errno == errno.ENOSPC
    disk.room = None
    publisher.close()
    with opened(tmp_path) as again:
        assert again.next_sequence == 1


def test_a_failed_sync_ends_the_publisher_and_is_never_retried(tmp_path):
    """PostgreSQL, 2018: the second fsync succeeds, and the data is gone."""
    disk, syncs = FaultyDisk(), []

    def step(call):
        if call == "sync":
            syncs.append(call)
            raise OSError(errno.EIO, "Input/output error")

    publisher = opened(tmp_path, disk=disk, writer=NEVER)
    publisher.publish(b"x")
    disk.step = step
    with pytest.raises(WriterFailed, match="disk failed"):
        publisher.flush()
    for act in (publisher.flush, lambda: publisher.publish_many([b"y"]), publisher.close):
        with pytest.raises(WriterFailed):
            act()
    assert len(syncs) == 1
    with opened(tmp_path) as again:
        assert again.next_sequence == 1


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EMFILE])
def test_whichever_call_fails_flushed_messages_are_there_once_and_in_order(ram_path, number):
    """Every call of the seam in turn: a named error, or none; then a new publisher continues."""
    for nth in range(60):
        root, flushed = ram_path / str(nth), []
        for disk in (None, FaultyDisk(fail_call(nth, number)), None):
            try:
                with opened(root, disk=disk, writer=NEVER, batching=PROMPT) as publisher:
                    for _ in range(3):
                        flushed.append(publisher.publish(b"%d" % publisher.next_sequence))
                        try:
                            publisher.flush(timeout_s=10)
                        except BaseException:
                            flushed.pop()
                            raise
            except (OSError, RtError):
                assert disk is not None, "only the failing disk fails"
            assert disk is None or disk.open_files == 0
        found = numbers(root)
        assert [int(payload) for _, payload in found] == [sequence for sequence, _ in found]
        assert sorted({sequence for sequence, _ in found}) == [sequence for sequence, _ in found]
        assert set(flushed) <= {sequence for sequence, _ in found}, f"call {nth}"


def test_a_flush_waits_for_what_the_nodes_confirm_or_says_how_far_it_came(tmp_path):
    """Another process ships the log; it reports through a small file."""
    with opened(tmp_path) as publisher:
        publisher.publish(b"x")
        publisher.flush("synced")  # however slow the disk is
        told = ConfirmationsFile(str(tmp_path / "flights" / "jfk"))
        with pytest.raises(FlushTimeout, match="only synced") as error:
            publisher.flush("merged", timeout_s=0.01)
        assert (error.value.reached, error.value.wanted) == ("synced", "merged")
        end = publisher.flush("synced").position
        told.write(Confirmations(received=end, replicated=end))
        assert publisher.flush("replicated").position == end
        with pytest.raises(FlushTimeout, match="only replicated"):
            publisher.flush("merged", timeout_s=0)
        threading.Timer(
            0.05, told.write, [Confirmations(end, end, end, merged_at=Position(999))]
        ).start()
        assert publisher.flush("merged", timeout_s=10).merged_at == 999
        with pytest.raises(ValueError, match="no level"):
            publisher.flush("sent")


def test_a_slow_disk_is_a_timeout_and_not_a_promise(tmp_path):
    """`synced` in the log of a program must be true."""
    disk, gate = FaultyDisk(), threading.Semaphore(0)
    with opened(tmp_path, disk=disk, writer=NEVER) as publisher:
        publisher.publish(b"x")
        disk.step = lambda call: gate.acquire(timeout=30) if call == "sync" else None
        with pytest.raises(FlushTimeout, match="only written"):
            publisher.flush("synced", timeout_s=0.01)
        gate.release(1000)
        publisher.flush("synced")


@pytest.mark.parametrize(
    "settings",
    [
        {"frame_bytes": 100}, {"frame_bytes": 1 << 30}, {"linger_s": -1}, {"linger_s": 1e9},
        {"message_bytes_max": 0}, {"message_bytes_max": 1 << 30},
    ],
)  # fmt: skip
def test_settings_out_of_their_bounds_are_refused(settings):
    """A frame that no reader takes must not be possible to ask for."""
    with pytest.raises(Misuse):
        Batching(**settings)


@pytest.mark.parametrize("name", ["", "..", "JFK", "a/b", "out", "jfk\n"])
def test_a_name_outside_the_grammar_makes_no_path(tmp_path, name):
    """It becomes a directory here and on every node."""
    with pytest.raises(Misuse):
        Publisher(str(tmp_path), stream="flights", session=name)
    with pytest.raises(Misuse):
        Publisher(str(tmp_path), stream=name, session="jfk")
    assert os.listdir(tmp_path) == []
