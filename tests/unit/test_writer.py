"""SessionWriter: one live writer, a run per life, and a promise only for what was synced."""

import errno
import os
import threading
from contextlib import closing, nullcontext

import pytest
from faulty import FaultyDisk, fail_call
from logs import TIME_NS

from rt import Subscriber
from rt.errors import CorruptLog, Misuse, RtError, WriterFailed
from rt.limits import KIB
from rt.log.files.disk import OsDisk
from rt.log.notify.confirmations import Confirmations, ConfirmationsFile
from rt.log.write.appender import Appender
from rt.log.write.writer import Fsync, SessionWriter, WriterSettings
from rt.position import RUN_END, Position

NEVER = WriterSettings(fsync=Fsync.NEVER)


def opened(root, settings=NEVER, disk=None, **options):
    """Return a writer of the session used here."""
    return SessionWriter(str(root), "flights", "jfk", settings, disk, **options)


class ByHand:
    """Instead of the threads that sync a writer: notes what it asks for, and does it when told."""

    def __init__(self):
        self.job, self.asked_s, self.now_s = None, [], 100.0
        self.asked = threading.Event()

    def join(self, job):
        self.job = job

    def ask(self, _job, within_s=0.0):
        self.asked_s.append(within_s)
        self.asked.set()

    def leave(self, _job):
        self.job = None

    def turn(self):
        """Have the writer do what is due; return when it wants its next turn, in seconds."""
        asked, self.asked_s = self.asked_s, []
        return self.job.turn() if asked else None

    @property
    def options(self):
        return {"threads": self, "clock": lambda: self.now_s}


def write(writer, payload, count=1):
    """Write one frame."""
    writer.write([TIME_NS] * count, [payload] * count, None)


def read(root):
    """Return the numbers and payloads of the session."""
    with Subscriber(str(root), stream="flights", session="jfk", follow=False) as subscriber:
        return [(message.sequence, message.payload) for message in subscriber]


def test_each_start_opens_a_run_and_numbers_go_on(tmp_path):
    """Two lives never write to one file, so no life can spoil what another wrote."""
    for life in range(4):
        writer = opened(tmp_path)
        assert writer.next_sequence == 2 * life
        write(writer, b"%d" % life, count=2)
        writer.close()
    names = sorted(
        name for name in os.listdir(tmp_path / "flights" / "jfk") if name.count(".") == 2
    )
    assert names == [f"log.{run}.0" for run in range(4)]
    assert read(tmp_path) == [(number, b"%d" % (number // 2)) for number in range(8)]


def test_a_life_without_a_message_leaves_no_file(tmp_path):
    """A publisher that is restarted in a loop must not fill a directory."""
    for _ in range(5):
        opened(tmp_path).close()
    assert sorted(os.listdir(tmp_path / "flights" / "jfk")) == ["lock", "manifest"]


def test_files_roll_before_they_would_pass_their_size(tmp_path):
    """GC frees whole files; one that grew beyond its size would be kept too long."""
    settings = WriterSettings(fsync=Fsync.NEVER, file_bytes_max=64 * KIB)
    writer = opened(tmp_path, settings)
    for _ in range(10):
        write(writer, bytes(20_000))
    write(writer, bytes(200_000))  # larger than a file: it gets one of its own
    write(writer, b"last")
    writer.close()
    directory = tmp_path / "flights" / "jfk"
    sizes = [os.path.getsize(directory / f"log.0.{roll}") for roll in range(6)]
    assert [size // 20_000 for size in sizes] == [3, 3, 3, 1, 10, 0]
    assert [number for number, _ in read(tmp_path)] == list(range(12))


def test_a_file_rolls_when_it_is_old_though_nothing_is_written(tmp_path):
    """Only a rolled file can be archived."""
    now = [100.0]
    settings = WriterSettings(fsync=Fsync.NEVER, file_age_s=60)
    writer = opened(tmp_path, settings, clock=lambda: now[0])
    write(writer, b"a")
    writer.roll_if_old()
    assert writer.end.roll == 0
    now[0] += 61
    writer.roll_if_old()
    write(writer, b"b")
    assert writer.end.roll == 1
    writer.close()


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path):
    """Two would write one number twice; the kernel releases the lock when a process dies."""
    writer = opened(tmp_path)
    with pytest.raises(Misuse, match="live writer"):
        opened(tmp_path)
    writer.close()
    opened(tmp_path).close()


def test_another_identity_is_refused(tmp_path):
    """A directory copied under another name would publish under two."""
    opened(tmp_path).close()
    os.rename(tmp_path / "flights" / "jfk", tmp_path / "flights" / "lga")
    with pytest.raises(Misuse, match="session 'jfk'"):
        SessionWriter(str(tmp_path), "flights", "lga", NEVER)


def test_a_session_that_has_used_its_runs_is_refused_with_a_reason(tmp_path):
    """One that is restarted every second gets there within a week."""
    writer = opened(tmp_path)
    write(writer, b"a")
    writer.close()
    with closing(Appender(OsDisk(), writer.directory, None)) as log:
        log.begin_file(Position.of(RUN_END - 3, 0, 0))
        log.roll(TIME_NS)
    writer = opened(tmp_path)
    write(writer, b"b")
    assert writer.end.run == RUN_END - 2
    writer.close()
    for _ in range(2):
        with pytest.raises(Misuse, match=r"started 524,287 times.*publish under another name"):
            opened(tmp_path)
    assert read(tmp_path) == [(0, b"a"), (1, b"b")]


def test_a_torn_tail_stays_and_the_next_run_begins_after_it(tmp_path):
    """The files of older runs are never touched; the manifest says where they end."""
    writer = opened(tmp_path)
    write(writer, b"a")
    end = writer.end
    write(writer, b"b")
    writer.close()
    # as after a power cut: the line of the roll is not there, nor is all of the last frame
    manifest = tmp_path / "flights" / "jfk" / "manifest"
    manifest.write_bytes(manifest.read_bytes().split(b"\n")[0] + b"\n")
    os.truncate(tmp_path / "flights" / "jfk" / "log.0.0", end + 80)
    writer = opened(tmp_path)
    assert writer.next_sequence == 1
    write(writer, b"c")
    writer.close()
    assert os.path.getsize(tmp_path / "flights" / "jfk" / "log.0.0") == end + 80
    assert read(tmp_path) == [(0, b"a"), (1, b"c")]


def test_a_log_shorter_than_what_a_node_confirmed_is_corrupt(tmp_path):
    """Its numbers would be given out again, and the node would drop the new messages as repeats."""
    writer = opened(tmp_path)
    write(writer, b"a")
    end = writer.end
    write(writer, b"b")
    confirmed = Confirmations(received=writer.end)
    writer.close()
    directory = tmp_path / "flights" / "jfk"
    manifest = directory / "manifest"
    manifest.write_bytes(manifest.read_bytes().split(b"\n")[0] + b"\n")
    os.truncate(directory / "log.0.0", end)
    ConfirmationsFile(str(directory)).write(confirmed)
    with pytest.raises(CorruptLog, match="shorter"):
        opened(tmp_path)
    os.remove(directory / "confirmed")
    opened(tmp_path).close()


@pytest.mark.parametrize("fsync", list(Fsync))
def test_a_sync_covers_all_that_was_written_before_it(tmp_path, fsync):
    """`flush("synced")` returns on the strength of it."""
    disk = FaultyDisk()
    synced = []
    writer = opened(tmp_path, WriterSettings(fsync=fsync, fsync_interval_s=3600), disk)
    disk.step = lambda call: synced.append(writer.end) if call == "sync" else None
    for _ in range(5):
        write(writer, b"a")
        end = writer.end
        assert writer.sync(30)
        assert synced[-1] >= end
        assert writer.synced_to() >= end
    writer.close()


@pytest.mark.parametrize("number", [0, errno.EIO])
def test_a_waiting_sync_is_satisfied_by_the_one_that_closes_the_writer(tmp_path, number):
    """A flush during another thread's close waited for its whole timeout, and then failed."""
    disk, threads, told = FaultyDisk(), ByHand(), []
    writer = opened(tmp_path, NEVER, disk, **threads.options)
    write(writer, b"a")

    def step(call):
        if number and call == "sync":
            raise OSError(number, os.strerror(number))

    def flush():
        try:
            told.append(writer.sync(30))
        except WriterFailed:
            told.append(WriterFailed)

    thread = threading.Thread(target=flush)
    thread.start()
    assert threads.asked.wait(30)  # with the lock held that the close takes
    disk.step = step
    with nullcontext() if not number else pytest.raises(OSError, match="Input/output"):
        writer.close()
    thread.join(10)
    assert told == [WriterFailed if number else True]


def test_always_syncs_unasked_and_many_writes_share_one(tmp_path):
    """Group commit: what was written while the disk was busy goes into the next sync."""
    disk, gate, syncs = FaultyDisk(), threading.Semaphore(0), []
    writer = opened(tmp_path, WriterSettings(fsync=Fsync.ALWAYS), disk)

    def step(call):
        if call == "sync":
            syncs.append(writer.end)
            assert gate.acquire(timeout=30)

    disk.step = step
    write(writer, b"first")
    for _ in range(50):
        write(writer, b"more")
    assert not writer.sync(timeout_s=0), "the disk is busy: not durable yet, and it says so"
    gate.release(1000)
    assert writer.sync(30)
    assert len(syncs) <= 3
    writer.close()


def test_a_silent_writer_rests_and_syncs_unasked_once_more_is_written(tmp_path):
    """A thousand silent sessions cost nothing: the thread of each once woke five times a second."""
    threads = ByHand()
    writer = opened(tmp_path, WriterSettings(fsync_interval_s=0.01), **threads.options)
    for _ in range(3):
        write(writer, b"a")
        write(writer, b"b")
        assert threads.asked_s == [0.01]
        assert threads.turn() is None
        assert writer.synced_to() == writer.end
    writer.close()
    assert len(read(tmp_path)) == 6


@pytest.mark.parametrize("fsync", [Fsync.NEVER, Fsync.INTERVAL, Fsync.ALWAYS])
def test_a_roll_ends_the_rest_since_the_file_may_be_archived_some_day(tmp_path, fsync):
    """Nothing else would wake the thread of a session that rolled its last file with age."""
    threads = ByHand()
    writer = opened(tmp_path, WriterSettings(fsync=fsync), **threads.options)
    write(writer, b"a")
    threads.turn()
    writer.roll()
    release(writer, writer.end)
    assert threads.asked_s == [1.0]
    assert threads.turn() == 1.0, "more may be released"
    assert writer.manifest.archived
    threads.ask(None)
    assert threads.turn() is None, "nothing is left that may be archived"
    writer.close()


def test_a_failed_sync_ends_the_writer_and_is_never_retried(tmp_path):
    """The kernel calls a second try good though the data is gone."""
    disk, syncs = FaultyDisk(), []
    writer = opened(tmp_path, NEVER, disk)

    def step(call):
        if call == "sync":
            syncs.append(call)
            raise OSError(errno.EIO, "Input/output error")

    write(writer, b"a")
    disk.step = step
    for act in (lambda: writer.sync(30), lambda: write(writer, b"b"), writer.roll_if_old):
        with pytest.raises(WriterFailed, match="disk failed"):
            act()
    with pytest.raises(WriterFailed):
        writer.close()
    assert len(syncs) == 1
    assert disk.open_files == 0
    opened(tmp_path).close()


def test_a_failed_sync_of_an_aged_file_ends_the_writer_too(tmp_path):
    """The idle thread rolls old files; it must not try again every second."""
    disk, syncs = FaultyDisk(), []
    settings = WriterSettings(fsync=Fsync.NEVER, file_age_s=1e-9)
    writer = opened(tmp_path, settings, disk)

    def step(call):
        if call == "sync":
            syncs.append(call)
            raise OSError(errno.ENOSPC, "No space left on device")

    write(writer, b"a")
    disk.step = step
    for _ in range(3):
        with pytest.raises(WriterFailed):
            writer.roll_if_old()
    with pytest.raises(WriterFailed):
        writer.close()
    assert len(syncs) == 1


def life(root, disk, flushed):
    """Write, sync and roll; note what was promised."""
    writer = opened(root, WriterSettings(fsync=Fsync.NEVER, file_bytes_max=64 * KIB), disk)
    try:
        for _ in range(8):
            number = writer.next_sequence
            write(writer, b"%d" % number + bytes(20_000))
            writer.sync(30)
            flushed.append(number)
    finally:
        writer.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_whichever_call_fails_nothing_flushed_is_lost_and_the_log_opens_again(ram_path, number):
    """92 % of catastrophes come from errors that were reported and handled wrongly."""
    nth, failed = 0, True
    while failed:
        root = ram_path / str(nth)
        first = []
        life(root, None, first)
        flushed, disk = list(first), FaultyDisk(fail_call(nth, number))
        try:
            life(root, disk, flushed)
            failed = next_is_untouched(disk)
        except (OSError, RtError):
            failed = True
        assert disk.open_files == 0, f"call {nth}: a descriptor leaked"
        life(root, None, again := [])
        found = [sequence for sequence, _ in read(root)]
        assert found == sorted(set(found)), f"call {nth}: numbers were given twice"
        assert set(flushed + again) <= set(found), f"call {nth}: a flushed message is lost"
        nth += 1
    assert nth > 40, "calls that were made to fail"


def next_is_untouched(disk):
    """Whether the failing call is still to come: then every call was tried."""
    try:
        for _ in range(400):
            disk.step("probe")
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "settings",
    [
        {"file_bytes_max": 1000}, {"file_bytes_max": 1 << 31}, {"fsync_interval_s": 0},
        {"fsync_interval_s": 1e6}, {"file_age_s": -1}, {"compression": 20}, {"compression": -1},
    ],
)  # fmt: skip
def test_settings_out_of_their_bounds_are_refused(settings):
    """At the start, not at the first roll a day later."""
    with pytest.raises(Misuse):
        WriterSettings(**settings)


def test_positions_are_where_the_frames_are(tmp_path):
    """A flush returns the end; a node confirms up to it."""
    writer = opened(tmp_path)
    assert writer.end == 0
    write(writer, b"abc")
    assert writer.end == Position(88)
    writer.close()


def test_a_message_larger_than_a_file_leaves_no_empty_files_on_a_full_disk(tmp_path):
    """Each try rolled the empty file and began another, for as long as the disk was full."""
    disk = FaultyDisk()
    writer = opened(tmp_path, WriterSettings(fsync=Fsync.NEVER, file_bytes_max=64 * KIB), disk)
    disk.room = 10_000
    for _ in range(5):
        with pytest.raises(OSError, match="space"):
            write(writer, bytes(100_000))
    disk.room = None
    write(writer, bytes(100_000))
    writer.close()
    names = os.listdir(tmp_path / "flights" / "jfk")
    assert sorted(name for name in names if name.startswith("log.")) == ["log.0.0", "log.0.0.idx"]


def release(writer, end):
    """Say, as a pusher does, that the files up to `end` may be archived."""
    ConfirmationsFile(writer.directory).write(Confirmations(released=end))


@pytest.mark.parametrize("fsync", [Fsync.NEVER, Fsync.ALWAYS])
def test_a_publisher_that_asks_for_no_sync_archives_what_is_merged(tmp_path, fsync):
    """Otherwise its disk fills with what the nodes have long had, for as long as it lives."""
    threads = ByHand()
    settings = WriterSettings(fsync=fsync, file_bytes_max=64 * KIB)
    writer = opened(tmp_path, settings, **threads.options)
    for _ in range(3):
        write(writer, bytes(40_000))
    write(writer, b"a")
    release(writer, Position.of(0, 2, 0))
    assert threads.turn() == 1.0
    assert len(writer.manifest.archived) == 2
    assert fsync is Fsync.ALWAYS or writer.synced_to() < writer.end, "no sync was asked for"
    writer.close()


def test_a_disk_too_full_for_the_archive_line_ends_no_writer(tmp_path):
    """Archiving makes room; a disk too full for its line must not end the writer."""
    disk, threads, tries = FaultyDisk(), ByHand(), []
    settings = WriterSettings(file_bytes_max=64 * KIB)
    writer = opened(tmp_path, settings, disk, **threads.options)
    for _ in range(3):
        write(writer, bytes(40_000))
    threads.turn()
    disk.room, disk.step = 10, lambda call: tries.extend([call] * (call == "append"))
    release(writer, writer.end)
    for _ in range(3):
        assert not writer.manifest.archived
        threads.now_s += 2
        threads.ask(None)
        assert threads.turn() == 1.0
    disk.room = None
    threads.now_s += 2
    threads.ask(None)
    threads.turn()
    assert len(writer.manifest.archived) == 2
    write(writer, b"a")
    writer.close()
    assert len(tries) >= 3
    assert os.stat(os.path.join(writer.directory, "log.0.1")).st_size == 0
