"""Faults that archiving worlds found in executor, member, outlet and index, one test each."""

from dataclasses import dataclass
from random import Random

from replicator.pull.local_copy import PulledLog
from replicator.source.source import Looked, Source, Wait
from rt.format import manifest
from rt.format.columns import encode_columns
from rt.format.frame import encode_frame, session_tag
from rt.format.index import ENTRY_BYTES
from rt.format.manifest import SESSION, LogIdentity
from rt.log.write.appender import Appender
from rt.node.ingest.inbox import NodeInbox
from rt.node.retain.sweep import Sweep
from rt.node.retain.sweeper import NodeSweeper
from rt.position import START, Position
from sequencer.execution.execution import Execution
from sequencer.execution.executor import Executor
from sequencer.ledger.instruction import Archive, ArchivedFile, Roll
from sequencer.ledger.ledger import Ledger, decode_ledger
from sequencer.planning.holdings import Holdings
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLogs
from sequencer.raft.consensus import Snapshot

from .copying import IDENTITY
from .disk import SimDisk
from .publisher import STREAM, Pipe, Publisher


def merged_node() -> tuple[SimDisk, Publisher, Executor]:
    """Return a disk with a session and a merged log of three instructions in two files."""
    disk = SimDisk(Random(3))
    publisher = Publisher("jfk", Random(1), disk)
    executor = Executor(disk, "out", IDENTITY, Ledger(), SessionLogs(disk, ""), alone=False)
    planner = Planner(SessionLogs(disk, ""))
    for index in (1, 3):
        publisher.publish()
        merge = planner.plan(executor.ledger, {"jfk": publisher.end}, 7)
        assert merge is not None
        executor.execute(index, 1, merge)
        if index == 1:
            executor.execute(2, 1, Roll(8))
    return disk, publisher, executor


def test_the_remains_of_an_emptied_file_are_ignored() -> None:
    """Seed 234: half a file, which a power cut had brought back, was called damaged."""
    disk, _, executor = merged_node()
    executor.execute(4, 1, Archive(9, (ArchivedFile(START, "time"),)))
    executor.sync()
    whole = len(disk.inode("out/log.0.0").data)
    for length in range(whole + 1):
        del disk.inode("out/log.0.0").data[length:]
        disk.inode("out/log.0.0").data.extend(bytes(length - len(disk.inode("out/log.0.0").data)))
        early = Executor(disk, "out", IDENTITY, Ledger(), SessionLogs(disk, ""), alone=False)
        assert early.is_stranded == (length < whole)
        late = decode_ledger(executor.ledger.encode())
        again = Executor(disk, "out", IDENTITY, late, SessionLogs(disk, ""), alone=False)
        assert not again.is_stranded


def test_a_ledger_that_reaches_an_emptied_file_later_is_stranded_too() -> None:
    """Seed 278: only the ledger's own file was checked, not the next one."""
    disk, _, executor = merged_node()
    executor.execute(4, 1, Roll(9))
    for file in (START, START.next_file()):
        executor.appender.archive(manifest.Archived(file, 9, "time", 5))
    disk.inode("out/log.0.0").data.extend(bytes(executor.appender.manifest.rolled[START].end))
    again = Executor(disk, "out", IDENTITY, Ledger(), SessionLogs(disk, ""), alone=False)
    assert again.is_stranded


def test_a_merged_log_that_was_opened_is_durable() -> None:
    """Seed 1166: a copy that was only in memory was reported to the others as durable."""
    disk, _, executor = merged_node()
    disk.kill()
    assert disk.durable("out/log.0.1") != bytes(disk.inode("out/log.0.1").data)
    Executor(disk, "out", IDENTITY, executor.ledger, SessionLogs(disk, ""), alone=False)
    assert disk.durable("out/log.0.1") == bytes(disk.inode("out/log.0.1").data)


def test_a_snapshot_older_than_anothers_state_does_not_take_it_back() -> None:
    """Seed 446: a node went back to the leader's state, and left out what came after it."""
    _, _, executor = merged_node()
    execution = Execution(executor, Holdings("a", "a"))
    state = executor.ledger.encode()
    for index, data in ((1, Ledger(index=1).encode()), (3, state)):
        execution.restore(Snapshot(index, 1, (), data))
        assert executor.ledger.encode() == state
    later = decode_ledger(state)
    later.index = 9
    execution.restore(Snapshot(9, 1, (), later.encode()))
    assert executor.ledger.index == 9


def test_a_copy_with_the_whole_last_file_learns_when_it_is_archived() -> None:
    """Seed 346: the line was skipped until the next connection was made."""
    disk, publisher = SimDisk(Random(1)), Publisher("jfk", Random(1))
    publisher.publish()
    publisher.roll_file()
    copy = PulledLog(
        Appender(disk, "in/jfk", publisher.identity), lambda _line: False, lambda _end: None
    )
    pipe = Pipe(publisher.disk, "jfk", copy)
    while pipe.step():
        pass
    assert copy.appender.manifest.order == [START]
    publisher.archive(publisher.end)
    while pipe.step():
        pass
    assert list(copy.appender.manifest.archived) == [START]


def test_an_archived_file_that_may_be_served_only_in_part_is_not_a_difference() -> None:
    """Seed 646: a subscriber heard that the log had diverged when it had not."""
    line = manifest.Archived(START, 0, "time")
    source = Source(Position(1904))
    assert isinstance(source.step(Looked(0, None, line)), Wait)
    assert isinstance(source.step(Looked(None, None, line)), Wait)
    assert not isinstance(source.step(Looked(0)), Wait)


def test_an_index_names_no_frame_after_unsynced_bytes() -> None:
    """Seed 1354: a recovery that began at such a frame did not see the hole before it."""
    identity = LogIdentity(SESSION, STREAM, "jfk", "1" * 32, 0)
    disk = SimDisk(Random(1))
    log = Appender(disk, "jfk", identity)
    log.begin_file(START)
    frames = 160
    for number in range(frames):
        body = encode_columns([0], [bytes(256 * 1024)])
        frame = encode_frame(
            body, position=log.end, sequence=number, time_ns=0, messages=1, durable=START,
            session_tag=session_tag("jfk"),
        )  # fmt: skip
        after = log.walk.copy()
        after.step(frame.header)
        log.append([b"".join(frame.parts)], (frame.header,), after)
        if number == 69:
            log.sync()
    log.close()
    assert len(disk.inode("jfk/log.0.0.idx").data) == 71 * ENTRY_BYTES
    again = Appender(disk, "jfk", identity)
    again.recover()
    again.sync()
    again.close()
    assert len(disk.inode("jfk/log.0.0.idx").data) == frames * ENTRY_BYTES


def test_files_are_archived_once_a_majority_has_a_snapshot_past_them() -> None:
    """Seed 29694: the only state went with one disk, and what led to it was archived."""
    sweeper = NodeSweeper(Sweep(SimDisk(Random(1)), _Inputs(), fold_s=0))
    assert sweeper.settled_end(99) == START
    assert sweeper.lacks_snapshot(START.next_file())
    for index, end in ((3, Position(8)), (7, START.next_file())):
        sweeper.saved(Ledger(index=index, end=end).merged_ends)
    assert [sweeper.settled_end(index) for index in (2, 3, 6, 7)] == [
        START, Position(8), Position(8), START.next_file(),
    ]  # fmt: skip
    assert not sweeper.lacks_snapshot(START.next_file())


def test_an_archived_file_keeps_its_bytes_until_this_node_has_a_snapshot_past_it() -> None:
    """A start from an older snapshot repeats the instructions that wrote the file, and compares."""
    disk, _, executor = merged_node()
    sweeper = NodeSweeper(Sweep(disk, _Inputs(), fold_s=0))
    sweeper.saved(executor.ledger.merged_ends)
    executor.execute(4, 1, Archive(9, (ArchivedFile(START, "time"),)))
    fresh = NodeSweeper(Sweep(disk, _Inputs(), fold_s=0))
    fresh.sweep(executor.appender, 99)
    assert disk.inode("out/log.0.0").data
    sweeper.sweep(executor.appender, 99)
    assert not disk.inode("out/log.0.0").data
    assert sweeper.emptied_to == START.next_file() > fresh.emptied_to


def test_an_idle_log_that_was_rolled_gets_its_snapshot() -> None:
    """Its snapshot was planned up to the next file, where nothing ever became durable."""
    _, _, executor = merged_node()
    executor.execute(4, 1, Roll(9))
    execution = Execution(executor, Holdings("a", "a"))
    plan = execution.plan_snapshot()
    assert plan is not None
    assert executor.ledger.end > plan.end
    assert executor.sync() >= plan.end


def test_the_copy_that_follows_one_set_aside_is_archived_too() -> None:
    """Its files are merged already, and a silent session is not merged further."""
    disk, publisher, executor = merged_node()
    publisher.roll_file()
    executor.ledger.index = 7
    sweeper = NodeSweeper(Sweep(disk, inputs := _Inputs(), fold_s=0))
    sweeper.saved(executor.ledger.merged_ends)
    for directory in ("in/jfk", "again/jfk"):
        copy = PulledLog(
            Appender(disk, directory, publisher.identity), lambda _line: False, lambda _end: None
        )
        pipe = Pipe(disk, "jfk", copy)
        while pipe.step():
            pass
        inputs.copies = [_Copied(copy.appender)]
        sweeper.sweep(executor.appender, 99)
        assert list(copy.appender.manifest.archived) == [START]


@dataclass
class _Copied:
    appender: Appender
    session: str = "jfk"
    swept: tuple[Position, int] = (START, 0)


class _Inputs:
    def __init__(self) -> None:
        self.copies: list[NodeInbox] = []

    def every(self) -> list[NodeInbox]:
        """No session, unless a test has given some."""
        return self.copies

    def begun_after(self, session: str) -> int:
        """No instruction has ended a copy."""
        return 0
