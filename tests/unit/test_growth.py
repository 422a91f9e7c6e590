"""Growth: what a bad frame in a growing log means, the same for everyone who reads it."""

import os

import pytest
from dialogue import Dialogue, Log
from hypothesis import given
from hypothesis import strategies as st
from logs import TIME_NS, MergedLog

from rt.errors import CorruptLog, FrameError
from rt.format.manifest import Archived
from rt.format.scan import Scan
from rt.format.walk import Walk
from rt.log.files.directory import LogDirectory
from rt.log.read.growth import BadFrames, DamagedFrame, EmptiedFile, UnwrittenFrame
from rt.log.read.reader import Reader
from rt.position import START, Position
from rt.spark.reading.plan import LogView


def flip(path, offset):
    """Change one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


@pytest.fixture
def merged(tmp_path):
    """Return the directory of a merged log of three ranges, and where the second one begins."""
    directory = str(tmp_path / "out")
    with MergedLog(directory) as log:
        log.merge("jfk", [b"a"])
        second = log.appender.end
        log.merge("lga", [b"b"])
        log.merge("jfk", [b"c"])
    return directory, second


def explained(directory, at, **known):
    """Return what the frame at `at` is said to mean."""
    log = LogDirectory(directory)
    log.refresh()
    file = log.open_file(at.file)
    try:
        walk = Walk(at, merged=log.merged, session=log.session)
        return BadFrames(log).explain(file, walk, **known)
    finally:
        file.close()
        log.close()


def test_a_source_refuses_a_corrupt_merged_log_and_does_not_call_it_complete(merged, tmp_path):
    """A puller that hears "caught up" prints where the copy ends and exits with success."""
    directory, second = merged
    flip(os.path.join(directory, "log.0.0"), second.offset + 20)
    dialogue = Dialogue(directory, tmp_path / "copy").talk().close()
    assert {code for _, code, _ in dialogue.refusals} == {"corrupt"}
    assert f"corrupt at {second}" in dialogue.refusals[0][2]
    assert not dialogue.caught_up


def test_reader_source_and_spark_agree_on_every_flipped_bit(tmp_path):
    """One judgement, one place: of three answers to one question two would be wrong."""
    directory = str(tmp_path / "out")
    with MergedLog(directory) as log:
        for payload in (b"a", b"b", b"c"):
            log.merge("jfk", [payload])
        end = log.appender.end
    path = os.path.join(directory, "log.0.0")
    for offset in range(0, end, 7):
        flip(path, offset)
        said = said_by_reader(directory)
        assert said_by_spark(directory) == said, offset
        if said[0] == "corrupt":
            assert said_by_source(directory, tmp_path / f"copy{offset}") == "corrupt", offset
        flip(path, offset)


def said_by_reader(directory):
    """Return where the reader stops, and whether it calls that damage."""
    reader = Reader(LogDirectory(directory))
    try:
        while reader.poll():
            pass
        return "end", scanned_end(directory)
    except CorruptLog as error:
        return "corrupt", error.position
    finally:
        reader.close()


def said_by_source(directory, copy):
    """Return whether a puller hears that the log is damaged, or that it has everything."""
    dialogue = Dialogue(directory, copy).talk().close()
    codes = {code for _, code, _ in dialogue.refusals}
    assert bool(codes) != bool(dialogue.caught_up)
    return codes.pop() if codes else "end"


def said_by_spark(directory):
    """Return where a plan ends, and whether it calls that damage."""
    view = LogView(directory)
    try:
        view.refresh()
        return "end", view.end()
    except CorruptLog as error:
        return "corrupt", error.position
    finally:
        view.close()


def scanned_end(directory):
    """Return where the whole frames of the first file end."""
    with open(os.path.join(directory, "log.0.0"), "rb") as file:
        data = file.read()
    scan = Scan(lambda length, at: data[at : at + length], Walk(START, merged=True))
    try:
        while scan.next(len(data)):
            pass
    except FrameError:
        pass
    return scan.walk.position


def test_a_bad_frame_before_a_whole_range_is_damage(merged):
    """The writer of a merged log would have cut a torn tail before it went on."""
    directory, second = merged
    flip(os.path.join(directory, "log.0.0"), second.offset)
    meaning = explained(directory, second)
    assert isinstance(meaning, DamagedFrame)
    assert meaning.at == second
    assert "a later range is whole" in meaning.reason


def test_a_bad_last_frame_is_waited_for_unless_it_was_synced(merged):
    """At the end of a growing file a bad frame is one that is still being written."""
    directory, _ = merged
    end = scanned_end(directory)
    at = Position(end - 8)
    flip(os.path.join(directory, "log.0.0"), at.offset)
    assert isinstance(explained(directory, START), UnwrittenFrame)
    assert isinstance(explained(directory, START, durable=end), DamagedFrame)


def test_a_file_shorter_than_what_was_synced_is_waited_for(merged):
    """A node that fetches a damaged file again writes it from its start: that is not damage."""
    directory, second = merged
    end = scanned_end(directory)
    os.truncate(os.path.join(directory, "log.0.0"), second.offset + 30)
    assert explained(directory, START, durable=end) == UnwrittenFrame(START)


def test_a_file_emptied_by_the_archiver_is_neither_a_wait_nor_damage(tmp_path):
    """The line precedes the truncation, so the manifest is read again before damage is claimed."""
    log = Log(tmp_path / "jfk").write(10, 10).roll()
    log.appender.record(Archived(START, TIME_NS, "time"))
    os.truncate(os.path.join(log.directory, "log.0.0"), 0)
    assert explained(log.directory, START) == EmptiedFile()
    log.appender.close()


@given(data=st.data())
def test_a_cut_of_a_growing_log_is_never_called_damage(tmp_path_factory, data):
    """A reader sees any prefix of what a writer is writing; none of them is a fault."""
    directory = str(tmp_path_factory.mktemp("out"))
    with MergedLog(directory) as log:
        for _ in range(data.draw(st.integers(1, 4))):
            log.merge("jfk", [b"x" * data.draw(st.integers(0, 40))])
        end = log.appender.end
    os.truncate(os.path.join(directory, "log.0.0"), data.draw(st.integers(0, end)))
    assert isinstance(explained(directory, START), UnwrittenFrame)
