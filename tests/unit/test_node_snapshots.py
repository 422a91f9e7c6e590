"""NodeSnapshots: a snapshot replaces instructions only where others have what they made."""

import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from rt.node.retain.snapshots import NodeSnapshots
from rt.position import Position
from sequencer.ledger.ledger import MergedEnds
from sequencer.member import SnapshotPlan

POOL = ThreadPoolExecutor(1)


class Fake:
    """A member, its journal, its sweeper and its archiver, as far as snapshots see them."""

    def __init__(self, journal_bytes=100):
        self.size = journal_bytes
        self.index, self.settled_index, self.durable_index = 0, 0, 0
        self.saved_indexes, self.swept, self.synced_to = [], [], Position(0)
        self.execution = self
        self.waits, self.has_log, self.suspended = False, True, False
        self.executor = SimpleNamespace(
            ledger=SimpleNamespace(end=Position(0)), sync=lambda: self.synced_to
        )
        self.snapshots = NodeSnapshots(
            self, self, self, self, flush=lambda: None, pool=POOL, pause_s=5, kept_bytes_max=1000
        )

    def merge(self, index):
        """Execute up to an instruction that ends at ten times its number."""
        self.index = index
        self.synced_to = Position(10 * index)

    def plan_snapshot(self):
        """As a member does."""
        planned = self.saved_indexes[-1] if self.saved_indexes else 0
        if self.index == planned:
            return None
        end = Position(10 * self.index)
        ends = MergedEnds(self.index, end, {})
        return SnapshotPlan(self.index, b"%d" % self.index, end, ends, self.has_log)

    def save_snapshot(self, plan):
        """As a member does."""
        self.saved_indexes.append(plan.index)

    def lacks_snapshot(self, _active):
        """As a sweeper does."""
        return self.waits

    def saved(self, ends):
        """As a sweeper does."""
        self.swept.append(ends.instruction)

    def has_durable(self, index):
        """As an archiver does."""
        self.durable_index = index

    def turn(self, now_s):
        """Let a turn pass, and complete the sync that it began."""
        self.snapshots.turn(now_s)
        self.snapshots.await_sync()
        self.snapshots.turn(now_s)


def test_a_snapshot_is_saved_once_a_majority_has_what_it_covers():
    """Saved earlier, one disk could hold the only copy, with no instructions left to rebuild it."""
    node = Fake()
    node.merge(7)
    node.turn(1.0)
    assert (node.durable_index, node.saved_indexes, node.swept) == (7, [], [])
    node.settled_index = 6
    node.turn(99.0)
    assert node.saved_indexes == []
    node.settled_index = 7
    node.turn(99.1)
    assert node.saved_indexes == node.swept == [7]


@pytest.mark.parametrize("is_last", [False, True])
def test_the_copies_are_synced_before_the_instructions_that_carried_them_go(is_last):
    """The instructions were the only durable copy of what they carried."""
    node = Fake()
    done = []
    node.saved_indexes = Recorded(done)
    node.executor.sync = lambda: done.append("merged log") or node.synced_to
    node.snapshots = NodeSnapshots(
        node,
        node,
        node,
        node,
        flush=lambda: done.append("copies"),
        pool=POOL,
        pause_s=5,
        kept_bytes_max=1000,
    )
    node.merge(3)
    node.settled_index = 3
    if is_last:
        node.snapshots.end()
    else:
        node.turn(0)
    assert done == ["copies", "merged log", "saved"]


class Recorded(list):
    """A list that notes when something is added."""

    def __init__(self, done):
        super().__init__()
        self.done = done

    def append(self, each):
        self.done.append("saved")
        super().append(each)


def test_a_log_about_to_be_set_aside_is_not_reported_as_durable():
    """The others would forget what made it, and its inputs."""
    node = Fake()
    node.merge(7)
    node.snapshots.turn(1.0)
    node.snapshots.drop()
    node.settled_index = 7
    node.snapshots.turn(2.0)
    node.snapshots.turn(3.0)
    assert (node.durable_index, node.saved_indexes) == (0, [])
    node.turn(10.0)
    assert node.saved_indexes == [7]


def test_the_next_snapshot_follows_after_a_pause_or_when_files_wait_for_it():
    """Each costs a sync of the merged log."""
    node = Fake()
    node.settled_index = 99
    node.merge(1)
    node.turn(1.0)
    node.merge(2)
    node.turn(5.9)
    assert node.saved_indexes == [1]
    node.turn(6.0)
    node.merge(3)
    node.waits = True
    node.turn(6.1)
    assert node.saved_indexes == [1, 2, 3]


def test_what_could_not_be_synced_is_not_reported():
    """The file was set aside meanwhile, and ends earlier now."""
    node = Fake()
    node.merge(7)
    node.synced_to = Position(69)
    node.turn(1.0)
    assert (node.durable_index, node.saved_indexes) == (0, [])


def test_a_failed_sync_ends_the_node():
    """What is on the disk is unknown from then on."""
    node = Fake()
    node.merge(7)

    def fail():
        raise OSError(5, "Input/output error")

    node.executor.sync = fail
    node.snapshots.turn(1.0)
    for look in (node.snapshots.await_sync, lambda: node.snapshots.turn(1.0)):
        with pytest.raises(OSError, match="Input/output"):
            look()


def test_too_many_instructions_force_a_snapshot_and_are_logged_once(caplog):
    """They are in memory too, which must not grow for as long as another node copies."""
    node = Fake(journal_bytes=1000)
    for index in (1, 2):
        node.merge(index)
        with caplog.at_level(logging.ERROR):
            node.turn(10.0 * index)
    assert node.saved_indexes == [1, 2]
    assert [record.message[:42] for record in caplog.records] == [
        "no majority has merged up to instruction 1"
    ]


@pytest.mark.parametrize(("settled", "saved"), [(6, []), (7, [7])])
def test_the_last_snapshot_is_saved_under_the_same_condition(settled, saved):
    """A start repeats the instructions that are not in it, and compares."""
    node = Fake()
    node.settled_index = settled
    node.merge(7)
    node.snapshots.end()
    assert node.saved_indexes == saved


def test_a_state_that_was_taken_over_is_saved_without_its_log_and_nothing_is_swept():
    """The journal of a node that copies must not grow for hours; its inputs may still be needed."""
    node = Fake()
    node.has_log, node.suspended = False, True
    node.merge(7)
    node.synced_to = Position(0)
    node.turn(1.0)
    assert node.saved_indexes == [], "no majority has what it refers to"
    node.settled_index = 7
    node.turn(1.1)
    assert (node.saved_indexes, node.swept, node.durable_index) == ([7], [], 0)


def test_a_state_that_was_taken_over_is_planned_with_its_log_once_that_is_here():
    """Two nodes that wait for each other to report what is durable would wait for ever."""
    node = Fake()
    node.has_log, node.suspended = False, True
    node.merge(7)
    node.turn(1.0)
    node.has_log, node.suspended = True, False
    node.turn(9.0)
    assert (node.durable_index, node.saved_indexes) == (7, [])
