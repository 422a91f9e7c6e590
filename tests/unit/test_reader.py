"""Reader: what is in a directory, in order, checked, across rolls, runs and losses."""

import os
import shutil

import pytest
from faulty import FaultyDisk
from hypothesis import given
from hypothesis import strategies as st
from logs import TIME_NS, MergedLog, make_frame, rows

from rt.errors import CorruptLog
from rt.events import Gap, NewRun
from rt.format.manifest import Archived, LogIdentity, Rolled
from rt.format.message import Batch
from rt.format.scan import Scan
from rt.format.walk import Walk
from rt.limits import READ_BYTES
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.read.reader import Reader
from rt.log.write.appender import Appender
from rt.position import Position
from rt.subscriber import Subscriber

LOG = LogIdentity("session", "flights", "jfk", "0" * 32, TIME_NS)


class Session:
    """A session's log, appended to frame by frame while a reader looks."""

    def __init__(self, path):
        self.path = str(path)
        self.appender = Appender(OsDisk(), self.path, LOG)
        self.next_file = Position(0)

    def add(self, *payloads, durable=0):
        if not self.appender.is_open:
            self.appender.begin_file(self.next_file)
        frame = make_frame(
            self.appender.end, list(payloads), sequence=self.appender.next_number, durable=durable
        )
        after = self.appender.walk.copy()
        after.step(frame.header)
        self.appender.append(frame.parts, [frame.header], after)

    def roll(self, run=False):
        end = self.appender.end
        self.next_file = end.next_run() if run else end.next_file()
        self.appender.roll(TIME_NS)

    def archive(self, file):
        self.appender.record(Archived(file, TIME_NS, "time"))
        os.truncate(os.path.join(self.path, file.file_name), 0)

    def damage(self, offset, name="log.0.0"):
        with open(os.path.join(self.path, name), "r+b") as file:
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 1]))


@pytest.fixture
def session(tmp_path):
    """Give a session and close it."""
    session = Session(tmp_path / "jfk")
    yield session
    session.appender.close()


@pytest.fixture
def reader(session):
    """Give a reader of the session from its start, and close it."""
    reader = Reader(LogDirectory(session.path))
    yield reader
    reader.close()


def drain(reader):
    """Return the payloads and events found until there is nothing yet."""
    found = []
    while (each := reader.poll()) is not None:
        found += each.payloads() if isinstance(each, Batch) else [each]
    return found


def drain_often(reader):
    """Return what is found by more looks than the reader lets pass between two probes."""
    return [each for _ in range(20) for each in drain(reader)]


def test_what_the_writer_tells_is_read_without_a_look_at_the_files(session):
    """A look takes four system calls, as many as all else that a lone message needs."""
    disk = FaultyDisk()
    reader, calls = Reader(LogDirectory(session.path, disk)), []
    session.add(b"first")
    assert reader.poll().columns.payloads() == [b"first"]
    assert reader.poll() is None
    session.add(b"second")
    reader.told_end = session.appender.end
    disk.step = calls.append
    assert reader.poll().columns.payloads() == [b"second"]
    assert reader.poll() is None
    assert calls == ["pread"]
    session.add(b"third")  # without news of it: the next look finds it
    assert reader.poll().columns.payloads() == [b"third"]
    reader.told_end = Position(0)  # an old one
    session.add(b"fourth")
    assert reader.poll().columns.payloads() == [b"fourth"]
    reader.close()


def test_a_reader_looks_now_and_then_though_the_writer_tells_every_end(session, reader):
    """Polling is the safety net, in case the news does not say all that has happened."""
    session.add(b"x")
    assert reader.poll() is not None
    looks = []
    reader.log.refresh, refresh = lambda: looks.append(1) or refresh(), reader.log.refresh
    for _ in range(200):
        session.add(b"x")
        reader.told_end = session.appender.end
        assert reader.poll() is not None
        assert reader.poll() is None
    assert 2 <= len(looks) <= 20


def test_a_told_end_hides_no_roll_and_no_next_file(session, reader):
    """The writer tells the end of its last file, which is another one after a roll."""
    session.add(b"first")
    assert reader.poll() is not None
    session.roll()
    session.add(b"second")
    reader.told_end = session.appender.end
    assert reader.poll().columns.payloads() == [b"second"]
    session.roll(run=True)
    session.add(b"third")
    reader.told_end = session.appender.end
    assert isinstance(reader.poll(), NewRun)
    assert reader.poll().columns.payloads() == [b"third"]
    assert reader.poll() is None


def test_nothing_is_found_before_anything_is_written_and_all_of_it_after(session, reader):
    """A reader may be there before the first frame."""
    assert drain(reader) == []
    session.add(b"a", b"b")
    assert drain(reader) == [b"a", b"b"]
    assert drain(reader) == []
    session.add(b"c")
    assert drain(reader) == [b"c"]


def test_rolls_and_runs_are_followed_and_a_new_run_is_reported(session, reader):
    """A subscriber sees one stream, whatever files it lies in."""
    session.add(b"a")
    assert drain(reader) == [b"a"]
    session.roll()
    assert drain(reader) == []
    session.add(b"b")
    assert drain(reader) == [b"b"]
    session.roll(run=True)
    session.add(b"c")
    session.roll()
    session.add(b"d")
    assert drain(reader) == [NewRun("jfk", Position.of(1, 0, 0)), b"c", b"d"]


def test_a_torn_tail_is_waited_at_and_passed_when_the_next_run_begins(session, reader):
    """After a crash the file ends where the next writer says."""
    session.add(b"a")
    end = session.appender.end
    with open(os.path.join(session.path, "log.0.0"), "ab") as file:
        file.write(b"".join(make_frame(end, [b"torn"]).parts)[:70])
    assert drain(reader) == [b"a"]
    assert reader.position == end
    session.roll(run=True)
    session.add(b"b")
    assert drain(reader) == [NewRun("jfk", Position.of(1, 0, 0)), b"b"]


def test_a_tail_that_becomes_whole_is_given_out(session, reader):
    """What is bad now may only be half written: look again."""
    session.add(b"a")
    end = session.appender.end
    whole = b"".join(make_frame(end, [b"late"], sequence=1).parts)
    path = os.path.join(session.path, "log.0.0")
    with open(path, "ab") as file:
        file.write(whole[:30] + bytes(len(whole) - 30))
    assert drain(reader) == [b"a"]
    with open(path, "r+b") as file:
        file.seek(end)
        file.write(whole)
    assert drain(reader) == [b"late"]


@pytest.mark.parametrize("proof", ["a later mark", "the roll"])
def test_damage_is_reported_with_its_position_every_time_it_is_met(session, reader, proof):
    """The second call must not pass over what the first one refused."""
    session.add(b"a")
    at = session.appender.end
    session.add(b"b")
    if proof == "a later mark":
        session.add(b"c", durable=session.appender.end)
    else:
        session.roll()
    session.damage(at + 70)
    assert reader.poll().payloads() == [b"a"]
    for _ in range(3):
        with pytest.raises(CorruptLog, match=r"log\.0\.0: corrupt at 0\.0\.88") as error:
            reader.poll()
        assert error.value.position == at == reader.position


def test_damage_in_a_merged_log_is_reported_once_a_later_range_follows(tmp_path):
    """Its frames carry the marks of other disks; without this a reader waited for ever."""
    with MergedLog(str(tmp_path)) as log:
        log.merge("jfk", [b"a"])
        at = log.appender.end
        log.merge("jfk", [b"b"])
        path = tmp_path / "log.0.0"
        data = bytearray(path.read_bytes())
        data[at + 20] ^= 1
        path.write_bytes(data)
        reader = Reader(LogDirectory(str(tmp_path)))
        assert drain(reader) == [b"a"]
        log.merge("jfk", [b"c"])
        with pytest.raises(CorruptLog):
            drain(reader)
        reader.close()


@pytest.fixture
def growing(tmp_path):
    """Give a merged log of two ranges, the second one of three frames, its bytes and frames."""
    with MergedLog(str(tmp_path)) as log:
        log.merge("jfk", [b"a"])
        log.merge("lga", [b"b"], [b"c"], [b"d"])
    path = tmp_path / "log.0.0"
    data = path.read_bytes()
    scan = Scan(lambda length, at: data[at : at + length], Walk(Position(0), merged=True))
    frames = []
    while frame := scan.next(len(data)):
        frames.append(frame.position.offset)
    reader = Reader(LogDirectory(str(tmp_path)))
    yield path, data, frames, reader
    reader.close()


def test_a_range_that_a_node_takes_back_is_waited_for(growing):
    """On a full disk a node cuts a half-written range, and writes the same bytes when it can."""
    path, data, (_, _, begin, _, _, last), reader = growing
    os.truncate(path, last + 20)
    assert drain(reader) == [b"a", b"b", b"c"]
    for cut in (begin, begin + 30, last):
        os.truncate(path, cut)
        assert drain_often(reader) == []
    path.write_bytes(data)
    assert drain_often(reader) == [b"d"]


def test_a_merged_log_that_loses_a_whole_range_is_corrupt(growing):
    """A node takes back what it has not finished, and nothing else."""
    path, data, frames, reader = growing
    os.truncate(path, frames[-1] + 20)
    assert drain(reader) == [b"a", b"b", b"c"]
    os.truncate(path, frames[2] - 8)
    with pytest.raises(CorruptLog, match="shorter"):
        drain(reader)
    path.write_bytes(data)
    assert drain_often(reader) == [b"d"]
    os.truncate(path, frames[2])
    with pytest.raises(CorruptLog, match="shorter"):
        drain(reader)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_file_that_a_node_copies_again_is_read_on_in_the_new_one(growing, damaged):
    """A node sets a damaged file aside and fetches it from another; a reader held the old one."""
    path, data, frames, reader = growing
    if damaged:
        bad = bytearray(data)
        bad[frames[0] + 40] ^= 1
        path.write_bytes(bad)
        with pytest.raises(CorruptLog):
            reader.poll()
    else:
        os.truncate(path, frames[4])
        assert drain(reader) == [b"a", b"b"]
    path.rename(path.with_name("quarantine.log.0.0.0"))
    found = []
    for end in (0, 10, frames[1], frames[2], frames[4], len(data)):
        path.write_bytes(data[:end])
        found += drain_often(reader)
    assert found == ([b"a", b"b"] if damaged else []) + [b"c", b"d"]


@pytest.mark.parametrize("frames_read", [0, 4, 6])
def test_a_log_that_a_node_copies_again_as_a_whole_is_read_on_in_the_new_one(growing, frames_read):
    """A node sets the whole log aside if a rolled file, or its manifest, is damaged."""
    path, data, frames, reader = growing
    os.truncate(path, [*frames, len(data)][frames_read])
    found = drain(reader)
    directory = path.parent
    manifest = (directory / "manifest").read_bytes()
    directory.rename(directory.with_name(f"quarantine.{directory.name}.0"))
    found += drain_often(reader)
    directory.mkdir()
    for lines in (b"", manifest[:20], manifest):
        found += drain_often(reader)
        (directory / "manifest").write_bytes(lines)
    for end in (0, 10, frames[1], frames[2], frames[4], len(data)):
        found += drain_often(reader)
        path.write_bytes(data[:end])
    assert found + drain_often(reader) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("read", [0, 3, 8, 9])
def test_a_log_of_many_files_that_a_node_copies_again_is_waited_for(
    tmp_path, caplog, read, removed
):
    """RUNBOOK has a node emptied; its reader got CorruptLog, for a line that was about to come."""
    out = tmp_path / "out"
    with MergedLog(str(out)) as log:
        for number in range(9):
            log.merge("jfk", [b"%d" % number])
            if number % 2:
                log.roll()
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    lines = files.pop("manifest").splitlines(keepends=True)
    reader = Reader(LogDirectory(str(out)))
    found = [reader.poll() for _ in range(read)] if read < 9 else drain(reader)
    found = [b"".join(each.payloads()) if isinstance(each, Batch) else each for each in found]
    out.rename(tmp_path / "quarantine")
    if removed:
        shutil.rmtree(tmp_path / "quarantine")
    found += drain_often(reader)
    out.mkdir()
    for place, line in enumerate(lines):
        with open(out / "manifest", "ab") as manifest:
            manifest.write(line)
        name = f"log.0.{place}"
        for end in (0, 10, len(files.get(name, b""))) if name in files else ():
            (out / name).write_bytes(files[name][:end])
            found += drain_often(reader)
    found += drain_often(reader)
    assert found == [b"%d" % number for number in range(9)]
    assert ("out is being copied again" in caplog.text) or read in (0, 9)
    reader.close()


def test_a_file_that_was_healed_and_rolled_while_it_was_read_is_read_on(tmp_path):
    """The damaged file had been set aside; by the new one's line it seemed to be shorter."""
    with MergedLog(str(tmp_path)) as log:
        log.merge("jfk", [b"a"])
        reader = Reader(LogDirectory(str(tmp_path)))
        assert drain(reader) == [b"a"]
        path = tmp_path / "log.0.0"
        data = path.read_bytes()
        path.rename(tmp_path / "quarantine.log.0.0.0")
        path.write_bytes(data)
        log.appender.close()
        log.__post_init__()
        log.merge("jfk", [b"b"])
        log.roll()
        log.merge("jfk", [b"c"])
        assert drain_often(reader) == [b"b", b"c"]
        reader.close()


def test_a_reader_that_does_not_follow_ends_in_no_log_that_is_copied_again(tmp_path):
    """What is there by then is not the end of the stream."""
    out = tmp_path / "flights" / "out"
    with MergedLog(str(out)) as log:
        log.merge("jfk", [b"a"], [b"b"])
        with Subscriber(tmp_path, stream="flights", follow=False) as reader:
            assert next(reader.messages()).payload == b"a"
            out.rename(tmp_path / "aside")
            with pytest.raises(CorruptLog, match="is being copied again"):
                [*reader.messages(), *reader.messages()]


def test_a_file_that_became_shorter_is_corrupt(session, reader):
    """What was given out cannot be gone without a line that says why."""
    session.add(b"a")
    session.add(b"b")
    assert drain(reader) == [b"a", b"b"]
    os.truncate(os.path.join(session.path, "log.0.0"), 88)
    with pytest.raises(CorruptLog, match="shorter"):
        reader.poll()


def test_an_emptied_file_without_a_line_is_corrupt_and_with_one_a_gap(session, reader):
    """GC and an accident look the same on the disk."""
    session.add(b"a")
    session.roll()
    session.add(b"b")
    path = os.path.join(session.path, "log.0.0")
    os.truncate(path, 0)
    with pytest.raises(CorruptLog):
        reader.poll()
    session.archive(Position(0))
    gap = reader.poll()
    assert gap == Gap(Position(0), Position.of(0, 1, 0), ("log.0.0",), "time", TIME_NS)
    assert drain(reader) == [b"b"]


def test_files_archived_before_they_were_reached_are_one_gap(session, reader):
    """A subscriber that was away for a week learns what it missed, once."""
    session.add(b"a")
    assert drain(reader) == [b"a"]
    for place in range(4):
        session.roll()
        session.add(b"%d" % place)
    for roll in (1, 2):
        session.archive(Position.of(0, roll, 0))
    found = drain(reader)
    assert found == [
        Gap(Position(88), Position.of(0, 3, 0), ("log.0.1", "log.0.2"), "time", TIME_NS),
        b"2", b"3",
    ]  # fmt: skip


@pytest.mark.parametrize("is_reading", [False, True])
def test_a_log_whose_rest_was_archived_is_a_gap_at_once(session, reader, is_reading):
    """A quiet stream may write nothing for a week; until then the loss looked like its end."""
    session.add(b"a")
    begin = Position(0)
    if is_reading:
        assert drain(reader) == [b"a"]
        begin = session.appender.end
    for payload in (b"b", b"c"):
        session.add(payload)
        session.roll()
    end = Position.of(0, 1, session.appender.end.offset)
    for roll in (0, 1):
        session.archive(Position.of(0, roll, 0))
    assert drain(reader) == [Gap(begin, end, ("log.0.0", "log.0.1"), "time", TIME_NS)]
    assert reader.position == end
    assert drain(reader) == [], "it is reported once"
    session.add(b"d")
    assert drain(reader) == [b"d"], "nor is it said again when the log continues"


def test_a_file_that_is_gone_altogether_is_a_gap_that_says_missing(session, reader):
    """Someone removed it by hand: the reader says so instead of skipping it."""
    session.add(b"a")
    session.roll()
    session.add(b"b")
    os.remove(os.path.join(session.path, "log.0.0"))
    assert drain(reader) == [
        Gap(Position(0), Position.of(0, 1, 0), ("log.0.0",), "missing", 0), b"b",
    ]  # fmt: skip


def test_what_was_read_to_its_end_is_not_a_gap_when_it_is_archived(session, reader):
    """The usual course: it is archived because everybody has it."""
    session.add(b"a")
    assert drain(reader) == [b"a"]
    session.roll()
    session.archive(Position(0))
    assert drain(reader) == []
    session.add(b"b")
    assert drain(reader) == [b"b"]


@given(st.data())
def test_a_reader_from_any_position_gives_what_comes_after_it(tmp_path_factory, data):
    """A resume position may be of a message, of a byte between, or of a file that is done."""
    path = tmp_path_factory.mktemp("merged")
    with MergedLog(str(path)) as log:
        for _ in range(data.draw(st.integers(1, 5))):
            frames = data.draw(st.lists(st.lists(st.just(b"AA1"), min_size=1, max_size=4),
                                        min_size=1, max_size=3))  # fmt: skip
            count = sum(map(len, frames))
            log.merge(
                data.draw(st.sampled_from(["jfk", "lga"])), *frames,
                keys=data.draw(st.booleans()), level=data.draw(st.sampled_from([0, 3])),
                skip=data.draw(st.integers(0, count - 1)),
            )  # fmt: skip
            if data.draw(st.booleans()):
                log.roll()
        end = log.appender.end
        expected = log.expected
    every = read_from(path, Position(0))
    assert rows(every) == expected
    start = data.draw(st.sampled_from([m.position for m in every]) | st.integers(0, end))
    found = read_from(path, Position(start))
    assert found == [message for message in every if message.position >= start]


def read_from(path, start):
    """Return the messages that a reader gives from a position on."""
    reader = Reader(LogDirectory(str(path)), start)
    found = []
    while (each := reader.poll()) is not None:
        found += list(each.messages()) if isinstance(each, Batch) else []
    reader.close()
    return found


def test_an_unwanted_range_is_skipped_unread(tmp_path):
    """A filter by session must not cost the reading of the others."""
    with MergedLog(str(tmp_path)) as log:
        log.merge("lga", *[[b"x" * 100_000]] * 30)
        log.merge("jfk", [b"a"])
    reader = Reader(LogDirectory(str(tmp_path)))
    assert reader.poll().session == "lga"
    reader.skip_range()
    assert reader.poll().payloads() == [b"a"]
    reader.close()


def test_a_frame_that_reaches_beyond_the_end_of_its_file_is_corrupt(session, reader):
    """The manifest and the frame cannot both be right; waiting for more would be for ever."""
    session.add(b"a")
    session.add(b"b")
    end = session.appender.end
    line = Rolled(Position(0), end.offset - 8, 0, 2, TIME_NS, TIME_NS, TIME_NS)
    session.appender.record(line)
    assert reader.poll().payloads() == [b"a"]
    for _ in range(2):
        with pytest.raises(CorruptLog):
            reader.poll()


@pytest.mark.parametrize("moment", range(12))
def test_a_file_archived_at_any_moment_of_a_poll_is_a_gap_and_not_damage(session, moment):
    """The line is written before the file is emptied; the reader may look between the two."""
    session.add(bytes(READ_BYTES))  # so much that what follows is not read with it
    session.add(b"b")
    session.roll()
    session.add(b"c")
    calls = []

    def step(call):
        calls.append(call)
        if len(calls) == moment and not session.appender.manifest.archived:
            session.archive(Position(0))

    disk = FaultyDisk()
    reader = Reader(LogDirectory(session.path, disk))
    assert reader.poll().payloads() == [bytes(READ_BYTES)]
    disk.step = step
    found = drain(reader)
    reader.close()
    assert found[-1] == b"c"
    assert len(found) == 2
    assert found[0] == b"b" or isinstance(found[0], Gap)


def test_a_bad_tail_is_judged_once_until_something_changes(session):
    """Judging reads all that follows; a reader looks two hundred times a second."""
    disk = FaultyDisk()
    reader = Reader(LogDirectory(session.path, disk))

    def reads():
        calls = []
        disk.step = calls.append
        drain(reader)
        return calls.count("pread")

    session.add(b"a")
    path = os.path.join(session.path, "log.0.0")
    with open(path, "ab") as file:
        file.write(b"torn" * 20)
    first = reads()
    again = [reads() for _ in range(5)]
    assert set(again) == {again[0]}
    assert again[0] < first
    with open(path, "ab") as file:
        file.write(b"more")
    assert reads() > again[0]
    reader.close()


@pytest.mark.parametrize("moment", range(1, 9))
def test_a_file_rolled_and_archived_at_any_moment_of_a_poll_is_not_a_gap(session, moment):
    """All of it was read: that it is empty now is neither damage nor a gap."""
    session.add(b"a")
    calls = []

    def step(call):
        calls.append(call)
        if len(calls) == moment:
            session.roll()
            session.add(b"c")
            session.archive(Position(0))

    disk = FaultyDisk()
    reader = Reader(LogDirectory(session.path, disk))
    assert drain(reader) == [b"a"]
    disk.step = step
    found = []
    while len(calls) < moment or not found:
        found += drain(reader)
    reader.close()
    assert found == [b"c"]


def _lose_newline(session):
    """Take the last byte of the manifest: its last line looks unfinished."""
    path = os.path.join(session.path, "manifest")
    os.truncate(path, os.path.getsize(path) - 1)


@pytest.mark.parametrize("run", [False, True])
@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_lost_roll_is_damage_of_the_manifest_and_not_the_end(session, reader, run, is_waiting):
    """A reader that waits at the end of a file for ever looks like a stream without news."""
    session.add(b"a")
    if is_waiting:
        assert drain(reader) == [b"a"]
    session.roll(run=run)
    session.add(b"b")
    _lose_newline(session)
    with pytest.raises(CorruptLog, match=r"manifest: .*log\.0\.0 ends, though log\.[01]\.[01] is"):
        drain_often(reader)
    with pytest.raises(CorruptLog):
        drain_often(reader)


@pytest.mark.parametrize("polls", range(17))
def test_a_file_of_a_log_made_in_its_place_is_not_read_on(session, reader, polls):
    """It has frames at the same positions, of the same session: only the manifest differs."""
    session.add(b"a")
    assert drain(reader) == [b"a"]
    session.appender.close()
    shutil.rmtree(session.path)
    assert [reader.poll() for _ in range(polls)] == [None] * polls
    other = LOG._replace(id="1" * 32)
    session.appender = Appender(OsDisk(), session.path, other)
    session.next_file = Position(0)
    for payload in (b"x", b"y"):
        session.add(payload)
    found = []
    with pytest.raises(CorruptLog, match="another made in its place"):
        found.extend(each for _ in range(40) for each in drain(reader))
    assert found == []


def test_a_file_that_is_begun_while_a_reader_looks_is_not_damage(session, reader):
    """The line that ends a file may come between two looks of one poll."""
    session.add(b"a")
    assert drain(reader) == [b"a"]
    has_file, rolls = reader.log.has_file, [False, True]

    def rolled_meanwhile(start):
        if rolls:
            session.roll(run=rolls.pop(0))
            session.add(b"b")
            rolls.clear()
        return has_file(start)

    reader.log.has_file = rolled_meanwhile
    assert drain_often(reader) == [b"b"]
