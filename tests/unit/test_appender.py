"""Appender: whole frames at the end of a directory, or an end that is known."""

import errno
import os
from pathlib import Path

import pytest
from faulty import FaultyDisk
from logs import TIME_NS, make_frame

from rt.errors import CorruptLog, DiskFailed, ManifestError, Misuse
from rt.format.index import ENTRY_BYTES, IndexEntry, encode_index
from rt.format.manifest import Archived, LogIdentity, Rolled
from rt.limits import KIB
from rt.log.files.disk import OsDisk
from rt.log.write.appender import Appender
from rt.position import START, Position

LOG = LogIdentity("session", "flights", "jfk", "0" * 32, TIME_NS)


@pytest.fixture
def path(tmp_path):
    """Return the directory of a log."""
    return str(tmp_path / "jfk")


def opened(path, disk=None, **kwargs):
    """Return an appender that recovered."""
    appender = Appender(disk or OsDisk(), path, LOG)
    try:
        appender.recover(**kwargs)
    except BaseException:
        appender.close()
        raise
    return appender


def contents(path):
    """Return the bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


def add(appender, *payloads, size=1):
    """Append one frame."""
    if not appender.is_open:
        appender.begin_file(appender.end.next_file() if appender.manifest.order else START)
    frame = make_frame(
        appender.end, [each * size for each in payloads], sequence=appender.next_number,
        time_ns=TIME_NS + appender.next_number,
    )  # fmt: skip
    after = appender.walk.copy()
    after.step(frame.header)
    appender.append(frame.parts, [frame.header], after)
    return frame


def test_a_log_continues_where_its_last_life_ended(path):
    """Numbers and places must be neither reused nor skipped."""
    appender = opened(path)
    add(appender, b"a", b"b")
    end = appender.end
    appender.close()
    appender = opened(path)
    assert (appender.end, appender.next_number, appender.torn) == (end, 2, None)
    add(appender, b"c")
    assert appender.roll(TIME_NS) == Rolled(
        START, appender.end, 0, 3, TIME_NS, TIME_NS + 2, TIME_NS
    )
    add(appender, b"d")
    assert appender.end.file == Position.of(0, 1, 0)
    appender.close()
    assert opened_number(path) == 4


def test_a_log_may_be_closed_twice(path):
    """A node that stops does not know whether its merged log was closed for a copy to go on."""
    appender = opened(path, disk := FaultyDisk())
    add(appender, b"a")
    appender.close()
    appender.close()
    assert disk.open_files == 0


def test_archiving_in_a_closed_log_is_an_error_but_not_a_failed_disk(path):
    """A copy may be set aside by the merging thread while another one archives its files."""
    appender = opened(path)
    add(appender, b"a")
    appender.roll(TIME_NS)
    appender.close()
    before = Path(path, "manifest").read_bytes()
    with pytest.raises(OSError, match="was closed") as raised:
        appender.archive(Archived(START, TIME_NS, "merged"))
    assert not isinstance(raised.value, DiskFailed), "no disk has failed"
    assert Path(path, "manifest").read_bytes() == before


def opened_number(path):
    """Return the next number a new life would give."""
    appender = opened(path)
    number = appender.next_number
    appender.close()
    return number


@pytest.mark.parametrize("cut", [True, False])
def test_a_torn_tail_is_cut_by_a_copy_and_left_alone_by_a_publisher(path, cut):
    """A copy fetches it again; a publisher never touches the files of its older runs."""
    appender = opened(path)
    add(appender, b"a")
    end = appender.end
    add(appender, b"b")
    appender.close()
    file = os.path.join(path, "log.0.0")
    os.truncate(file, end + 70)
    appender = opened(path, cut=cut)
    assert appender.torn.at == appender.end == end
    assert appender.next_number == 1
    assert os.path.getsize(file) == (end if cut else end + 70)
    appender.close()


def test_durable_bytes_that_are_damaged_are_refused_and_left_as_they_are(path):
    """Nothing is cut or deleted on an inference."""
    appender = opened(path)
    add(appender, b"a")
    end = appender.end
    appender.close()
    file = os.path.join(path, "log.0.0")
    with open(file, "r+b") as handle:
        handle.seek(70)
        handle.write(b"\xff")
    before = contents(file)
    disk = FaultyDisk()
    with pytest.raises(CorruptLog, match=r"log\.0\.0: corrupt at 0\.0\.0"):
        opened(path, disk, durable=end)
    assert contents(file) == before
    assert disk.open_files == 0


@pytest.mark.parametrize("damage", ["body", "header", "first header"])
def test_a_torn_indexed_frame_does_not_hide_the_frames_before_it(path, damage):
    """Recovery begins at the last index entry; if that is torn the numbers before it were lost."""
    appender = opened(path)
    frames = [add(appender, b"x", size=200 * KIB) for _ in range(6)]
    starts = [frame.header.position for frame in frames]
    appender.sync()
    appender.close()
    last = max(start for start in starts if start in indexed(path))
    assert last > starts[2]
    with open(os.path.join(path, "log.0.0"), "r+b") as file:
        file.seek({"body": last + 100, "header": last + 20, "first header": 20}[damage])
        file.write(b"\xff\xfe\xfd")
        file.truncate(last + 200)
    appender = opened(path)
    whole = 0 if damage == "first header" else starts.index(last)
    assert appender.next_number == whole
    assert appender.end == starts[whole]
    appender.close()


def indexed(path):
    """Return the offsets that the index names."""
    data = contents(os.path.join(path, "log.0.0.idx"))
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), ENTRY_BYTES)]


@pytest.mark.parametrize(
    "index",
    [b"", b"torn", encode_index([IndexEntry(8, 0, 0)] * 9), encode_index([IndexEntry(0, 1, 1)])],
)
def test_a_missing_or_wrong_index_is_rebuilt(path, index):
    """It is never synced, so a power cut may leave anything of it."""
    appender = opened(path)
    for _ in range(6):
        add(appender, b"x", size=200 * KIB)
    appender.sync()
    appender.close()
    good = indexed(path)
    assert len(good) == 3
    with open(os.path.join(path, "log.0.0.idx"), "wb") as file:
        file.write(index)
    appender = opened(path)
    appender.sync()
    appender.close()
    assert indexed(path) == good


def test_a_full_disk_leaves_the_log_where_it_was_and_usable(path):
    """The first sign is a short write: what was written of the frame is taken back."""
    disk = FaultyDisk()
    appender = opened(path, disk)
    add(appender, b"a")
    end = appender.end
    for room in range(88):
        disk.room = room
        with pytest.raises(OSError, match="space"):
            add(appender, b"b")
        assert (appender.end, appender.next_number) == (end, 1)
        assert os.path.getsize(os.path.join(path, "log.0.0")) == end
    disk.room = None
    add(appender, b"b")
    appender.close()
    assert opened_number(path) == 2


def test_a_full_disk_at_a_roll_does_not_contradict_a_later_roll(path):
    """The line was taken in memory and half written; the next try "rolled it twice"."""
    disk = FaultyDisk()
    appender = opened(path, disk)
    add(appender, b"a")
    for room in (0, 1, 20, 60):
        disk.room = room
        with pytest.raises(OSError, match="space"):
            appender.roll(TIME_NS + room)
        assert appender.is_open
    disk.room = None
    appender.roll(TIME_NS + 99)
    add(appender, b"b")
    appender.close()
    assert opened_number(path) == 2


def test_an_index_that_cannot_be_written_does_not_stop_the_log(path):
    """It can be rebuilt; a message cannot."""
    disk = FaultyDisk()
    appender = opened(path, disk)
    add(appender, b"a")
    files = [name for name in os.listdir(path) if name.endswith(".idx")]
    assert files == ["log.0.0.idx"]

    appends = []

    def step(call):
        appends.extend([call] * (call == "append"))
        if len(appends) == 2:  # the manifest line, then the index
            appends.append("failed")
            raise OSError(errno.ENOSPC, "full")

    disk.step = step
    appender.roll(TIME_NS)
    add(appender, b"b")
    appender.close()
    assert opened_number(path) == 2
    assert disk.open_files == 0


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failed_sync_is_final_whatever_its_reason(path, number):
    """The kernel drops what it could not write and calls the next sync good: never ask again."""
    disk = FaultyDisk()
    appender = opened(path, disk)
    add(appender, b"a")
    syncs = []

    def step(call):
        if call == "sync":
            syncs.append(call)
            if len(syncs) == 1:
                raise OSError(number, os.strerror(number))

    disk.step = step
    for act in (
        appender.sync,
        appender.sync,
        lambda: appender.roll(0),
        lambda: add(appender, b"b"),
    ):
        with pytest.raises(DiskFailed):
            act()
    assert len(syncs) == 1
    appender.close()


def test_bytes_that_can_neither_be_written_nor_taken_back_end_the_log(path):
    """No frame can follow half a frame."""
    disk = FaultyDisk()
    appender = opened(path, disk)
    add(appender, b"a")

    def step(call):
        if call in ("append", "truncate"):
            raise OSError(errno.ENOSPC, "full")

    disk.step = step
    with pytest.raises(DiskFailed):
        add(appender, b"b")
    disk.step = lambda _call: None
    with pytest.raises(DiskFailed):
        add(appender, b"b")
    appender.close()
    assert opened_number(path) == 1


def test_a_directory_whose_manifest_is_gone_is_refused(path):
    """A new identity over old files would merge two logs into one."""
    appender = opened(path)
    add(appender, b"a")
    appender.close()
    manifest = os.path.join(path, "manifest")
    os.truncate(manifest, 5)
    with pytest.raises(ManifestError, match="does not name the log"):
        opened(path)
    os.remove(manifest)
    with pytest.raises(ManifestError, match="does not name the log"):
        opened(path)


def test_a_manifest_line_that_was_never_finished_is_cut(path):
    """A crash between write and sync; a damaged line that was finished is refused instead."""
    opened(path).close()
    manifest = os.path.join(path, "manifest")
    whole = os.path.getsize(manifest)
    with open(manifest, "ab") as file:
        file.write(b'{"rt":1,"what":"rolled"')
    opened(path).close()
    assert os.path.getsize(manifest) == whole
    with open(manifest, "ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(ManifestError, match="manifest: a line's CRC"):
        opened(path)


def test_strays_in_the_directory_are_left_alone(path):
    """Nothing is read, counted or deleted that is not exactly a log file."""
    os.makedirs(path)
    for name in ("log.0.1.tmp", "log.0.01", "LOG.0.1", "log.0.1~", "notes.txt"):
        with open(os.path.join(path, name), "wb") as file:
            file.write(b"stray")
    appender = opened(path)
    add(appender, b"a")
    assert appender.end.file == START
    appender.close()
    assert len(os.listdir(path)) == 8


def test_an_empty_file_rolls_with_the_numbers_and_times_of_what_was_before(path):
    """Searches by time and number need an order that zeros would break."""
    appender = opened(path)
    add(appender, b"a")
    appender.roll(TIME_NS)
    appender.begin_file(Position.of(1, 0, 0))
    line = appender.roll(TIME_NS)
    assert (line.first, line.next, line.first_time_ns, line.last_time_ns) == (
        1,
        1,
        TIME_NS,
        TIME_NS,
    )
    appender.close()


def test_calls_out_of_order_are_misuse(path):
    """A file after the end, or one beside an open one, would hide data."""
    appender = opened(path)
    with pytest.raises(Misuse, match="no file"):
        appender.append([], [], appender.walk)
    add(appender, b"a")
    with pytest.raises(Misuse, match="cannot follow"):
        appender.begin_file(Position.of(0, 1, 0))
    appender.roll(TIME_NS)
    with pytest.raises(Misuse, match="cannot follow"):
        appender.begin_file(START)
    appender.record(Archived(START, TIME_NS, "time"))
    appender.close()


def test_a_log_cut_to_a_frame_counts_from_there(path):
    """A node repeats instructions after its snapshot after a crash."""
    appender = opened(path)
    frames = [add(appender, b"x", size=200 * KIB) for _ in range(6)]
    appender.cut(Position(frames[4].header.position))
    assert (appender.next_number, appender.end) == (4, frames[4].header.position)
    assert appender.read(START, 8) == frames[0].parts[0][:8]
    add(appender, b"y")
    appender.close()
    assert opened_number(path) == 5


def test_a_manifest_that_lost_a_roll_is_refused_and_left_as_it_is(tmp_path):
    """The next file would be taken for the only one, and the contents of the last one lost."""
    log = opened(tmp_path)
    add(log, b"a")
    log.roll(TIME_NS)
    add(log, b"b")
    log.close()
    path = tmp_path / "manifest"
    path.write_bytes(path.read_bytes()[:-1])
    damaged = path.read_bytes()
    with pytest.raises(ManifestError, match=r"say where log\.0\.0 ends, though log\.0\.1 is there"):
        opened(tmp_path)
    assert path.read_bytes() == damaged


def test_one_file_is_checked_whatever_the_others_hold(path):
    """The merged log has many, and a connection that found damage in one checks only that."""
    appender = opened(path)
    for _ in range(3):
        add(appender, b"AA1", b"BA2")
        appender.roll(TIME_NS)
    add(appender, b"CX3")
    with open(os.path.join(path, "log.0.1"), "r+b") as file:
        file.seek(70)
        file.write(b"?")
    for start in (START, Position.of(0, 2, 0), Position.of(0, 3, 0), Position.of(0, 4, 0)):
        appender.verify_file(start)
    with pytest.raises(CorruptLog, match=r"log\.0\.1: corrupt at 0\.1\.0"):
        appender.verify_file(Position.of(0, 1, 64))
    appender.archive(Archived(Position.of(0, 1, 0), TIME_NS, "age"))
    appender.verify_file(Position.of(0, 1, 64))
    appender.close()
