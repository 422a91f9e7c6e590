"""Received frames stay in memory until they are merged, and are then compared with the disk."""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replicator.sink.channel import SinkChannel
from replicator.wire.messages import Data
from rt.errors import CorruptLog, Refused, SessionDiverged
from rt.format.manifest import SESSION, Archived, LogIdentity
from rt.limits import KIB, MIB
from rt.log.files.disk import OsDisk
from rt.log.write.recent_frames import FrameBounds, FrameMemory, RecentFrames
from rt.node.ingest.damage import DamageFound
from rt.node.ingest.inboxes import Inboxes
from rt.node.ingest.session_epochs import SessionEpoch
from rt.position import START, Position
from sequencer.execution.copies import Copies
from sequencer.execution.executor import Executor
from sequencer.ledger.instruction import Merge
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.session_facts import Ownership
from sequencer.planning.holdings import Holdings
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLogs
from tests.logs import make_frame
from tests.unit.test_sequencing import IDENTITY


class ReadCounter(OsDisk):
    """A disk that counts how often a log's file is opened to be read."""

    reads = 0
    fails = 0  # with which error, from now on
    meanwhile: Callable[[], object] | None = None  # is done once, when a file is opened next

    def open_read(self, path: str) -> Any:
        """Open a file for reading."""
        self.reads += "log.0" in path
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        if self.fails:
            raise OSError(self.fails, "failed")
        return super().open_read(path)


class Node:
    """A node's copies, and what sequences them."""

    def __init__(self, top: Path, *, alone: bool = False) -> None:
        self.disk, self.memory = ReadCounter(), FrameMemory()
        self.top, self.damaged = top, list[DamageFound]()
        self.told = dict[str, Position]()
        guard: Any = SimpleNamespace(demand_room=lambda: None)
        self.inboxes = Inboxes(
            self.disk, str(top / "in"), "s", self._hold, guard, alone=lambda: alone,
            damaged=self.damaged.append, memory=self.memory,
        )  # fmt: skip
        self.holdings = Holdings("n1", ["n1", "n2", "n3"])
        self.logs = SessionLogs(self.disk, str(top / "in"), self.inboxes.appender_of)
        self.executor = Executor(
            self.disk, str(top / "out"), IDENTITY, Ledger(), self.logs,
            received=self.inboxes.received, alone=False, memory=self.memory,
        )  # fmt: skip
        self.executor.held = self.holdings.own
        self.copies = Copies(self.executor, self.holdings)
        self.planner = Planner(self.logs, self.inboxes.received, lambda: True)
        self.begin()
        self.receive(b"one")
        self.sync()
        self.copies.check()

    def _hold(self, end: Position, session: str) -> None:
        self.told[session] = end
        self.holdings.record_durable(session, end)
        if hasattr(self, "copies"):
            self.logs.records.grow(session)

    def begin(self, log: str = "1") -> None:
        """Let a publisher push a log."""
        identity = LogIdentity(SESSION, "s", "jfk", log * 32, 0)
        bell: Any = SimpleNamespace(set=lambda: None)
        self.inbox = self.inboxes.claim(identity, "p", bell, START)
        self.sink, self.number = SinkChannel(0, self.inbox), 0

    def receive(self, *payloads: bytes) -> None:
        """Take a frame of each of these."""
        for payload in payloads:
            frame = make_frame(self.inbox.appender.end, [payload], sequence=self.number)
            data = memoryview(b"".join(frame.parts))
            self.sink.take_data(Data(0, self.inbox.appender.end, data))
            self.number += 1

    def sync(self) -> Position | None:
        """Sync the copy, as the syncer does."""
        self.inboxes.syncer.finish()
        return self.told.get("jfk")

    def merge_first(self) -> "Node":
        """Merge the first frame, of which a majority has been told."""
        merge = self.planner.plan(self.executor.ledger, dict(self.holdings.own), 1)
        assert merge is not None
        self.merge(merge)
        return self

    def plan(self) -> Merge:
        """Plan what was received, and carry it."""
        agreed = {"jfk": START}
        ends = self.planner.carrier.ends(agreed, self.holdings.own, self.executor.ledger.sessions)
        merge = self.planner.plan(self.executor.ledger, ends, 1)
        assert merge is not None
        return self.planner.carrier.fill(merge, agreed)

    def merge(self, merge: Merge) -> bytes:
        """Execute an instruction; return the merged log."""
        self.executor.execute(self.executor.ledger.index + 1, 1, merge)
        self.inbox.merge_to(self.executor.ledger.merged_to("jfk"), is_carried=True)
        return (self.top / "out" / START.file_name).read_bytes()

    def flip(self, payload: bytes) -> None:
        """Flip a bit of a payload in the copy's file."""
        file = self.top / "in" / "jfk" / START.file_name
        data = bytearray(file.read_bytes())
        data[data.index(payload)] ^= 1
        file.write_bytes(data)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with a copy whose first frame is durable, read back and merged."""
    return Node(tmp_path).merge_first()


@pytest.fixture
def other(tmp_path: Path) -> Node:
    """Another one that has the same."""
    return Node(tmp_path / "other").merge_first()


def test_a_lone_frame_is_carried_merged_and_served_without_being_read(node):
    """Between its arrival and its delivery nothing changes in it."""
    node.disk.reads, begin = 0, node.executor.ledger.end
    node.receive(b"two")
    merged = node.merge(node.plan())
    served = node.executor.appender.recent.between(begin, node.executor.ledger.end)
    assert node.disk.reads == 0
    assert served.data == merged[begin.offset :]
    assert b"two" in served.data


def test_a_follower_merges_what_it_received_without_reading_it(node, other):
    """It compares the carried bytes with its own, which were checked when they came."""
    for each in (node, other):
        each.receive(b"two")
    other.disk.reads = 0
    merge = node.plan()
    assert node.merge(merge) == other.merge(merge)
    assert other.disk.reads == 0
    assert not other.logs.records.unchecked


def test_a_follower_that_received_other_bytes_than_are_carried_doubts_its_copy(node, other):
    """A publisher sends different bytes to different nodes, or a leader's memory is damaged."""
    node.receive(b"two")
    other.receive(b"2nd")
    with pytest.raises(SessionDiverged, match="the leader has other frames here"):
        other.merge(node.plan())


def test_a_copy_that_is_not_what_was_carried_is_found_by_its_next_sync(node):
    """Nothing reads it before that: it would be damaged for ever, and called durable."""
    node.receive(b"two")
    node.merge(node.plan())
    node.flip(b"two")
    told = node.told["jfk"]
    assert node.sync() == told, "what is damaged is not durable"
    [found] = node.damaged
    assert found.log is node.inbox.appender
    assert found.damage.position == told
    assert "other bytes" in str(found.damage)


def test_a_node_alone_stops_when_its_copy_is_not_what_was_merged(tmp_path):
    """As at any damage in a file that grows; no other node could replace it."""
    node = Node(tmp_path, alone=True).merge_first()
    node.receive(b"two")
    node.merge(node.plan())
    node.flip(b"two")
    with pytest.raises(CorruptLog, match="other bytes"):
        node.sync()
    assert node.sync() < node.inbox.appender.end, "nothing is called durable after it"


def test_a_sync_reads_back_only_what_was_used_from_memory(node):
    """A flood would be read twice; what it makes durable unmerged is checked when it is read."""
    node.receive(b"two")
    node.disk.reads = 0
    assert node.sync() == node.inbox.appender.end
    assert node.disk.reads == 0
    node.logs.close()
    node.merge(node.plan())
    assert node.disk.reads, "late: it left memory with the sync"
    node.receive(b"three")
    node.disk.reads = 0
    node.merge(node.plan())
    assert node.sync() == node.inbox.appender.end
    assert node.disk.reads == 1
    assert node.sync() == node.inbox.appender.end
    assert node.disk.reads == 1, "once"


def test_what_is_merged_while_a_sync_compares_is_compared_by_the_next_and_alone(node):
    """Otherwise a session that never pauses has each sync read all since it began."""
    recent, ends = node.inbox.appender.recent, list[Position]()
    for payload in (b"two", b"three", b"four"):
        node.receive(payload)
        node.merge(node.plan())
        ends.append(node.inbox.appender.end)
        node.disk.meanwhile = lambda: (node.receive(b"more"), node.merge(node.plan()))
        assert node.inbox.sync() == ends[-1]
        assert [each.begin for each in recent.used] == ends[-1:]
    node.flip(b"four")
    assert node.inbox.sync() == node.inbox.appender.end, "that was compared"


def test_what_leaves_memory_before_it_is_used_is_read(node):
    """The sync that dropped it may have compared what was used before."""
    first = node.inbox.appender.end
    node.receive(b"two")
    frames = node.inbox.appender.recent.between(first, node.inbox.appender.end)
    assert node.sync() == frames.end
    assert not node.inbox.appender.recent.use(frames)
    assert not node.inbox.appender.recent.used


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_what_the_disk_cannot_read_is_not_called_durable(node, error):
    """Without a descriptor left, nothing is known of the copy: the next sync compares it."""
    node.receive(b"two")
    node.merge(node.plan())
    told, node.disk.fails = node.told["jfk"], error
    is_damaged = error == errno.EIO
    assert (node.sync() == told) is is_damaged
    assert len(node.damaged) == is_damaged
    node.disk.fails = 0
    node.flip(b"two")
    node.receive(b"three")
    node.sync()
    assert node.damaged, "it was not forgotten"


def test_what_was_put_back_from_the_journal_is_read(node):
    """No publisher may come, whose bytes would have it compared."""
    node.receive(b"two")
    node.inboxes.sync_now(node.inbox)
    assert node.told["jfk"] == node.inbox.appender.end
    assert node.inbox.appender.recent.size == 0


def test_a_copy_of_another_log_than_was_agreed_on_is_not_vouched_for(node):
    """Its manifest is the appender's own, which has its log's identity."""
    ledger = node.executor.ledger
    ledger.opened["jfk"] = Ownership("alice", "f" * 32, 1)
    ledger.tails.pop("jfk")
    node.logs.records.set_aside("jfk")
    node.logs.records.grow("jfk")
    node.copies.check()
    assert "jfk" not in node.logs.records.checked
    ledger.opened["jfk"] = Ownership("alice", "1" * 32, 1)
    node.copies.check()
    assert "jfk" in node.logs.records.checked


def test_what_was_archived_before_its_sync_is_not_called_damaged(node):
    """It was merged, and its bytes are gone."""
    node.receive(b"two")
    node.merge(node.plan())
    appender = node.inbox.appender
    appender.archive(Archived(appender.roll(1).file, 1, "merged"))
    assert appender.recent.used
    appender.compare(appender.recent.used)


@pytest.mark.parametrize("end", ["reset", "set aside"])
def test_no_frame_outlives_its_copy(node, end):
    """The session's next log has other bytes in the same places."""
    node.receive(b"two")
    assert node.memory.held
    if end == "reset":
        node.inboxes.drop_all({"jfk": SessionEpoch(1)}, lambda *_: True)
    else:
        node.inboxes.give_up("jfk")
    assert node.logs["jfk"].received(node.told["jfk"], node.inbox.appender.end) is None
    node.executor.rest()
    assert not node.memory.held


def test_a_doubted_copy_is_read_from_its_file(node):
    """What is compared with the merged frames is what the disk has."""
    node.receive(b"two")
    node.logs.records.doubt("jfk", node.executor.ledger.tails.get("jfk"))
    assert node.inbox.appender.recent.size == 0
    node.receive(b"three")
    node.logs.records.doubt_all(["jfk"])
    assert node.inbox.appender.recent.size == 0


def test_what_was_merged_is_not_kept(node):
    """Not when it comes after the instruction that has carried it either."""
    node.receive(b"two")
    node.merge(node.plan())
    assert node.inbox.appender.recent.size == 0
    node.inbox.merge_to(Position(node.inbox.appender.end + 10 * KIB), is_carried=True)
    node.receive(b"three")
    assert node.inbox.appender.recent.size == 0


def test_what_was_merged_is_kept_for_pullers_until_the_next_tick(node):
    """Idle streams, of which there may be hundreds, hold nothing."""
    node.receive(b"two")
    node.merge(node.plan())
    assert node.executor.appender.recent.size
    node.executor.rest()
    assert not node.executor.appender.recent.size


def test_no_frame_past_the_end_is_returned(node):
    """What follows is not to be served yet, or not durable on a majority."""
    first, ends = node.inbox.appender.end, []
    for payload in (b"two", b"three"):
        node.receive(payload)
        ends.append(node.inbox.appender.end)
    recent = node.inbox.appender.recent
    assert recent.between(first, ends[0]).end == ends[0]
    assert recent.between(first, Position(ends[1] - 1)).end == ends[0]
    assert recent.between(first, ends[1]).end == ends[1]
    assert recent.between(first, Position(ends[0] - 1)) is None
    assert recent.between(Position(first + 8), ends[1]) is None


def test_the_memory_of_a_log_is_bounded(node):
    """A session that is not merged for long has any number of frames."""
    for _ in range(20):
        node.receive(bytes(9_000))
    assert 40 * KIB < node.inbox.appender.recent.size <= FrameBounds().log
    node.receive(bytes(30_000))
    assert node.inbox.appender.recent.size == 0, "a large frame is read, and so is what precedes it"


def frames_of(memory: FrameMemory, count: int) -> Sequence[RecentFrames]:
    """Return the frames of so many logs, of 10 KB each."""
    logs = [RecentFrames(memory) for _ in range(count)]
    frame = make_frame(0, [bytes(10_000)])
    for each in logs:
        each.keep(START, Position(frame.header.size), frame.parts, [frame.header])
    return logs


def test_the_headings_of_small_frames_are_accounted_for():
    """16 MiB of frames of 100 bytes took 130 MiB, and connections knew of 16."""
    memory = FrameMemory()
    recent, frame = RecentFrames(memory), make_frame(0, [b"small"])
    recent.keep(START, Position(frame.header.size), frame.parts, [frame.header])
    assert memory.held == frame.header.size + FrameBounds().heading
    recent.clear()
    assert memory.held == 0


def test_the_memory_of_all_logs_is_bounded_and_accounted_for():
    """Memory stays flat with any number of sessions, and connections know of it."""
    taken = [0]

    def take(count: int) -> None:
        if taken[0] + count > 4 * MIB:
            raise Refused("memory", "too much")
        taken[0] += count

    def give_back(count: int) -> None:
        taken[0] -= count

    memory = FrameMemory(take, give_back)
    logs = frames_of(memory, 1_000)
    assert 4 * MIB - 20 * KIB < memory.held <= taken[0] == 4 * MIB
    for each in logs:
        each.clear()
    assert memory.held == 0
    assert taken[0] <= 2 * MIB
    frame = make_frame(0, [bytes(3 * MIB)])
    for each in logs:
        each.keep(START, Position(frame.header.size), frame.parts, [frame.header])
    assert taken[0] <= 2 * MIB, "what is not kept takes nothing"
    frames_of(unlimited := FrameMemory(), 2_000)
    assert 16 * MIB - 20 * KIB < unlimited.held <= 16 * MIB
