"""A copy that begins later: at the file that holds its start, with what precedes it recorded."""

import shutil

import pytest
from dialogue import DISK, Inbox, NoWake, copy_all
from logs import TIME_NS, MergedLog
from replicator_host import log_bytes, manifest_lines

from rt.events import Gap
from rt.format.manifest import Archived
from rt.format.message import Batch
from rt.inspect.verify import open_log, verify_log
from rt.log.files.directory import LogDirectory
from rt.log.read.reader import Reader
from rt.log.read.start import resolve
from rt.position import START, Position

FILES = 6


@pytest.fixture
def source(tmp_path):
    """A merged log of six files, two ranges each; the last one still grows."""
    with MergedLog(str(tmp_path / "out"), DISK) as log:
        for number in range(FILES):
            log.merge("jfk", [b"%d" % number] * 3)
            log.merge("lga", [b"x" * 100])
            if number < FILES - 1:
                log.roll()
        yield log


def numbers_and_gaps(directory, start=START):
    """Return what a reader of the copy gets from a position on."""
    reader = Reader(LogDirectory(str(directory), DISK), start)
    numbers, gaps = [], []
    while (found := reader.poll()) is not None:
        if isinstance(found, Batch):
            numbers += range(found.number, found.number + len(found))
        elif isinstance(found, Gap):
            gaps.append(found)
    reader.close()
    return numbers, gaps


def copied_files(sink):
    """The files of which the copy has bytes."""
    return [name for name, data in log_bytes(sink).items() if data]


def everything(log):
    """The source's end, as a node serves it."""
    return lambda: log.appender.end


@pytest.mark.parametrize(
    ("start", "first_file"),
    [
        ("latest", 5), ("last:1", 5), ("last:5", 4), ("last:99", 0), ("0.3.64", 3), ("0.0.0", 0),
        (f"at:{TIME_NS + 1_000_000 * 5}", 2), (f"at:{TIME_NS * 2}", 5), ("at:0", 0),
    ],
)  # fmt: skip
def test_a_copy_begins_at_the_file_that_holds_its_start(tmp_path, source, start, first_file):
    """What precedes it is not copied, and is a gap that says so; what follows is all there."""
    sink = tmp_path / "sink"
    dialogue = copy_all(tmp_path / "out", sink, end=everything(source), start=start)
    assert not dialogue.refusals
    names = [f"log.0.{roll}" for roll in range(FILES)]
    assert copied_files(sink) == names[first_file:]
    numbers, gaps = numbers_and_gaps(sink)
    assert numbers == list(range(4 * first_file, 4 * FILES))
    expected = [(START, Position.parse(f"0.{first_file}.0"), "not copied")] if first_file else []
    assert [(gap.begin, gap.end, gap.reason) for gap in gaps] == expected
    if gaps:
        assert "was not copied (log.0.0" in str(gaps[0])
    log = open_log(str(sink))
    assert resolve(log, "earliest") == Position.parse(f"0.{first_file}.0")
    assert not verify_log(log, lambda _size: None).is_wrong
    log.close()


def test_a_copy_that_exists_goes_on_where_it_ends(tmp_path, source):
    """`--from` is for a new copy; a service that is restarted with it must not leave a hole."""
    sink = tmp_path / "sink"
    first = source.appender.manifest.order[1]
    copy_all(tmp_path / "out", sink, end=lambda: Position(first + 100))
    copy_all(tmp_path / "out", sink, end=everything(source), start="latest")
    assert manifest_lines(sink) == manifest_lines(tmp_path / "out")
    assert numbers_and_gaps(sink) == (list(range(4 * FILES)), [])


def test_a_copy_whose_files_are_all_archived_goes_on_where_it_ends(tmp_path, source):
    """It has copied something, even if it has given up the bytes since."""
    sink = tmp_path / "sink"
    copy_all(tmp_path / "out", sink, end=lambda: source.appender.manifest.order[2])
    inbox = Inbox(sink, source.appender.identity, NoWake())
    for file in inbox.appender.manifest.order:
        inbox.appender.archive(Archived(file, 9, "limit"))
    inbox.release()
    copy_all(tmp_path / "out", sink, end=everything(source), start="latest")
    assert numbers_and_gaps(sink, Position.parse("0.2.0"))[0] == list(range(8, 4 * FILES))


def test_files_that_the_source_has_archived_may_precede_the_start(tmp_path, source):
    """Before a start nothing is copied, so why the source has no bytes does not matter."""
    for file in source.appender.manifest.order[:2]:
        source.appender.archive(Archived(file, 9, "limit"))
    sink = tmp_path / "sink"
    copy_all(tmp_path / "out", sink, end=everything(source), start="0.4.0")
    numbers, gaps = numbers_and_gaps(sink)
    assert numbers == list(range(16, 24))
    assert [gap.reason for gap in gaps] == ["not copied"]


def test_a_start_cut_at_any_byte_reaches_the_same_end(tmp_path, source):
    """A crash among the files that are passed over must not make the copy begin at the oldest."""
    out, whole = tmp_path / "out", tmp_path / "whole"
    dialogue = copy_all(out, whole, end=everything(source), start="last:5")
    assert copied_files(whole) == ["log.0.4", "log.0.5"]
    for room in range(0, dialogue.source_pipe.total, 61):
        sink = tmp_path / "cut"
        copy_all(out, sink, end=everything(source), start="last:5", source_room=room)
        copy_all(out, sink, end=everything(source), start="last:5")
        assert log_bytes(sink) == log_bytes(whole)
        assert manifest_lines(sink) == manifest_lines(whole)
        shutil.rmtree(sink)


@pytest.mark.parametrize(
    ("start", "code"), [("0.9.0", "behind"), ("tomorrow", "protocol"), ("1.0.0", "behind")]
)
def test_an_impossible_start_is_refused(tmp_path, source, start, code):
    """Another node may reach so far; a text that is no start is the puller's mistake."""
    dialogue = copy_all(tmp_path / "out", tmp_path / "sink", end=everything(source), start=start)
    assert {each for _, each, _ in dialogue.refusals} == {code}


def test_a_session_is_copied_from_its_beginning(tmp_path, source):
    """A node that lacked a session's first frames could never merge them."""
    assert source.number == 4 * FILES
    dialogue = copy_all(tmp_path / "out", tmp_path / "sink", start="latest")
    assert {code for _, code, _ in dialogue.refusals} == {"protocol"}


@pytest.fixture
def late(tmp_path, source):
    """A copy that begins at the fourth file, which others copy from."""
    copy_all(tmp_path / "out", tmp_path / "late", end=everything(source), start="0.3.0")
    return tmp_path / "late"


def test_a_copy_keeps_what_the_one_it_goes_on_from_never_had(tmp_path, source, late):
    """That a copy begins later is no reason to give up bytes that the nodes still have."""
    whole = tmp_path / "whole"
    copy_all(tmp_path / "out", whole, end=lambda: Position.parse("0.5.0"))
    assert not copy_all(late, whole, end=everything(source)).refusals
    assert log_bytes(whole) == log_bytes(tmp_path / "out")
    assert numbers_and_gaps(whole) == (list(range(4 * FILES)), [])


@pytest.mark.parametrize("end", ["0.0.0", "0.1.0", "0.1.400", "0.2.0"])
def test_a_copy_does_not_go_on_from_one_that_lacks_what_comes_next(tmp_path, source, late, end):
    """It would skip files that the nodes still have; they are asked instead."""
    part = tmp_path / "part"
    copy_all(tmp_path / "out", part, end=lambda: Position.parse(end))
    before = log_bytes(part)
    dialogue = copy_all(late, part, end=everything(source))
    held = any(before.values())
    assert {code for _, code, _ in dialogue.refusals} == ({"begins-later"} if held else set())
    if held:
        assert log_bytes(part) == before
        copy_all(tmp_path / "out", part, end=everything(source))
        assert numbers_and_gaps(part) == (list(range(4 * FILES)), [])


def test_a_copy_that_ends_where_another_begins_goes_on_from_it(tmp_path, source, late):
    """It lacks nothing that the other has not."""
    part = tmp_path / "part"
    copy_all(tmp_path / "out", part, end=lambda: Position.parse("0.3.0"))
    assert not copy_all(late, part, end=everything(source)).refusals
    assert numbers_and_gaps(part) == (list(range(4 * FILES)), [])
