"""Start: the place to read from, by name, number or time, without reading everything."""

import contextlib
import os
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import TIME_NS, MergedLog

from rt import AtTime, Gap, GapError, Last, Misuse, Publisher, Subscriber, WriterSettings
from rt.format.manifest import Archived
from rt.format.message import Batch
from rt.limits import KIB
from rt.log.files.directory import LogDirectory
from rt.log.read.reader import Reader
from rt.log.read.start import checked_start, end_before, end_of, parse_start, readable_at, resolve
from rt.log.write.batcher import Batching
from rt.position import START, Position


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    """Give a merged log of five files: keys, compression, repeats, several frames a range."""
    path = tmp_path_factory.mktemp("root") / "flights" / "out"
    with MergedLog(str(path)) as log:
        for place in range(25):
            payloads = [b"%02d%d" % (place, each) * 50 for each in range(8)]
            log.merge(
                ["jfk", "lga", "ewr"][place % 3], payloads[:3], payloads[3:],
                keys=place % 2 == 0, level=3 * (place % 4 == 1), skip=[0, 2, 5, 8][place % 4] % 8,
            )  # fmt: skip
            if place % 5 == 4:
                log.roll()
        log.merge("jfk", [b"active"])
    return log


def read(log, start):
    """Return the payloads from a start on."""
    root = log.directory.removesuffix("/flights/out")
    with Subscriber(root, stream="flights", start=start, follow=False) as subscriber:
        return [message.payload for message in subscriber]


def test_the_last_messages_are_counted_without_the_repeats(merged):
    """Last 10 must be ten messages that count, whatever frames they lie in."""
    payloads = [row.payload for row in merged.expected]
    for count in range(len(payloads) + 3):
        assert read(merged, Last(count)) == payloads[max(0, len(payloads) - count) :]


def test_a_time_finds_the_first_message_merged_then_or_later(merged):
    """Replay since this morning."""
    times = sorted({row.merge_time_ns for row in merged.expected})
    for time_ns in [0, *times, *(each + 1 for each in times), times[-1] + 10**18]:
        expected = [row.payload for row in merged.expected if row.merge_time_ns >= time_ns]
        assert read(merged, AtTime(time_ns)) == expected
    moment = datetime.fromtimestamp(TIME_NS // 10**9, UTC) + timedelta(milliseconds=7)
    assert read(merged, moment) == read(merged, AtTime(TIME_NS + 7_000_000))
    assert read(merged, moment.astimezone(timezone(timedelta(hours=-5)))) == read(merged, moment)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(0, 41), st.integers(1, 9))
def test_no_message_of_a_session_is_lost_to_times_in_no_order(times, wanted, per_frame):
    """A publisher may name its times; an index entry says nothing of the frames before it."""
    with TemporaryDirectory() as root:
        batching = Batching(frame_bytes=KIB)
        with Publisher(root, stream="flights", session="jfk", batching=batching) as publisher:
            for each in times:
                publisher.publish(bytes(KIB // per_frame), time_ns=TIME_NS + each)
        with closing(LogDirectory(f"{root}/flights/jfk")) as log:
            log.refresh()
            start = readable_at(log, TIME_NS + wanted)
            end = end_before(log, TIME_NS + wanted)
            with closing(Reader(log, START)) as reader:
                batches = [found for found in iter(reader.poll, None) if isinstance(found, Batch)]
            places = {
                batch.position + place: time - TIME_NS
                for batch in batches
                for place, time in enumerate(batch.columns.times)
            }
            late = [place for place, time in places.items() if time >= wanted]
            early = [place for place, time in places.items() if time < wanted]
            assert start == min(late, default=end_of(log))
            assert max(early, default=-1) < end
            assert not [place for place in late if place > max(early, default=0) and place < end]


def test_earliest_and_latest_are_the_ends(merged):
    """The two starts everybody uses."""
    assert len(read(merged, "earliest")) == len(merged.expected)
    assert read(merged, "latest") == []
    log = LogDirectory(merged.directory)
    assert end_of(log) == merged.appender.end
    log.close()


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Give the root of a session with many files, 37 messages a frame, 1,000 ns apart."""
    root = str(tmp_path_factory.mktemp("root"))
    writer = WriterSettings(file_bytes_max=64 * KIB, compression=1)
    for life in range(2):
        with Publisher(root, stream="flights", session="jfk", writer=writer) as publisher:
            for place in range(40):
                first = (life * 40 + place) * 37
                numbers = range(first, first + 37)
                publisher.publish_many(
                    [b"%d" % number + bytes(range(256)) * 2 for number in numbers],
                    times_ns=[TIME_NS + 1000 * number for number in numbers],
                )
    return root


def first_number(root, start):
    """Return the number of the first message from a start on."""
    with Subscriber(root, stream="flights", session="jfk", start=start, follow=False) as subscriber:
        return next((message.sequence for message in subscriber), None)


def test_every_message_of_a_session_is_found_by_its_own_time_and_number(session):
    """The last frame of a file may end later than it begins: those messages were missed."""
    for number in range(0, 80 * 37, 43):
        assert first_number(session, AtTime(TIME_NS + 1000 * number)) == number
        assert first_number(session, AtTime(TIME_NS + 1000 * number - 1)) == number
        assert first_number(session, Last(80 * 37 - number)) == number
    assert first_number(session, AtTime(TIME_NS + 1000 * 80 * 37)) is None


def test_a_missing_or_empty_log_begins_at_its_start(tmp_path):
    """A subscriber may be started first, whatever it asks for."""
    log = LogDirectory(str(tmp_path / "out"))
    for start in ("earliest", "latest", Last(5), AtTime(TIME_NS)):
        assert resolve(log, start) == 0
    with MergedLog(str(tmp_path / "out")):
        for start in ("earliest", "latest", Last(5), AtTime(TIME_NS)):
            assert resolve(log, start) == 0
    log.close()


@pytest.mark.parametrize("start", ["earliest", "latest", Last(5), AtTime(TIME_NS + 10**9)])
def test_a_log_that_is_archived_entirely_begins_after_it(tmp_path, start):
    """On a quiet stream everything is archived by age; a reader that begins then missed nothing."""
    with MergedLog(str(tmp_path / "flights" / "out")) as log:
        for _ in range(2):
            log.merge("jfk", [b"gone"])
            log.roll()
        appender = log.appender
        appender.archive_all([Archived(file, TIME_NS, "time") for file in appender.manifest.order])
        with Subscriber(str(tmp_path), stream="flights", start=start) as subscriber:
            assert subscriber.position == appender.end
            assert list(subscriber.messages(0.1)) == []
            log.merge("jfk", [b"new"])
            assert [each.payload for each in subscriber.messages(0.1)] == [b"new"]


def test_a_time_whose_messages_are_archived_begins_with_a_gap(tmp_path):
    """Replaying since this morning must not begin at noon without saying so."""
    with MergedLog(str(tmp_path / "flights" / "out")) as log:
        for _ in range(3):
            log.merge("jfk", [b"a"])
            log.roll()
        times = [row.merge_time_ns for row in log.expected]
        order = log.appender.manifest.order
        log.appender.archive_all([Archived(file, TIME_NS, "time") for file in order[:2]])
    for time_ns, missing in zip(times, (order[:2], order[1:2]), strict=False):
        with Subscriber(
            str(tmp_path), stream="flights", start=AtTime(time_ns), follow=False
        ) as subscriber:
            with pytest.raises(GapError) as error:
                list(subscriber)
            assert error.value.gap.files == tuple(file.file_name for file in missing)
            assert [message.payload for message in subscriber] == [b"a"]
    assert read(log, AtTime(times[2])) == [b"a"]
    directory = LogDirectory(log.directory)
    assert resolve(directory, AtTime(times[2] + 1)) == log.appender.end
    directory.close()


@pytest.mark.parametrize(
    "choice", [{"sessions": ["jfk"]}, {"sessions": ["lga", "e*"]}, {"where": "session!=jfk"}]
)
def test_the_last_messages_are_counted_of_the_wanted_sessions(merged, choice):
    """The last message of a session that is silent is not among the last of the stream."""
    only = choice.get("sessions")
    wanted = ["jfk"] if only == ["jfk"] else ["lga", "ewr"]
    payloads = [row.payload for row in merged.expected if row.session in wanted]
    root = merged.directory.removesuffix("/flights/out")
    for count in (0, 1, 2, 7, len(payloads), len(payloads) + 5):
        with Subscriber(
            root, stream="flights", start=Last(count), follow=False, **choice
        ) as subscriber:
            found = [message.payload for message in subscriber]
        assert found == payloads[max(0, len(payloads) - count) :], count


@pytest.fixture
def three_files(tmp_path):
    """Give a merged log of three rolled files of two messages each."""
    with MergedLog(str(tmp_path / "flights" / "out")) as log:
        for place in range(3):
            log.merge("jfk", [b"%d" % (2 * place + each) for each in range(2)])
            log.roll()
    return log


def found_from(log, start):
    """Return what a reader of the three files meets: payloads, and the files of gaps."""
    found = []
    root = log.directory.removesuffix("/flights/out")
    with Subscriber(
        root, stream="flights", start=start, follow=False, on_gap="notify", on_event=found.append
    ) as subscriber:
        found += [message.payload for message in subscriber]
    gaps = [each.files for each in found if isinstance(each, Gap)]
    return gaps, [each for each in found if isinstance(each, bytes)]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_file_that_was_deleted_by_hand_is_met_as_a_gap(three_files, gone):
    """A reader from the beginning said nothing when the first file was missing."""
    file = three_files.appender.manifest.order[gone]
    os.remove(os.path.join(three_files.directory, file.file_name))
    payloads = [row.payload for row in three_files.expected]
    left = payloads[: 2 * gone] + payloads[2 * gone + 2 :]
    for start in ("earliest", Last(6), AtTime(0), START):
        assert found_from(three_files, start) == ([(file.file_name,)], left), start
    with pytest.raises(
        GapError, match=rf"is missing, though it was not archived \({file.file_name}\)"
    ):
        read(three_files, "earliest")
    within = three_files.expected[2 * gone + 1]
    for start in (Last(6 - 2 * gone - 1), AtTime(within.merge_time_ns)):
        assert found_from(three_files, start) == ([(file.file_name,)], payloads[2 * gone + 2 :])
    assert found_from(three_files, "latest") == ([], [])


def test_a_log_whose_files_were_all_deleted_is_one_gap(three_files):
    """It looks like a log that is archived entirely, whose readers missed nothing."""
    order = three_files.appender.manifest.order
    for file in order:
        os.remove(os.path.join(three_files.directory, file.file_name))
    names = tuple(file.file_name for file in order)
    for start in ("earliest", Last(6), AtTime(0)):
        assert found_from(three_files, start) == ([names], [])
    assert found_from(three_files, Last(1)) == ([names[2:]], [])


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0.1.4096", Position.of(0, 1, 4096)),
        ("4096", Position(4096)),
        ("last:100", Last(100)),
        ("at:1357017420000000000", AtTime(TIME_NS)),
        ("2013-01-01T05:17:00Z", datetime(2013, 1, 1, 5, 17, tzinfo=UTC)),
        ("2013-01-01", datetime(2013, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_start_is_read_as_it_is_written_on_a_command_line(text, start):
    """One grammar for program and command line."""
    assert parse_start(text) == checked_start(text) == start


@given(st.text())
def test_any_text_is_a_start_or_misuse(text):
    """It is typed by people."""
    with contextlib.suppress(Misuse):
        start = parse_start(text)
        assert checked_start(text) == checked_start(start) == start


@pytest.mark.parametrize("start", [5, None, b"latest", "newest", datetime(2013, 1, 1)])  # noqa: DTZ001
def test_an_invalid_start_is_refused_when_it_is_given(tmp_path, start):
    """Not when the first message is asked for, in another thread, an hour later."""
    with pytest.raises(Misuse):
        Subscriber(str(tmp_path), stream="flights", start=start)
    with pytest.raises(Misuse):
        Last(-1)
