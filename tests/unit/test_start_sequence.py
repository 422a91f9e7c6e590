"""A start by a session's sequence number: where a program resumes that counts for itself."""

import os
from contextlib import closing

import pytest
from logs import MergedLog

from rt import AtSequence, Gap, GapError, Misuse, Publisher, Subscriber, WriterSettings
from rt.format.manifest import Rolled
from rt.limits import KIB
from rt.log.files.directory import LogDirectory
from rt.log.read.start import parse_start, resolve, start_text
from rt.position import START, Position

SESSIONS = ("jfk", "lga", "ewr")


@pytest.fixture
def merged(tmp_path):
    """Give a merged log of four rolled files and an active one; ewr is in two of them only."""
    with MergedLog(str(tmp_path / "flights" / "out")) as log:
        for place in range(24):
            session = SESSIONS[place % (3 if place // 6 in (1, 3) else 2)]
            payloads = [b"%02d%d" % (place, each) for each in range(7)]
            log.merge(session, payloads[:3], payloads[3:], skip=[0, 2, 5][place % 3])
            if place % 6 == 5:
                log.roll(",".join(sorted(SESSIONS[: 3 if place // 6 in (1, 3) else 2])))
        log.merge("jfk", [b"active"])
        yield log


def root_of(log):
    """Return the root of the stream."""
    return log.directory.removesuffix("/flights/out")


def found_from(log, number, session="jfk", **options):
    """Return what a reader meets from a number on: gaps, and the session's messages."""
    found = []
    with Subscriber(
        root_of(log), stream="flights", start=f"sequence:{number}", sessions=[session],
        follow=False, on_gap="notify", on_event=found.append, **options,
    ) as subscriber:  # fmt: skip
        found += [message.payload for message in subscriber]
    gaps = [each.files for each in found if isinstance(each, Gap)]
    return gaps, [each for each in found if isinstance(each, bytes)]


@pytest.mark.parametrize("session", SESSIONS)
def test_a_number_finds_its_message_or_the_next_one_of_the_session(merged, session):
    """Repeats that were not merged, other sessions and files without the session are between."""
    rows = [row for row in merged.expected if row.session == session]
    for number in range(rows[-1].sequence + 3):
        expected = [row.payload for row in rows if row.sequence >= number]
        assert found_from(merged, number, session) == ([], expected), number


def test_all_sessions_can_be_read_from_the_number_of_one(merged):
    """Its messages have answers in other sessions."""
    place = next(at for at, row in enumerate(merged.expected) if row.session == "lga")
    row = merged.expected[place + 9]
    start = AtSequence(row.sequence, row.session)
    with Subscriber(root_of(merged), stream="flights", start=start, follow=False) as subscriber:
        found = [message.payload for message in subscriber]
    assert found == [each.payload for each in merged.expected[place + 9 :]]


def test_numbers_of_archived_files_begin_with_a_gap(merged):
    """A program that resumes must not begin later without knowing what it misses."""
    order = merged.appender.manifest.order
    merged.archive(*order[:2])
    rows = [row for row in merged.expected if row.session == "jfk"]
    with closing(LogDirectory(merged.directory)) as log:
        log.refresh()
        kept = [row for row in rows if resolve(log, AtSequence(row.sequence, "jfk")) >= order[2]]
    assert rows[-1] in kept
    assert rows[0] not in kept
    names = tuple(file.file_name for file in order[:2])
    for number in range(rows[-1].sequence + 1):
        gaps, payloads = found_from(merged, number)
        assert gaps == ([] if number >= kept[0].sequence else [names]), number
        assert payloads == [row.payload for row in kept if row.sequence >= number], number
    with pytest.raises(GapError, match="was archived"):
        list(Subscriber(root_of(merged), stream="flights", start="sequence:1", sessions="jfk",
                        follow=False))  # fmt: skip


def test_a_gap_without_the_session_is_no_gap_for_it(tmp_path):
    """The manifest names the sessions of each file that is gone."""
    with MergedLog(str(tmp_path / "flights" / "out")) as log:
        log.merge("lga", [b"gone"])
        log.roll("lga")
        log.sources["jfk"] = type(log.sources["lga"])(sequence=40)
        log.merge("jfk", [b"forty"])
        log.archive(START)
    assert found_from(log, 7) == ([], [b"forty"])


def test_a_file_that_was_deleted_by_hand_is_met_as_a_gap(merged):
    """It is in the middle: what is older can still be read."""
    order = merged.appender.manifest.order
    os.remove(os.path.join(merged.directory, order[2].file_name))
    rows = [row for row in merged.expected if row.session == "jfk"]
    kept = [row for row in rows if row.payload < b"12" or row.payload >= b"18"]
    later = kept.index(next(row for row in kept if row.payload >= b"18"))
    for number in range(rows[-1].sequence + 1):
        gaps, payloads = found_from(merged, number)
        assert gaps == [] if number >= kept[later].sequence else [(order[2].file_name,)], number
        assert payloads == [row.payload for row in kept if row.sequence >= number], number


def test_an_unknown_session_is_reported(merged):
    """It may be misspelt; an empty answer would look like one."""
    found = []
    with Subscriber(
        root_of(merged), stream="flights", start="sequence:1", sessions=["jfkk"], follow=False,
        on_event=found.append,
    ) as subscriber:  # fmt: skip
        assert list(subscriber) == []
    assert "did you mean 'jfk'?" in "".join(map(str, found))


def test_a_session_is_read_from_a_number_in_its_own_log(tmp_path):
    """Where it is published, too; what was archived there is a gap."""
    writer = WriterSettings(file_bytes_max=64 * KIB)
    with Publisher(tmp_path, stream="flights", session="jfk", writer=writer) as publisher:
        for number in range(300):
            publisher.publish(b"%d" % number + bytes(KIB))
        publisher.skip_to(310)
        publisher.publish(b"310")
    options = {"stream": "flights", "session": "jfk", "follow": False}
    for number in (0, 1, 63, 64, 150, 299, 300, 305, 310):
        with Subscriber(tmp_path, start=AtSequence(number), **options) as subscriber:
            assert next(iter(subscriber)).sequence == (number if number < 300 else 310)
    with Subscriber(tmp_path, start="sequence:311", **options) as subscriber:
        assert list(subscriber) == []
    with (
        Subscriber(tmp_path, start=AtSequence(4, "lga"), **options) as subscriber,
        pytest.raises(Misuse, match="this is the log of session jfk, not of lga"),
    ):
        list(subscriber)


def test_a_start_by_number_needs_one_session(tmp_path):
    """Each session counts for itself."""
    for sessions in (None, [], ["jfk", "lga"], ["jfk*"], "j*"):
        with pytest.raises(Misuse, match="sequence:5 is a number of one session; choose exactly"):
            Subscriber(tmp_path, stream="flights", start="sequence:5", sessions=sessions)
    for number in (-1, 1.5, "1", True):
        with pytest.raises(Misuse, match="is not a start; use a number, 0 or more"):
            AtSequence(number)
    with pytest.raises(Misuse, match="not a session name"):
        AtSequence(1, "../jfk")
    assert parse_start("sequence:5") == AtSequence(5)
    with pytest.raises(Misuse, match="nodes do not look for sequence numbers such as 5"):
        start_text(AtSequence(5, "jfk"))


def test_a_log_that_is_not_there_yet_begins_at_its_start(tmp_path):
    """A subscriber may be started first."""
    with closing(LogDirectory(str(tmp_path / "out"))) as log:
        assert resolve(log, AtSequence(5, "jfk")) == START
        with MergedLog(str(tmp_path / "out")):
            assert resolve(log, AtSequence(5, "jfk")) == START


@pytest.mark.parametrize(
    ("sessions", "may_hold"), [("jfk,lga", True), ("lga", False), ("", True), ("lga,+3", True)]
)
def test_a_manifest_line_names_the_sessions_that_a_file_may_hold(sessions, may_hold):
    """Only so many names fit; lines of older versions have none."""
    line = Rolled(Position(0), 1, 0, 1, 0, 0, 0, "", sessions)
    assert line.may_hold("jfk") == may_hold
