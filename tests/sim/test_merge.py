"""Faults that worlds with merged logs found in planner, executor, member and copies, one by one."""

import errno
from random import Random
from types import SimpleNamespace

import pytest

from replicator.pull.local_copy import PulledLog
from replicator.sink.channel import SinkChannel
from replicator.wire import codec as wire
from rt.errors import CorruptLog, DiskFailed
from rt.format.manifest import SESSION, Archived, LogIdentity, Rolled
from rt.log.write.appender import Appender
from rt.position import START, Position
from sequencer.execution.executor import Executor
from sequencer.ledger.instruction import Merge, Roll
from sequencer.ledger.ledger import Ledger
from sequencer.planning.holdings import Holdings, decode_report
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLogs

from .copying import IDENTITY
from .disk import SimDisk
from .merge_node import SimInboxes
from .publisher import STREAM, Pipe, Publisher


class Bench:
    """One node's disk with the copies of two sessions, and an executor over it."""

    def __init__(self, *, alone: bool = False) -> None:
        self.disk = SimDisk(Random(3))
        self.publishers = [Publisher(name, Random(1), self.disk) for name in ("jfk", "lga")]
        for publisher in self.publishers:
            publisher.publish()
        self.logs = SessionLogs(self.disk, "")
        self.alone = alone
        self.executor = self.opened(Ledger())

    def opened(self, ledger: Ledger) -> Executor:
        """Take up the merged log as a start does."""
        return Executor(self.disk, "out", IDENTITY, ledger, self.logs, alone=self.alone)

    def plan(self) -> Merge:
        """Plan everything that is there, as a leader would."""
        ends = {publisher.name: publisher.end for publisher in self.publishers}
        merge = Planner(self.logs).plan(self.executor.ledger, ends, 7)
        assert merge is not None
        return merge


def fails(disk: SimDisk, name: str, nth: int, number: int) -> None:
    """Make the nth operation of this name fail, and no other."""
    left = [nth]

    def fault(operation: str) -> None:
        if operation == name:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(number, "no")

    disk.fault = fault


def test_a_log_that_was_rolled_lacks_nothing() -> None:
    """Seed 14: after an ordered roll every node thought its log short, and the cluster stopped."""
    bench = Bench()
    bench.executor.execute(1, 1, bench.plan())
    bench.executor.execute(2, 1, Roll(8))
    assert bench.executor.ledger.end == Position.of(0, 1, 0)
    assert not bench.executor.lacks_log
    assert bench.executor.appender.next_place <= bench.executor.ledger.end
    again = bench.opened(bench.executor.ledger)
    assert not again.lacks_log


def test_an_instruction_that_a_full_disk_cut_short_is_reported_as_half_done() -> None:
    """Seed 68: its state went into a snapshot and a digest as if it were the whole instruction."""
    bench, other = Bench(), Bench()
    merge = bench.plan()
    other.executor.execute(1, 1, merge)
    assert len(merge.slices) == 2
    nth = 3  # the manifest has its line; the first range, then the second
    fails(bench.disk, "append", nth - 1, errno.ENOSPC)
    with pytest.raises(OSError, match="no"):
        bench.executor.execute(1, 1, merge)
    assert bench.executor.is_half_done
    assert 0 < bench.executor.ledger.end < other.executor.ledger.end
    bench.executor.execute(1, 1, merge)
    assert not bench.executor.is_half_done
    assert bench.executor.ledger == other.executor.ledger


def test_no_bit_that_flipped_after_a_frame_arrived_is_merged() -> None:
    """Seeds 518 and 35954: one node's merged log differed from the others'.

    Neither a header that was read for the plan already nor the padding, which no CRC covers, is
    let through.
    """
    bench = Bench()
    merge = bench.plan()
    end = bench.executor.appender.end
    data = bench.disk.inode("jfk/log.0.0").data
    assert data[-1] == 0
    for place in range(len(data)):
        data[place] ^= 4
        with pytest.raises(CorruptLog, match="has changed since it arrived"):
            bench.executor.execute(1, 1, merge)
        data[place] ^= 4
    assert bench.executor.appender.end == end
    bench.executor.execute(1, 1, merge)
    assert not bench.executor.is_half_done


def test_a_damaged_manifest_of_the_merged_log_is_copied_again() -> None:
    """Seed 284: the node did not start, though the others have all that it held."""
    bench = Bench()
    bench.executor.execute(1, 1, bench.plan())
    bench.disk.inode("out/manifest").data[5] ^= 1
    again = bench.opened(bench.executor.ledger)
    assert again.lacks_log
    assert "quarantine.out.0" in bench.disk.names("")


def test_a_node_alone_does_not_set_its_only_manifest_aside() -> None:
    """What no other node has is left for a person to repair."""
    bench = Bench(alone=True)
    bench.executor.execute(1, 1, bench.plan())
    bench.disk.inode("out/manifest").data[5] ^= 1
    with pytest.raises(Exception, match="CRC"):
        bench.opened(bench.executor.ledger)


def test_a_session_that_was_begun_again_is_opened_again() -> None:
    """Seed 1382: the old directory was read for ever, and set aside again and again."""
    bench = Bench()
    bench.logs["jfk"].next_place(START)
    bench.disk.replace("jfk", "quarantine.jfk.0")
    renewed = Publisher("jfk", Random(5), bench.disk)
    renewed.publish()
    bench.logs.records.set_aside("jfk")
    plan = Planner(bench.logs).plan(Ledger(), {"jfk": renewed.end}, 7)
    assert plan is not None
    assert plan.slices[0].end == renewed.end


def test_a_line_that_was_only_in_memory_is_durable_once_it_was_read() -> None:
    """Seed 602: a roll whose sync failed was believed after a restart, and then lost."""
    disk = SimDisk(Random(1))
    publisher = Publisher("jfk", Random(1), disk)
    publisher.publish()
    log = publisher.log
    disk.settle_all()
    fails(disk, "sync", 2, errno.EIO)  # the file's, then the manifest's
    with pytest.raises(DiskFailed):
        log.roll(1)
    disk.kill()
    again = Appender(disk, "jfk", publisher.identity)
    assert again.manifest.order
    assert disk.durable("jfk/manifest") == bytes(disk.inode("jfk/manifest").data)


def test_what_a_copys_frames_call_durable_proves_nothing_about_the_copy() -> None:
    """Seed 770: a write that a power cut tore in the middle was called damage."""
    disk = SimDisk(Random(1))
    publisher = Publisher("jfk", Random(2), disk)
    for _ in range(3):
        publisher.publish()
    size = len(disk.inode("jfk/log.0.0").data)
    disk.inode("jfk/log.0.0").data[:64] = bytes(64)  # a sector that was never written
    own = Appender(disk, "jfk", publisher.identity)
    with pytest.raises(CorruptLog):
        own.recover()
    copy = Appender(disk, "jfk", publisher.identity)
    copy.recover(own=False)
    assert copy.end == 0
    assert len(disk.inode("jfk/log.0.0").data) < size


def test_a_copy_never_has_a_rolled_file_that_is_not_there() -> None:
    """Seed 894: a power cut between two lines left a roll whose bytes were thought to be held."""
    line, gone = Rolled(START, 88, 0, 1, 0, 0, 0), Archived(START, 0, "merged")
    identity = LogIdentity(SESSION, STREAM, "jfk", "1" * 32, 0)
    whole = SimDisk(Random(1))
    Appender(whole, "in/jfk", identity).skip_archived(line, gone)
    text = bytes(whole.inode("in/jfk/manifest").data)
    begin = text.index(b"\n") + 1
    for cut in range(begin, len(text)):
        disk = SimDisk(Random(1))
        Appender(disk, "in/jfk", identity)
        disk.inode("in/jfk/manifest").data[:] = text[:cut]
        log = Appender(disk, "in/jfk", identity)
        log.recover(own=False)
        assert log.end == 0
        inlet = SinkChannel(0, PulledLog(log, lambda _line: True, lambda _end: None))
        inlet.take_archived(wire.ArchivedNotice(0, line, gone))
        assert log.end == 88
        assert set(log.manifest.archived) == set(log.manifest.rolled) == {START}


def test_a_copy_that_has_all_of_a_file_keeps_it_though_the_source_has_archived_it() -> None:
    """Seed 8310: a node threw away inputs that a power cut would make it merge once more."""
    disk = SimDisk(Random(1))
    publisher = Publisher("jfk", Random(1))
    publisher.publish()
    publisher.roll_file()
    copy = PulledLog(
        Appender(disk, "in/jfk", publisher.identity), lambda _line: True, lambda _end: None
    )
    Pipe(publisher.disk, "jfk", copy).step()
    assert copy.appender.is_open
    publisher.archive(publisher.end)
    Pipe(publisher.disk, "jfk", copy).step()
    assert not copy.appender.is_open
    assert not copy.appender.manifest.archived
    assert len(disk.inode("in/jfk/log.0.0").data) == publisher.end.offset


class NoGuard:
    """A disk with room."""

    def demand_room(self) -> None:
        """Do nothing: there is room."""


def test_a_copy_without_a_manifest_is_begun_again_when_it_is_pushed() -> None:
    """Seed 527: the start skipped it as one about to be made, and no push could open it."""
    disk = SimDisk(Random(1))
    identity = LogIdentity(SESSION, STREAM, "jfk", "1" * 32, 0)
    log = Appender(disk, "in/jfk", identity)
    log.begin_file(START)
    disk.inode("in/jfk/manifest").data.clear()
    inboxes = SimInboxes(
        disk, "in", STREAM, lambda _end, _name: None, NoGuard(), alone=lambda: False
    )
    assert not inboxes.open_all(lambda _name: START)
    inbox = inboxes.claim(identity, "p", lambda: None, START)
    assert inbox.appender.end == 0
    assert "quarantine.jfk.0" in disk.names("in")


def test_an_abandoned_copy_is_not_reported_as_held() -> None:
    """A later sync reported the old end, and the node waited for bytes it thought it had."""
    told: list[str] = []
    identity = LogIdentity(SESSION, STREAM, "jfk", "1" * 32, 0)
    inboxes = SimInboxes(
        SimDisk(Random(1)),
        "in",
        STREAM,
        lambda _end, name: told.append(name),
        NoGuard(),
        alone=lambda: False,
    )
    inbox = inboxes.claim(identity, "p", SimpleNamespace(set=lambda: None), START)
    inbox.written()
    (dirty,) = inboxes.take_dirty()
    inboxes.sync(dirty)
    assert told == ["jfk", "jfk"]
    inboxes.give_up("jfk")
    inboxes.sync(dirty)
    assert told == ["jfk", "jfk"]


def test_reports_and_plans_keep_the_order_in_which_sessions_came() -> None:
    """Seed 2: a set of names has another order in every process, and no run was like another."""
    holdings = Holdings("a", "abc")
    names = [f"s{number}" for number in range(20)]
    for name in names:
        holdings.record_durable(name, Position(8))
    [report] = holdings.changes()
    assert list(decode_report(report)[1]) == names
