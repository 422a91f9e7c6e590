"""Archived: the line, then the bytes; whatever happens in between, the next life finishes it."""

import os
from contextlib import suppress
from types import SimpleNamespace

import pytest
from faulty import FaultyDisk, fail_call
from hypothesis import given
from hypothesis import strategies as st
from logs import MergedLog

from archiver.keep import parse_keep
from archiver.policy import Policy
from replicator.push.progress import Release
from replicator.push.releaser import Releaser
from replicator.push.session_book import SessionBook
from rt.errors import Misuse, PeerError
from rt.format.manifest import Archived
from rt.log.files.archived import empty_files, finish_archiving
from rt.log.files.directory import LogDirectory
from rt.log.files.lock import take_lock
from rt.log.write.appender import Appender
from rt.names import parse_glob
from rt.position import Position
from sequencer.ledger.instruction import (
    FILES_MAX,
    NOTE_BYTES_MAX,
    Archive,
    ArchivedFile,
    Note,
    decode_instruction,
    encode_instruction,
)
from sequencer.ledger.ledger import NOTES_MAX, Ledger, decode_ledger

FILES = [Position.of(0, roll, 0) for roll in range(4)]
LINES = [Archived(file, 5, "time", 7) for file in FILES[:3]]


class Killed(BaseException):
    """The process was ended here; nothing of it runs any more."""


def make_log(path, disk=None):
    """Make a merged log of four rolled files."""
    with MergedLog(str(path)) as log:
        for _ in FILES:
            log.merge("jfk", [b"x" * 100])
            log.roll()
        identity = log.appender.identity
    return Appender(disk or FaultyDisk(), str(path), identity)


def sizes(path):
    """The bytes of the four files."""
    return [os.path.getsize(os.path.join(path, file.file_name)) for file in FILES]


@pytest.mark.parametrize("nth", range(40))
def test_a_kill_before_any_call_is_finished_by_the_next_life(tmp_path, nth):
    """Kill -9 at every step: an empty file always has its line, and each line its empty file."""
    disk = FaultyDisk()
    log = make_log(tmp_path / "out", disk)
    calls = iter(range(1 << 30))

    def step(_call):
        if next(calls) == nth:
            raise Killed

    disk.step = step
    try:
        log.archive_all(LINES, empty=False)
        empty_files(disk, log.directory, FILES[:3])
        log.archive(Archived(FILES[3], 6, "limit"))
    except Killed:
        pass
    fresh = LogDirectory(str(tmp_path / "out"))
    fresh.refresh()
    for file, size in zip(FILES, sizes(tmp_path / "out"), strict=True):
        assert size or file in fresh.manifest.archived
    disk.step = lambda _call: None
    again = Appender(disk, log.directory, log.identity)
    finish_archiving(disk, again.directory, again.manifest)
    for file, size in zip(FILES, sizes(tmp_path / "out"), strict=True):
        assert (size == 0) == (file in again.manifest.archived)
    again.recover()
    again.close()


@pytest.mark.parametrize("nth", range(12))
def test_a_kill_while_a_copy_passes_an_archived_file_leaves_no_file_that_is_rolled_and_gone(
    tmp_path, nth
):
    """Such a copy could not report its position, and so never continued."""
    make_log(tmp_path / "full").close()
    source = LogDirectory(str(tmp_path / "full"))
    source.refresh()
    disk, calls = FaultyDisk(), iter(range(1 << 30))
    copy = Appender(disk, str(tmp_path / "copy"), source.manifest.identity)

    def step(_call):
        if next(calls) == nth:
            raise Killed

    disk.step = step
    with suppress(Killed):
        copy.skip_archived(source.manifest.rolled[FILES[0]], LINES[0])
    disk.step = lambda _call: None
    again = Appender(disk, copy.directory, copy.identity)
    assert again.manifest.rolled.keys() == again.manifest.archived.keys()


@pytest.mark.parametrize("nth", range(6))
def test_lines_that_cannot_be_written_leave_the_files_as_they_are(tmp_path, nth):
    """A full disk is when it is needed most."""
    disk = FaultyDisk()
    log = make_log(tmp_path / "out", disk)
    before = sizes(tmp_path / "out")
    disk.step = fail_call(nth, 28)
    try:
        log.archive_all(LINES, empty=False)
    except OSError:
        assert sizes(tmp_path / "out") == before
        assert not log.manifest.archived
    disk.step = lambda _call: None


def test_a_thousand_empty_files_are_not_checked_again(tmp_path):
    """A node that runs for years has 100,000 of them, and must still start."""
    disk = FaultyDisk()
    log = make_log(tmp_path / "out", disk)
    log.archive_all(LINES)
    seen = []
    disk.step = seen.append
    assert finish_archiving(disk, log.directory, log.manifest) == 0
    assert seen.count("truncate") == 0


def test_a_session_that_is_being_merged_is_locked_only_where_more_may_go(tmp_path):
    """At a thousand sessions that publish, all looks found the lock taken by a live publisher."""
    tried, said = [], SimpleNamespace(released=Position.of(0, 0, 8))

    class Book(SessionBook):
        def progress(self, _session):
            return said

        def path(self, session):
            tried.append(said.released)  # it is asked for to lock the session
            return super().path(session)

    directory = tmp_path / "flights" / "jfk"
    directory.mkdir(parents=True)
    writer = take_lock(str(directory), "")  # held by a live writer
    releaser = Releaser(Book(str(tmp_path), "flights", [parse_glob("*")]), Release.MERGED)
    steps = [(0, 8), (0, 16), (0, 24), (0, 24), (0, 32), (1, 8), (1, 16), (1, 16), (1, 16)]
    for roll, offset in steps:
        said.released = Position.of(0, roll, offset)
        releaser.look_at("jfk")
    assert [(each.roll, each.offset) for each in tried] == [
        (0, 8),
        (0, 24),
        (1, 8),
        (1, 16),
        (1, 16),
    ]
    said.released = Position.of(0, 1, 24)
    releaser.look_at("jfk", last=True)
    assert len(tried) == 6, "the last look is at all"
    os.close(writer)


INSTRUCTIONS = st.one_of(
    st.builds(
        Archive,
        st.integers(0, (1 << 63) - 1),
        st.lists(
            st.builds(
                ArchivedFile,
                st.integers(0, 1 << 32).map(lambda n: Position(n << 30)),
                st.text(max_size=60),
            ),
            max_size=20,
        ).map(tuple),
    ),
    st.builds(
        Note, st.integers(0, (1 << 63) - 1), st.text(min_size=1, max_size=60), st.text(max_size=250)
    ),
)


@given(INSTRUCTIONS)
def test_every_instruction_survives_the_wire(instruction):
    """Every node reads what the leader wrote."""
    command = encode_instruction(instruction)
    assert decode_instruction(command) == instruction


@given(INSTRUCTIONS)
def test_every_cut_of_an_instruction_is_refused_or_shorter(instruction):
    """Bytes from a peer are bytes from a stranger."""
    command = encode_instruction(instruction)
    for end in range(len(command)):
        try:
            assert decode_instruction(command[:end]) != instruction
        except PeerError:
            continue


def test_an_instruction_has_its_limits():
    """What is larger would hold up merging, or fill every snapshot."""
    with pytest.raises(Misuse, match="at most"):
        encode_instruction(Archive(0, (ArchivedFile(FILES[0], "time"),) * (FILES_MAX + 1)))
    with pytest.raises(Misuse, match="bytes"):
        encode_instruction(Note(0, "policy", "x" * (NOTE_BYTES_MAX + 1)))
    with pytest.raises(Misuse, match="bytes"):
        encode_instruction(Note(0, "", "x"))


def test_the_ledger_carries_policy_and_what_is_archived_in_its_snapshot():
    """A node that returns has them from the leader's state."""
    ledger = Ledger()
    ledger.set_note("policy", Policy().text())
    ledger.archived_to, ledger.active_sessions = FILES[2], {"lga", "jfk"}
    copy = decode_ledger(ledger.encode())
    assert copy == ledger
    assert copy.encode() == ledger.encode()
    ledger.set_note("policy", "")
    assert not ledger.notes
    for place in range(NOTES_MAX + 5):
        ledger.set_note(f"lease r{place}", "x")
    assert len(ledger.notes) == NOTES_MAX


@pytest.mark.parametrize("text", ["", "sometimes", "0", "5 parsecs", "-1d"])
def test_what_no_copy_keeps_is_refused(text):
    """`--keep` decides what stays on a subscriber's disk."""
    with pytest.raises(Misuse):
        parse_keep(text)
