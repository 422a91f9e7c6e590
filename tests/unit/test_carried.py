"""Small updates travel inside the instruction that merges them: nothing else has to be synced."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from rt import Publisher
from rt.errors import CorruptLog, PeerError, SessionDiverged
from rt.format.frame import parse_header
from rt.limits import KIB
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk, OsFile
from rt.log.read.start import end_of
from rt.log.write.appender import Appender, Durable
from rt.net.loop.event_loop import EventLoop
from rt.node.ingest import inbox_syncer
from rt.node.ingest.inbox import NodeInbox
from rt.node.ingest.inbox_syncer import InboxSyncer, PutOff, Started
from rt.node.ingest.inboxes import Inboxes
from rt.node.ingest.restore_from_journal import restore_from_journal
from rt.position import START, Position
from sequencer.execution.copies import Copies
from sequencer.execution.executor import Executor
from sequencer.ledger.instruction import (
    CARRIED_BYTES_MAX,
    Merge,
    decode_instruction,
    encode_instruction,
)
from sequencer.ledger.ledger import Ledger
from sequencer.planning.carried import Carrier, frames_of
from sequencer.planning.holdings import Holdings
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLogs
from sequencer.raft.consensus import Entry, EntryKind
from tests.unit.test_sequencing import IDENTITY


class Bench:
    """A leader's copies of sessions, their durable ends, and its plans."""

    def __init__(self, top: Path) -> None:
        self.top, self.ledger, self.may_carry = top / "s", Ledger(), True
        self.holdings = Holdings("n1", ["n1", "n2", "n3"])
        self.logs = SessionLogs(OsDisk(), str(self.top))
        self.carrier = Carrier(self.logs, self.place, lambda: self.may_carry)

    def place(self, session: str) -> Position:
        """Return where the copy of a session ends, durable or not."""
        return end_of(LogDirectory(str(self.top / session)))

    def publish(self, *messages: bytes, session: str = "jfk") -> None:
        """Publish messages in a frame each; the first of all is durable."""
        with Publisher(str(self.top.parent), stream="s", session=session) as publisher:
            for message in messages:
                publisher.publish(message)
                publisher.flush("written")
                if session not in self.holdings.own:
                    self.holdings.record_durable(session, self.place(session))

    def ends(self, *sessions: str, checked: bool = True) -> dict[str, Position]:
        """Up to where sessions can be planned by carrying them."""
        sessions = sessions or ("jfk",)
        agreed = {each: self.holdings.agreed(each) for each in sessions}
        for each in sessions if checked else ():
            self.logs.records.check_passed(each)
        return self.carrier.ends(agreed, self.holdings.own, self.ledger.sessions)

    def plan(self) -> Merge:
        """Plan what was received, and carry it."""
        merge = Planner(self.logs).plan(self.ledger, self.ends(*self.holdings.own), 1)
        assert merge is not None
        return self.carrier.fill(merge, {})

    def executor(
        self,
        top: Path,
        *,
        received: Callable[[str], Position] = lambda _session: START,
        disk: OsDisk | None = None,
    ) -> Executor:
        """Another node, with no copies of its own unless they are there."""
        logs = SessionLogs(disk or OsDisk(), str(top))
        return Executor(
            OsDisk(), str(top / "out"), IDENTITY, Ledger(), logs,
            received=received, alone=False,
        )  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A leader that has received two messages, the first of them durably."""
    made = Bench(tmp_path)
    made.publish(b"one", b"two")
    return made


def test_what_only_the_leader_has_is_planned_with_its_bytes(bench):
    """Its entry makes them durable on a majority: no node has to sync or report them before."""
    assert bench.ends() == {"jfk": bench.place("jfk")}
    [each] = bench.plan().slices
    assert each.end == bench.place("jfk")
    assert frames_of(each) is not None
    assert decode_instruction(encode_instruction(bench.plan())) == bench.plan()


def test_what_a_majority_has_is_planned_without_bytes(bench):
    """They would cross the network twice."""
    merge = Planner(bench.logs).plan(bench.ledger, bench.ends(), 1)
    assert bench.carrier.fill(merge, {"jfk": bench.place("jfk")}) is merge
    assert not merge.slices[0].carried


def test_what_the_leader_has_synced_meanwhile_is_carried_still(bench):
    """The others have not synced it: they wait for the instruction."""
    bench.holdings.record_durable("jfk", bench.place("jfk"))
    assert bench.ends() == {"jfk": bench.place("jfk")}


def test_nothing_is_carried_before_every_member_can_read_it(bench):
    """A member of an earlier version would stop at such an instruction."""
    bench.may_carry = False
    assert not bench.ends()


def test_a_copy_that_was_not_compared_is_not_carried_from(bench):
    """Its publisher may have lost what was merged, and sent other messages."""
    assert not bench.ends(checked=False)


def test_a_copy_of_which_nothing_is_durable_is_not_carried_from(bench):
    """It may be of the session's next log."""
    bench.holdings.drop("jfk")
    assert not bench.ends()


def test_much_waits_for_its_sync(bench):
    """Memory and journal hold what is carried until the next snapshot."""
    bench.publish(b"first", b"x" * CARRIED_BYTES_MAX, session="lga")
    assert bench.ends("jfk", "lga") == {"jfk": bench.place("jfk")}


def test_what_has_no_room_in_one_instruction_is_carried_by_the_next(bench):
    """Each of many sessions has little, and none may wait for its sync on account of the others."""
    for session in ("lga", "ewr"):
        bench.publish(b"first", b"x" * 9 * KIB, session=session)
    assert set(bench.ends("jfk", "lga", "ewr")) == {"jfk", "lga"}
    assert bench.carrier.left_over == ["ewr"]


def test_rot_in_the_leaders_copy_does_not_get_into_an_instruction(bench):
    """Every node would have to believe it."""
    merge = Planner(bench.logs).plan(bench.ledger, bench.ends(), 1)
    bench.logs.forget("jfk")
    file = bench.top / "jfk" / START.file_name
    data = bytearray(file.read_bytes())
    data[data.index(b"two")] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptLog, match="a frame has changed since it arrived"):
        bench.carrier.fill(merge, {})


@pytest.mark.parametrize("place", ["header", "body", "end"])
def test_carried_bytes_are_checked(bench, place):
    """An entry comes from another machine."""
    [each] = bench.plan().slices
    data = bytearray(each.carried)
    data[{"header": 20, "body": data.index(b"two"), "end": len(data) - 1}[place]] ^= 1
    assert frames_of(replace(each, carried=bytes(data))) is None


def test_carried_frames_are_those_that_the_slice_names(bench):
    """A digest is of the headers, and a header names its session and its place."""
    [each] = bench.plan().slices
    assert frames_of(replace(each, session="lga")) is None
    assert frames_of(replace(each, first=Position(each.first + 8))) is None
    assert frames_of(replace(each, digest=b"0" * 16)) is None
    assert frames_of(replace(each, carried=b"")) is None


def test_an_instruction_carries_all_of_a_slice_or_nothing_and_not_too_much(bench):
    """What a member sends must not fill the memory of the others."""
    [each] = bench.plan().slices
    short = Merge(1, (replace(each, carried=each.carried[:-8]),))
    with pytest.raises(PeerError, match="carries other bytes than it names"):
        decode_instruction(encode_instruction(short))
    size = CARRIED_BYTES_MAX + 8
    with pytest.raises(PeerError, match="carries more than 16384 bytes"):
        decode_instruction(
            encode_instruction(Merge(1, (replace(each, length=size, carried=bytes(size)),)))
        )


def test_no_payload_is_in_the_words_for_an_instruction(bench):
    """They go into log lines."""
    assert "two" in str(bench.plan().slices[0].carried)
    assert "two" not in f"{bench.plan()}{bench.plan()!r}"


def merged_by(executor: Executor, merge: Merge) -> bytes:
    """Execute an instruction; return the merged log."""
    assert executor.lacking(merge) is None
    executor.execute(1, 1, merge)
    executor.close()
    return (Path(executor.appender.directory) / START.file_name).read_bytes()


def test_a_node_without_a_copy_merges_what_is_carried_and_vouches_for_nothing(bench, tmp_path):
    """What its publisher brings later was not compared with it."""
    merge = bench.plan()
    leader = bench.executor(tmp_path / "s", received=bench.place)
    leader.held = bench.holdings.own
    other = bench.executor(tmp_path / "other")
    assert merged_by(leader, merge) == merged_by(other, merge) != b""
    assert not leader.logs.records.unchecked
    assert [*other.logs.records.unchecked] == ["jfk"]


@pytest.mark.parametrize("is_set_aside", [False, True])
def test_a_leader_executes_what_it_read_to_propose_it_unless_its_copy_was_set_aside(
    bench, tmp_path, is_set_aside
):
    """To read a copy twice within a millisecond finds nothing, and costs more than all the rest."""
    merge = bench.plan()
    leader = bench.executor(tmp_path / "s", received=bench.place)
    leader.held = bench.holdings.own
    leader.logs.records.proposed = bench.logs.records.proposed
    if is_set_aside:
        leader.logs.records.set_aside("jfk")
    other = Bench(tmp_path / "other")
    other.publish(b"one", b"2nd")
    shutil.copytree(other.top / "jfk", bench.top / "jfk", dirs_exist_ok=True)
    if is_set_aside:
        with pytest.raises(SessionDiverged):
            leader.execute(1, 1, merge)
    else:
        leader.execute(1, 1, merge)
        assert not leader.logs.records.unchecked
    leader.close()


def test_without_the_bytes_a_node_waits_for_its_copy(bench, tmp_path):
    """Bytes that are not what the instruction names count as none."""
    [each] = bench.plan().slices
    other = bench.executor(tmp_path / "other")
    for carried in (b"", bytes(each.length)):
        assert other.lacking(Merge(1, (replace(each, carried=carried),))) is not None
    other.close()


def test_a_copy_that_differs_from_what_is_carried_is_found(bench, tmp_path):
    """Its publisher sent different bytes to different nodes; then the carried ones are merged."""
    merge, other = bench.plan(), Bench(tmp_path / "other")
    shutil.copytree(bench.top, other.top)
    shutil.rmtree(other.top / "jfk")
    other.publish(b"one", b"2nd")
    executor = other.executor(other.top, received=other.place)
    executor.held = other.holdings.own
    with pytest.raises(SessionDiverged, match="the leader has other frames here"):
        executor.execute(1, 1, merge)
    executor.held = {}
    executor.execute(1, 1, merge)
    assert [*executor.logs.records.unchecked] == ["jfk"]
    executor.close()


@pytest.mark.parametrize("repeats", [False, True])
def test_a_copy_that_came_after_what_was_carried_is_compared_before_it_counts(
    bench, tmp_path, repeats
):
    """Else its publisher would hear "merged" of messages that no node has, also after repeats."""
    merge, other = bench.plan(), Bench(tmp_path / "other")
    executor = other.executor(
        other.top, received=lambda each: other.place(each) if other.holdings.own else START
    )
    executor.held = other.holdings.own
    copies = Copies(executor, other.holdings)
    executor.execute(1, 1, merge)
    other.publish(b"one", b"2nd")
    if repeats:
        executor.ledger.tails.pop("jfk")
    with pytest.raises(SessionDiverged, match="another frame was merged from here"):
        copies.check()
    executor.close()


class BegunAgain(Inboxes):
    """Copies of logs that each began after the instruction of a reset."""

    def begun_after(self, session: str) -> int:
        """Return the index of the second instruction."""
        return 2


def inboxes_of(bench: Bench, top: Path, *, end: Position, kind: type[Inboxes] = Inboxes) -> Inboxes:
    """Return the copies of a node that has lost everything after `end`."""
    log = LogDirectory(str(bench.top / "jfk"))
    log.refresh()
    assert log.manifest.identity is not None
    data = (bench.top / "jfk" / START.file_name).read_bytes()[: end.offset]
    with closing(Appender(OsDisk(), str(top / "jfk"), log.manifest.identity)) as appender:
        appender.begin_file(START)
        header, after = parse_header(data), appender.walk.copy()
        after.step(header)
        appender.append((data,), (header,), after)
    guard: Any = SimpleNamespace(demand_room=lambda: None)
    return kind(OsDisk(), str(top), "s", lambda _end, _session: None, guard)


def test_a_node_alone_puts_back_what_a_power_cut_took_of_a_copy(bench, tmp_path, caplog):
    """It took what was merged to be there: the session was refused as damaged at the next start."""
    end, top = bench.holdings.own["jfk"], tmp_path / "copies"
    command = encode_instruction(bench.plan())
    inboxes = inboxes_of(bench, top, end=end)
    assert inboxes.open_all(lambda _session: end) == []
    restore_from_journal(
        inboxes, [Entry(1, 1, command), Entry(2, 1, command), Entry(3, 1, b"", EntryKind.NO_OP)]
    )
    assert inboxes.get("jfk").durable == bench.place("jfk")
    assert inboxes.get("jfk").restored == (end, bench.place("jfk")), "which rt status shows"
    assert "put back from the journal" in caplog.text
    inboxes.close()
    assert (top / "jfk" / START.file_name).read_bytes() == (
        bench.top / "jfk" / START.file_name
    ).read_bytes()


def test_nothing_is_put_back_into_the_copy_of_the_next_log(bench, tmp_path):
    """The instruction is from before the reset."""
    end = bench.holdings.own["jfk"]
    inboxes = inboxes_of(bench, tmp_path / "copies", end=end, kind=BegunAgain)
    inboxes.open_all(lambda _session: START)
    restore_from_journal(inboxes, [Entry(1, 1, encode_instruction(bench.plan()))])
    assert inboxes.get("jfk").appender.end == end
    inboxes.close()


# When the copies are synced


def copy_of(session: str, end: int, durable: int = 8, merged: int = 0) -> NodeInbox:
    """Return a copy without files, as the syncer sees it."""
    identity = SimpleNamespace(name=session)
    appender: Any = SimpleNamespace(identity=identity, end=Position(end), recent=None)
    ports: Any = SimpleNamespace()
    inbox = NodeInbox(appender, Durable(Position(durable)), ports)
    inbox.merged = Position(merged)
    if merged < end:
        inbox.waits_since_s = time.monotonic()
    return inbox


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that the test sets."""
    at = SimpleNamespace(s=100.0)
    monkeypatch.setattr(inbox_syncer.time, "monotonic", lambda: at.s)
    return at


def syncer_of(*inboxes: NodeInbox) -> InboxSyncer:
    """Return a syncer of copies that were written."""
    syncer = InboxSyncer(lambda _inbox, _end: None)
    for each in inboxes:
        syncer.mark(each)
    return syncer


@contextmanager
def syncing(syncer: InboxSyncer, synced: Callable[[], None]) -> Iterator[None]:
    """Have a loop and its threads sync, as in a node."""
    loop, errors = EventLoop(), list[Exception]()
    syncer.start(Started(loop, lambda work: work(), errors.append, synced))
    try:
        yield
    finally:
        syncer.finish()
        syncer.close()
        loop.stop()
    assert not errors


def put_off(*inboxes: NodeInbox) -> list[str] | None:
    """Return what is put off of copies that were written."""
    return syncer_of(*inboxes).put_off()


def test_what_was_received_is_not_safe_before_it_is_synced_or_carried():
    """A publisher drops what a node has called durable."""
    assert copy_of("jfk", 500, durable=8).safe == 8
    assert copy_of("jfk", 500, durable=8, merged=300).safe == 300
    assert copy_of("jfk", 500, durable=400, merged=300).safe == 400
    assert copy_of("jfk", 500, durable=8, merged=900).safe == 500, "it does not hold the rest"


def test_a_copy_that_instructions_carry_is_synced_all_the_same(clock):
    """They are dropped one day, and then the copy is all there is."""
    written, synced = copy_of("jfk", 500, merged=500), threading.Event()
    written.appender.sync = lambda: Durable(Position(500))
    syncer = InboxSyncer(lambda _inbox, _end: None)
    syncer.mark(written)
    assert syncer.put_off() == []
    with syncing(syncer, synced.set):
        while not synced.wait(0.02):
            clock.s += 0.02
            assert clock.s < 103.0, "a second after it was carried"
    assert written.durable == 500


def test_what_comes_before_a_batch_was_told_of_is_synced_beside_that():
    """The next batch never began, and neither publishers nor the node's end were answered."""
    flood, is_synced, seen = copy_of("lga", 1 << 20), threading.Event(), list[bool]()
    first = copy_of("jfk", 500)
    first.appender.sync = lambda: Durable(Position(500))

    def sync():
        is_synced.set()
        return Durable(Position(1 << 20))

    flood.appender.sync = sync
    syncer = syncer_of(first)

    def tell():
        if not is_synced.is_set():
            syncer.mark(flood)
            seen.append(is_synced.wait(10))

    with syncing(syncer, tell):
        assert is_synced.wait(10)
    assert seen == [True]


def test_while_a_disk_is_slow_no_connection_waits_for_it(clock):
    """An event loop serves it: each lone message kept the other streams and nodes waiting."""
    took_s, written = [0.005, 0.04, 0.4], copy_of("jfk", 500)

    def sync():
        clock.s += took_s.pop(0)
        return Durable(Position(500))

    written.appender.sync = sync
    syncer, synced = syncer_of(written), threading.Event()

    def settles():
        syncer.mark(written)
        return syncer.sync_if_small()

    assert [settles(), settles(), settles(), settles()] == [True, True, True, False]
    took_s += [0.001] * 20
    with syncing(syncer, synced.set):
        while not settles():
            assert synced.wait(10), "it is left to a thread"
            synced.clear()
    assert 0 < len(took_s) < 15, "the disk was quick for a while"


def test_a_little_is_synced_later():
    """An instruction is to carry it."""
    assert put_off() == []
    assert put_off(copy_of("jfk", 500), copy_of("lga", 500)) == ["jfk", "lga"]
    assert put_off(copy_of("jfk", 9 + CARRIED_BYTES_MAX, merged=64)) == ["jfk"]
    assert put_off(copy_of("jfk", 500), copy_of("lga", 500, merged=500)) == ["jfk"]


def test_what_cannot_be_carried_is_synced_at_once():
    """A flood; the first bytes of a copy; what the leader does not get."""
    assert put_off(copy_of("jfk", 500, durable=0)) is None
    assert put_off(copy_of("jfk", 9 + CARRIED_BYTES_MAX)) is None
    passed_over = copy_of("jfk", 500)
    passed_over.passed_over(time.monotonic())
    assert put_off(passed_over) is None


def test_one_that_cannot_wait_or_many_that_do_are_synced_together_and_the_rest_is_carried():
    """An update must not wait for the syncs of other sessions."""
    flood, many = (
        copy_of("lga", 1 << 20),
        [copy_of(f"s{number}", 500, merged=500) for number in range(32)],
    )
    for others in ([flood], many):
        syncer = syncer_of(copy_of("jfk", 500), *others)
        assert syncer.put_off() == ["jfk"]
        assert len(syncer.due()[0]) == 1 + len(others)


def test_a_syncer_does_not_spin_when_what_was_put_off_is_dropped(clock):
    """It took a processor until the next byte came."""
    syncer = syncer_of(copy_of("jfk", 500))
    syncer.put_off()
    syncer.forget("jfk")
    clock.s += 60
    assert syncer.due() == ([], None)


def test_what_no_instruction_has_carried_in_time_is_synced(clock):
    """No node leads, say; the others have to hear what this one holds."""
    written = {"jfk": copy_of("jfk", 500)}
    waits = PutOff()
    assert not waits.is_over(written.values())
    clock.s += 0.021
    assert waits.is_over(written.values())
    assert written["jfk"].is_passed_over


def test_what_is_carried_slowly_waits_while_what_came_before_it_is_merged(clock):
    """On a busy machine a message takes longer; each was synced and reported, which took longer."""
    written = {"jfk": copy_of("jfk", 500, merged=100)}
    waits = PutOff()
    for merged in range(101, 106):
        clock.s += 0.021
        written["jfk"].merge_to(Position(merged), is_carried=True)
        assert not waits.is_over(written.values())
    for _ in range(9):
        clock.s += 0.021
        assert not waits.is_over(written.values()), (
            "the leader receives it, as the last ones came with it"
        )
    clock.s += 0.021
    assert waits.is_over(written.values()), "another node may lead now, which does not"
    assert written["jfk"].is_passed_over
    written["jfk"].merge_to(Position(106), is_carried=False)
    assert written["jfk"].is_passed_over
    written["jfk"].merge_to(Position(107), is_carried=True)
    assert not written["jfk"].is_passed_over


def test_what_was_carried_is_synced_once_a_second(clock):
    """A sync for each update is what is saved."""
    written = {"jfk": copy_of("jfk", 500, merged=500)}
    waits, looks = PutOff(), 0
    while not waits.is_over(written.values()):
        clock.s += max(0.001, waits.pause_s())
        looks += 1
    assert 0.95 < clock.s - 100.0 < 1.05
    assert looks <= 3, "there is nothing to wait for"


class CountedFile(OsFile):
    """A file that notes how much each read asks for."""

    reads: ClassVar[list[int]] = []

    def pread(self, length: int, offset: int) -> bytes:
        self.reads.append(length)
        return super().pread(length, offset)


class CountedDisk(OsDisk):
    """A disk on which reads are counted."""

    def open_read(self, path: str) -> OsFile:
        with closing(super().open_read(path)) as file:
            return CountedFile(os.dup(file.fileno()), path)


def test_a_small_slice_is_read_with_its_headers(tmp_path):
    """It is copied whole: to read its headers first would cost a system call for each slice."""
    bench, reads = Bench(tmp_path), CountedFile.reads
    bench.publish(b"x" * 20_000)
    merge = Planner(bench.logs).plan(bench.ledger, {"jfk": bench.place("jfk")}, 1)
    assert merge is not None
    follower = bench.executor(bench.top, disk=CountedDisk())
    follower.execute(1, 1, merge)
    [manifest, *frames] = reads
    assert manifest < KIB
    assert frames == [merge.slices[0].length]
    follower.close()
