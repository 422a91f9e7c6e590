"""Member: how a node's own merging is reported, whatever happened in between."""

import errno
import os
from types import SimpleNamespace

import pytest

from rt.log.files.disk import OsDisk
from rt.position import START, Position
from rt.traffic import Traffic
from sequencer.execution.execution import (
    NO_READERS,
    SLICE,
    SLICE_BYTES,
    WAITING_BYTES_MAX,
    Committed,
    Readers,
)
from sequencer.ledger.instruction import Merge, Slice, encode_instruction
from sequencer.ledger.ledger import Ledger
from sequencer.member import Member
from sequencer.planning.session_log import SessionLogs
from sequencer.raft.consensus import Entry, EntryKind, LastChange, Ready, Seat, Snapshot
from sequencer.raft.starts import Claim, Reach, StartChain

ENDS = {"jfk": Position(88), "lga": Position(96)}


class Engine:
    """An engine without a leader that returns what it was given."""

    leader, leads = "", False

    @property
    def last_change(self):
        return LastChange(0, 0, self.members, {})

    def __init__(self, *duties):
        self.duties = list(duties)
        self.members = {"n1": Seat(0)}
        self.core = SimpleNamespace(is_voter=True)

    def ready(self):
        return self.duties.pop(0) if self.duties else None

    def persisted(self, _ready):
        pass

    def may_compact(self, _index):
        return True

    def announce(self, _place, _seats):
        pass


class Executor:
    """Merges by the ledger alone; `room` is for how many instructions there is room now."""

    lacks_log = is_stranded = is_repeating = is_half_done = False

    def __init__(self, room=100):
        self.ledger, self.room, self.traffic = Ledger(), room, Traffic()
        self.logs = SessionLogs(OsDisk(), "in")

    def lacking(self, _merge):
        return None

    def check_end(self, _merge):
        pass

    def execute(self, index, _term, merge):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= 1
        self.ledger.index = index
        for each in merge.slices:
            self.ledger.pass_over(each)

    def restore(self, ledger):
        self.ledger = ledger


def member_of(
    engine, executor, *, persist=lambda _ready: None, disown=None, readers=NO_READERS
):  # fmt: skip
    """Return a member of three that does what the engine says."""
    journal = SimpleNamespace(persist=persist, disown=disown)
    claim = Claim(0, StartChain(1, (1,)), Reach(), Reach())
    restart_check = SimpleNamespace(
        is_over=True, is_due=False, follow=lambda *_lists: None, claim=claim
    )
    return Member(
        "a", "abc", engine=engine, journal=journal, restart_check=restart_check, executor=executor,
        planner=None, send=lambda _to, _data: None, now_ns=lambda: 1, readers=readers,
    )  # fmt: skip


def merges():
    """Return an entry for each session that merges all of it."""
    for index, (session, end) in enumerate(ENDS.items(), 1):
        part = Slice(session, START, START, end, 1, 0, 0, 1)
        yield Entry(index, 1, encode_instruction(Merge(1, (part,))), EntryKind.COMMAND)


def test_what_was_merged_before_the_disk_was_full_is_reported_when_it_has_room():
    """Its publisher waits for that confirmation, and may send nothing more."""
    executor = Executor(room=1)
    member = member_of(Engine(Ready(committed=tuple(merges()))), executor)
    with pytest.raises(OSError, match="No space"):
        member.run()
    assert executor.ledger.sessions == {"jfk": ENDS["jfk"]}
    executor.room = 1
    assert member.run() == ["jfk", "lga"]
    assert member.run() == []


def test_a_member_is_behind_until_what_was_committed_is_executed():
    """A puller that has all of its log lacks what others have merged already."""
    executor = Executor()
    member = member_of(Engine(Ready(committed=tuple(merges()))), executor)
    assert not member.execution.queue
    executor.lacking = lambda merge: merge.slices[0]
    assert (member.run(), bool(member.execution.queue)) == ([], True)
    del executor.lacking
    assert (member.run(), bool(member.execution.queue)) == (["jfk", "lga"], False)


def test_what_an_entry_lacked_is_looked_at_before_all_its_slices():
    """A look at all of 4,096 with each message that comes would take longer than the messages."""
    parts = tuple(Slice(f"s{n}", START, START, 8, 1, 0, 0, 1) for n in range(50))
    entry = Entry(1, 1, encode_instruction(Merge(1, parts)), EntryKind.COMMAND)
    executor, here, looked = Executor(), {"s7", "s9"}, list[int]()

    def lacking(merge):
        looked.append(len(merge.slices))
        return next((each for each in merge.slices if each.session not in here), None)

    executor.lacking = lacking
    member = member_of(Engine(Ready(committed=(entry,))), executor)
    here.update(f"s{n}" for n in range(40))
    member.run()
    assert member.execution.missing[0] == "s40"
    looked.clear()
    assert (member.execution.missing[0], member.execution.can_continue) == ("s40", False)
    assert looked == [1, 1]
    here.update(f"s{n}" for n in range(49))
    assert member.execution.missing[0] == "s49"
    here.remove("s3")
    assert not member.execution.can_continue
    here.add("s49")
    assert member.execution.missing[0] == "s3", "all of them are looked at once that one is here"
    here.add("s3")
    assert member.execution.missing is None
    member.run()
    assert not member.execution.queue


def test_what_another_nodes_state_says_is_merged_is_reported():
    """A session that is quiet since then would hear of it only with its next message."""
    ledger = Ledger(index=9, sessions=dict(ENDS))
    snapshot = Snapshot(9, 1, (), ledger.encode())
    member = member_of(Engine(Ready(snapshot=snapshot)), Executor())
    assert sorted(member.run()) == ["jfk", "lga"]


@pytest.mark.parametrize(
    ("is_over", "term", "leader", "leaves"),
    [(False, 4, "", True), (True, 3, "", True), (True, 4, "", False), (True, 3, "b", False)],
)
def test_an_older_copy_leaves_unless_a_majority_has_moved_on_with_it(is_over, term, leader, leaves):
    """If it left then, the nodes that remain might be no majority, for good."""
    disowned = []
    member = member_of(Engine(), Executor(), disown=disowned.append)
    member.restart_check = SimpleNamespace(
        is_over=is_over, finding="b knows", receive=lambda _sender, _body: False,
        claim=SimpleNamespace(begun=Reach(3, 5)),
    )  # fmt: skip
    member.engine.status = lambda: SimpleNamespace(term=term, leader=leader)
    member.hear("b", b"\x08")
    assert disowned == (["b knows"] if leaves else [])


def test_a_backlog_is_executed_in_slices():
    """After a copy, 300,000 instructions were one step, in which no heartbeat was answered."""
    count = 2 * SLICE + 1
    entries = tuple(Entry(index, 1, b"", EntryKind.NO_OP) for index in range(1, count + 1))
    member = member_of(Engine(), Executor())
    member.execution.append(Committed(entry, None) for entry in entries)
    done = []
    while True:
        member.run()
        done.append(member.executor.ledger.index)
        if not member.execution.can_continue:
            break
    assert done == [SLICE, 2 * SLICE, count]


def test_a_backlog_of_large_instructions_is_executed_in_slices_of_bytes():
    """A hundred of 4 MiB take a second: an event loop answers no heartbeat meanwhile."""
    executor = Executor()
    member, done = member_of(Engine(), executor), []
    execute = executor.execute

    def execute_large(index, term, merge):
        executor.traffic.bytes += SLICE_BYTES // 2
        execute(index, term, merge)

    executor.execute = execute_large
    parts = [Entry(index, 1, b"", EntryKind.COMMAND) for index in range(1, 6)]
    member.execution.append(Committed(each, Merge(1, ())) for each in parts)
    while member.execution.can_continue:
        member.run()
        done.append(executor.ledger.index)
    assert done == [2, 4, 5]


def entries(first, last, command=b""):
    """Committed entries that change nothing."""
    return [
        Committed(Entry(index, 1, command, EntryKind.NO_OP), None)
        for index in range(first, last + 1)
    ]


@pytest.fixture
def copying():
    """A member that copies the merged log, with ten large instructions waiting."""
    member = member_of(Engine(), Executor())
    member.execution.suspended = True
    member.execution.append(entries(1, 10, bytes(WAITING_BYTES_MAX // 9)))
    return member


def test_a_node_that_copies_takes_over_the_state_when_too_much_waits(copying):
    """Copying can take hours, and each instruction that waits costs memory and journal."""
    copying.execution.adopt(Ledger(index=8, sessions=dict(ENDS)).encode())
    assert [each.entry.index for each in copying.execution.queue] == [9, 10]
    assert sorted(copying.run()) == ["jfk", "lga"], "their publishers wait to hear of it"
    plan = copying.plan_snapshot()
    assert (plan.index, plan.has_log) == (8, False)
    copying.execution.saved(plan)
    assert copying.plan_snapshot() is None
    copying.execution.suspended = False
    copying.run()
    assert copying.executor.ledger.index == 10


def test_a_state_from_beyond_what_is_known_as_committed_is_saved_later(copying):
    """Its entries are not all here, and the journal must not drop what it does not have."""
    copying.execution.adopt(Ledger(index=12).encode())
    assert not copying.execution.queue
    assert copying.plan_snapshot() is None
    copying.execution.append(entries(11, 12))
    assert copying.plan_snapshot().index == 12


def test_a_state_is_not_asked_for_or_taken_over_without_need(copying):
    """A node that can execute what it has makes the bytes itself."""
    execution = copying.execution
    assert execution.needs_state
    copying.execution.suspended = False
    assert not execution.needs_state
    execution.adopt(Ledger(index=8).encode())
    assert copying.executor.ledger.index == 0
    copying.execution.suspended = True
    execution.queue.popleft()
    assert not execution.needs_state
    execution.adopt(Ledger(index=8).encode())
    assert copying.executor.ledger.index == 0


class Order:
    """A member, perhaps with a reader, that records the order of what it does."""

    def __init__(self, *duties, is_read, room=100):
        self.done = []
        self.executor = Executor(room)
        self.member = member_of(
            Engine(*duties), self.executor, persist=lambda _ready: self.done.append("persist"),
            readers=Readers(lambda: self.done.append("serve"), lambda: is_read),
        )  # fmt: skip


def two_rounds():
    """Return duties that hold what was decided of one entry, and the next one to be synced."""
    first, second = merges()
    return Ready(entries=(second,), committed=(first,)), Ready(committed=(second,))


def test_what_was_decided_is_served_before_the_next_entry_is_synced():
    """At 1,000 messages a second the two arrive together; the subscriber would wait for a sync."""
    order = Order(*two_rounds(), is_read=True)
    assert order.member.run() == ["jfk", "lga"]
    assert order.done == ["serve", "persist", "serve"]


def test_without_a_reader_the_next_entry_is_synced_and_acknowledged_first():
    """Then only the leader waits for this node."""
    order = Order(*two_rounds(), is_read=False)
    assert order.member.run() == ["jfk", "lga"]
    assert order.done == ["persist", "serve", "serve"]


def test_an_entry_is_not_executed_before_it_is_durable_here():
    """A node that was away is sent entries and, with them, that they are decided."""
    entries = tuple(merges())
    order = Order(Ready(entries=entries[1:], committed=entries), is_read=True)
    assert order.member.run() == ["jfk", "lga"]
    assert order.done == ["serve", "persist", "serve"]
    order = Order(Ready(entries=entries, committed=entries), is_read=True)
    assert order.member.run() == ["jfk", "lga"]
    assert order.done == ["persist", "serve"]


def test_a_full_disk_does_not_keep_the_next_entry_from_being_synced():
    """The node goes on voting and acknowledging; merging resumes once there is room."""
    first, second = merges()
    order = Order(Ready(entries=(second,), committed=(first, second)), is_read=True, room=0)
    with pytest.raises(OSError, match="No space"):
        order.member.run()
    assert order.done == ["persist"]
    order.executor.room = 100
    assert order.member.run() == ["jfk", "lga"]


def test_what_others_say_before_a_node_is_added_again_does_not_end_it_later():
    """They call it removed until they hear that it was added; one late word of it was enough."""
    engine, done = Engine(), []
    engine.members = {name: Seat(0) for name in "abc"}
    member = member_of(engine, Executor(), persist=done.append)
    engine.core.is_voter = False
    member.take_verdicts({"b": True})
    engine.core.is_voter = True
    member.take_verdicts({"c": True})
    assert done == []
    member.take_verdicts({"b": True})
    assert done == [Ready(removed=True)]
