"""Verify: no byte of a log can change unnoticed, and no whole log is called wrong."""

import os
import shutil

import pytest

from rt.errors import CorruptLog, Misuse
from rt.format.manifest import Archived
from rt.inspect.compare import compare_logs
from rt.inspect.verify import LogState, open_log, verify_log
from rt.log.files.disk import OsDisk
from rt.log.files.indexing import IndexState, check_index, rebuild_index
from rt.log.write.appender import Appender
from rt.log.write.batcher import Batching
from rt.log.write.writer import WriterSettings
from rt.position import START
from tests.commands import publish
from tests.logs import TIME_NS, MergedLog

SECOND = START.next_file()


def build(directory):
    """Make a merged log of two rolled files and an active one; return its recipe."""
    with MergedLog(str(directory)) as log:
        for _ in range(2):
            log.merge("jfk", [b"AA1", b"B62"], [b"DL3"], keys=True)
            log.merge("ewr", [b"UA7"], skip=0, level=3)
            log.merge("jfk", [b"AA1", b"AA2"], skip=1)
            log.roll()
        log.merge("ewr", [b"UA9"])
    return log


def verified(directory, disk=None):
    """Verify a log; damage of the manifest counts as found."""
    log = open_log(str(directory))
    log.disk = disk or log.disk
    try:
        return verify_log(log, lambda _bytes: None)
    finally:
        log.close()


def is_wrong(directory):
    """Whether anything wrong is found, in whatever way."""
    try:
        return verified(directory).is_wrong
    except (CorruptLog, Misuse):
        return True


def compared(one, other):
    """Compare two logs."""
    logs = [open_log(str(each)) for each in (one, other)]
    found = compare_logs(*logs, lambda _bytes: None)
    for log in logs:
        log.close()
    return found


def change(path, place, value=None):
    """Change one byte of a file, or cut the file there."""
    with open(path, "r+b") as file:
        if value is None:
            file.truncate(place)
        else:
            file.seek(place)
            file.write(bytes([value]))


@pytest.fixture
def log(tmp_path):
    """Return the directory of a merged log."""
    build(tmp_path / "out")
    return str(tmp_path / "out")


def test_whole_log_is_whole(log):
    """False alarms are soon ignored."""
    report = verified(log)
    assert not report.is_wrong
    assert [(file.state, file.index) for file in report.files] == [
        (LogState.CLEAN, IndexState.GOOD)
    ] * 3
    assert sum(file.messages for file in report.files) == 5 + 5 + 1
    assert sum(file.frames for file in report.files) == 7 + 7 + 2


def test_digest_is_that_of_the_log_and_the_end_is_its_end(tmp_path):
    """Two nodes are compared by these over the telephone."""
    recipe = build(tmp_path / "out")
    report = verified(tmp_path / "out")
    assert report.digest == recipe.digest.hex()
    assert report.end == recipe.appender.end


def test_log_that_is_being_begun_is_whole(tmp_path):
    """The manifest is there before the first file, and the first file before its first byte."""
    log = MergedLog(str(tmp_path / "out"))
    assert not verified(tmp_path / "out").is_wrong
    log.appender.begin_file(START)
    assert not verified(tmp_path / "out").is_wrong
    log.appender.close()


@pytest.mark.parametrize("name", ["log.0.0", "manifest", "log.0.0.idx"])
def test_every_byte_that_changes_is_noticed(log, name):
    """Each byte of a rolled file, of the manifest and of an index, one by one."""
    path = os.path.join(log, name)
    with open(path, "rb") as file:
        whole = file.read()
    for place, byte in enumerate(whole):
        change(path, place, byte ^ 0x41)
        assert is_wrong(log), place
        change(path, place, byte)
    assert not is_wrong(log)


def test_every_cut_of_a_rolled_file_is_noticed(log):
    """The manifest says how long it was."""
    path = os.path.join(log, "log.0.1")
    for length in range(os.path.getsize(path)):
        shutil.copytree(log, log + "x")
        change(os.path.join(log + "x", "log.0.1"), length)
        assert is_wrong(log + "x"), length
        shutil.rmtree(log + "x")


def test_every_cut_of_the_active_file_is_a_torn_end_and_not_a_fault(log):
    """A crash leaves that, and recovery cuts it."""
    path = os.path.join(log, "log.0.2")
    for length in reversed(range(os.path.getsize(path))):
        change(path, length)
        (*_, last) = verified(log).files
        assert last.state is (LogState.TORN if length else LogState.CLEAN)
        assert not last.is_wrong
        assert last.end <= SECOND.next_file() + length


def test_missing_file_is_noticed(log):
    """Only the manifest can tell."""
    os.unlink(os.path.join(log, "log.0.1"))
    report = verified(log)
    assert [file.state for file in report.files] == [
        LogState.CLEAN,
        LogState.CORRUPT,
        LogState.CLEAN,
    ]
    assert report.files[1].reason == "the file is missing"


def test_files_rolled_while_the_names_are_read_are_not_missing(tmp_path):
    """A fast stream rolls more than once in that time, and a false alarm wakes somebody."""

    class Rolling(OsDisk):
        def names(self, path):
            found = super().names(path)
            for _ in range(2):
                log.merge("ewr", [b"UA9"])
                log.roll()
            return found

    with MergedLog(str(tmp_path / "out")) as log:
        log.merge("jfk", [b"AA1"])
        report = verified(log.directory, Rolling())
        assert not report.is_wrong
        assert [file.state for file in report.files] == [LogState.CLEAN] * 2
        assert report.end == log.appender.end


def test_file_the_manifest_passes_over_is_noticed(log):
    """A reader would wait at its end for ever."""
    shutil.copyfile(os.path.join(log, "log.0.2"), os.path.join(log, "log.0.3"))
    (fault,) = verified(log).faults
    assert fault == "log.0.2: not rolled according to the manifest, yet a file follows it"


def test_files_that_changed_places_are_noticed(log):
    """Each is whole, and neither is where it belongs."""
    first, second = (os.path.join(log, name) for name in ("log.0.0", "log.0.1"))
    os.rename(first, first + ".x")
    os.rename(second, first)
    os.rename(first + ".x", second)
    assert [file.state for file in verified(log).files[:2]] == [LogState.CORRUPT] * 2


def test_archived_file_is_not_a_fault_and_the_digest_continues_after_it(log, tmp_path):
    """What follows can be checked, though what it follows from cannot."""
    appender = Appender(OsDisk(), log, None)
    appender.recover()
    appender.archive(Archived(START, TIME_NS, "time"))
    appender.close()
    report = verified(log)
    assert not report.is_wrong
    assert report.files[0].state is LogState.ARCHIVED
    assert report.digest == verified(build(tmp_path / "again").directory).digest


def test_file_archived_while_it_is_read_is_not_a_fault(log):
    """Archiving does not wait for readers."""
    opened = open_log(log)
    appender = Appender(OsDisk(), log, None)
    appender.recover()
    appender.archive(Archived(START, TIME_NS, "time"))
    appender.close()
    assert verify_log(opened, lambda _bytes: None).files[0].state is LogState.ARCHIVED
    opened.close()


@pytest.mark.parametrize("what", ["number", "time", "digest", "session"])
def test_whole_frames_that_do_not_continue_the_log_are_noticed(tmp_path, what):
    """Every checksum is right: only a wrong sequencer can write this."""
    with MergedLog(str(tmp_path / "out")) as log:
        log.merge("jfk", [b"AA1"])
        if what == "number":
            log.number += 1
        elif what == "time":
            log.index -= 2
        elif what == "digest":
            log.digest = bytes(16)
        else:
            log.sources.clear()
        log.merge("jfk", [b"B62"])
    words = {
        "number": "message number 2 comes where 1 should",
        "time": "the merge time goes back",
        "digest": "the running digest does not follow from the range before",
        "session": "session jfk goes back from 0.0.88 to 0.0.0",
    }
    (fault,) = verified(tmp_path / "out").faults
    assert fault == f"0.0.216: {words[what]}"


def test_session_of_several_runs_is_whole(tmp_path):
    """As every publisher leaves it that was ever started twice."""
    small = WriterSettings(file_bytes_max=64 * 1024, compression=1)
    for _ in range(3):
        directory = publish(tmp_path, [os.urandom(1000) for _ in range(300)], writer=small,
                            batching=Batching(frame_bytes=4096))  # fmt: skip
    report = verified(directory)
    assert not report.is_wrong
    assert len(report.files) > 12
    assert sum(file.messages for file in report.files) == 900


def test_sequence_numbers_that_go_back_are_noticed(tmp_path):
    """Deduplication goes by them."""
    directory = publish(tmp_path, [b"1"])
    publish(tmp_path, [b"2"])
    first, second = (os.path.join(directory, name) for name in ("log.0.0", "log.1.0"))
    shutil.copyfile(first, second)
    assert is_wrong(directory)


def test_directory_without_a_log_is_refused(tmp_path):
    """A mistyped path must not pass for a healthy log."""
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(Misuse, match="holds no log"):
            open_log(str(path))


def test_rebuilt_index_is_the_one_that_was_written_live(tmp_path):
    """Otherwise the indexes of two nodes would not compare equal."""
    log = build(tmp_path / "out")
    settings = WriterSettings(file_bytes_max=1 << 20)
    session = publish(tmp_path, [b"x" * 1000] * 3000, writer=settings)
    for directory in (log.directory, session):
        opened = open_log(directory)
        for start in opened.manifest.order:
            path = opened.file_path(start) + ".idx"
            with open(path, "rb") as file:
                live = file.read()
            assert check_index(opened, start) is IndexState.GOOD
            os.unlink(path)
            assert check_index(opened, start) is IndexState.MISSING
            rebuild_index(OsDisk(), opened, start)
            with open(path, "rb") as file:
                assert file.read() == live
        opened.close()
        assert not [name for name in os.listdir(directory) if name.endswith(".tmp")]


class Full(OsDisk):
    """A disk on which nothing can be renamed any more."""

    def replace(self, source, target):
        raise OSError(28, "No space left on device")


def test_rebuild_that_fails_leaves_the_old_index(tmp_path, log):
    """A full disk is when one is tempted to rebuild things."""
    path = os.path.join(log, "log.0.0.idx")
    with open(path, "rb") as file:
        before = file.read()

    opened = open_log(log)
    with pytest.raises(OSError, match="No space"):
        rebuild_index(Full(), opened, START)
    opened.close()
    with open(path, "rb") as file:
        assert file.read() == before


def test_damaged_file_is_indexed_up_to_the_damage(log):
    """Half an index finds half a file."""
    change(os.path.join(log, "log.0.0"), 300, 0xFF)
    opened = open_log(log)
    assert 0 < rebuild_index(OsDisk(), opened, START) < 3
    opened.close()


def test_copies_are_equal_as_far_as_both_reach(tmp_path):
    """A copy always lags a little, and that is not a difference."""
    one, other = (build(tmp_path / name) for name in "ab")
    assert compared(one.directory, other.directory).differs_at is None
    last = os.path.join(other.directory, "log.0.2")
    for length in (100, 0):
        change(last, length)
        for pair in ((one, other), (other, one)):
            found = compared(*(each.directory for each in pair))
            assert found.differs_at is None
            assert found.end == SECOND.next_file() + length
    os.unlink(last)
    assert compared(one.directory, other.directory).differs_at is None


def test_every_byte_that_differs_is_named_by_its_position(tmp_path):
    """The first question about two copies that differ is: where?"""
    one, other = (build(tmp_path / name) for name in "ab")
    path = os.path.join(other.directory, "log.0.1")
    with open(path, "rb") as file:
        whole = file.read()
    for place, byte in enumerate(whole):
        change(path, place, byte ^ 1)
        assert compared(one.directory, other.directory).differs_at == SECOND + place
        change(path, place, byte)


def test_rolled_file_that_is_shorter_is_a_difference(tmp_path):
    """It will never be longer."""
    one, other = (build(tmp_path / name) for name in "ab")
    change(os.path.join(other.directory, "log.0.1"), 128)
    for pair in ((one, other), (other, one)):
        found = compared(*(each.directory for each in pair))
        assert found.differs_at == SECOND + 128
        assert other.directory in found.reason


def test_file_that_only_one_copy_has_is_a_difference(tmp_path):
    """Unless it is the last, which the other has yet to get."""
    one, other = (build(tmp_path / name) for name in "ab")
    os.unlink(os.path.join(other.directory, "log.0.1"))
    assert compared(one.directory, other.directory).differs_at == SECOND


def test_archived_file_is_not_compared_and_that_is_reported(tmp_path):
    """Subscribers may keep less than a node."""
    one, other = (build(tmp_path / name) for name in "ab")
    appender = Appender(OsDisk(), other.directory, None)
    appender.recover()
    appender.archive(Archived(START, TIME_NS, "time"))
    appender.close()
    found = compared(one.directory, other.directory)
    assert found.differs_at is None
    assert found.not_compared == ("log.0.0",)


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1)])
def test_file_archived_after_a_copy_was_opened_is_not_a_difference(tmp_path, places):
    """Checking a terabyte takes an hour, and retention does not wait for it."""
    pair = [build(tmp_path / name).directory for name in "ab"]
    logs = [open_log(each) for each in pair]
    for place in places:
        appender = Appender(OsDisk(), pair[place], None)
        appender.recover()
        appender.archive(Archived(START, TIME_NS, "time"))
        appender.close()
    found = compare_logs(*logs, lambda _bytes: None)
    for log in logs:
        log.close()
    assert found.differs_at is None
    assert found.not_compared == ("log.0.0",)
    assert found.end == compared(*pair).end


def test_logs_made_apart_are_not_copies(tmp_path):
    """A log that was deleted and made again shares only the name."""
    one, other = (os.path.dirname(os.path.dirname(publish(tmp_path / name, [b"1"])))
                  for name in "ab")  # fmt: skip
    found = compared(*(os.path.join(root, "stream", "jfk") for root in (one, other)))
    assert found.differs_at == START
    assert "made apart" in found.reason
