"""Instructions, ledger, planner and executor: what is agreed on, and what becomes of it."""

import itertools
import os
import shutil
from collections import Counter
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt import Batching, CorruptLog, PeerError, Position, Publisher, Subscriber, WriterSettings
from rt.errors import Diverged, FrameError, SessionDiverged
from rt.format.frame import (
    HEADER_BYTES,
    NUMBER_END,
    FrameKind,
    encode_frame,
    parse_header,
    session_tag,
)
from rt.format.manifest import (
    FILE_NAME,
    MERGED,
    SESSION,
    Archived,
    LogIdentity,
    Rolled,
    encode_entry,
)
from rt.format.ranges import EMPTY_DIGEST
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.read.start import end_of
from rt.log.write.appender import Appender
from rt.node.agree.fork_watch import first_range_from
from rt.position import START
from sequencer.execution.disagreement import disagreement
from sequencer.execution.executor import Executor
from sequencer.ledger.instruction import (
    Instruction,
    Merge,
    Roll,
    Slice,
    decode_instruction,
    encode_instruction,
)
from sequencer.ledger.ledger import Ledger, decode_ledger
from sequencer.ledger.session_facts import Sample
from sequencer.planning.holdings import Holdings, Report, ReportKind, decode_report, encode_report
from sequencer.planning.planner import SLICE_BYTES_MAX, Planner
from sequencer.planning.session_log import SessionLogs
from tests.logs import make_frame

IDENTITY = LogIdentity(MERGED, "s", "out", "0" * 32, 1)
FILE_BYTES = 300_000

names = st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True).filter(
    lambda name: name not in ("in", "log")
)
positions = st.integers(0, (1 << 63) - 1)
numbers = st.integers(0, (1 << 32) - 1)


@st.composite
def slices(draw):
    """A slice that a planner could have made."""
    after, messages, watermark = draw(positions), draw(numbers), draw(numbers)
    first = draw(st.integers(after, (1 << 63) - 1))
    return Slice(
        "x" + draw(names), Position(after), Position(first), 8 * draw(st.integers(1, 1 << 28)),
        messages, draw(st.integers(0, messages)), watermark, watermark + draw(numbers),
        draw(st.sampled_from(["", "g"])), draw(st.binary(min_size=16, max_size=16)),
    )  # fmt: skip


@given(st.integers(0, 1 << 62), st.lists(slices(), max_size=20), st.booleans())
def test_an_instruction_is_read_back_as_it_was_written(time_ns, parts, has_digests):
    """All nodes must execute the same; what is lost in the encoding would be lost on all.

    Journals still hold instructions without digests, from before they had any.
    """
    if not has_digests:
        parts = [replace(each, digest=b"") for each in parts]
    merge = Merge(time_ns, tuple(parts))
    assert decode_instruction(encode_instruction(merge)) == merge


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_an_instruction_or_a_peers_fault(data):
    """A command comes from another machine."""
    try:
        decode_instruction(data)
    except PeerError:
        return
    assert data


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_report_or_a_peers_fault(data):
    """A report comes from another machine too."""
    try:
        decode_report(data)
    except PeerError:
        return
    assert len(data) >= 5


def test_a_majority_holds_what_enough_members_reported():
    """Two of three is a majority; a member that lost its disk reports less, and that counts."""
    leader, other = Holdings("a", "abc"), Holdings("b", "abc")
    leader.record_durable("jfk", Position(800))
    assert leader.agreed("jfk") == 0
    other.record_durable("jfk", Position(500))
    leader.take_report("b", *other.whole())
    assert leader.agreed("jfk") == 500
    leader.take_report("b", *Holdings("b", "abc").whole())
    assert leader.agreed("jfk") == 0


@given(
    st.integers(1, 7).flatmap(
        lambda count: st.lists(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    )
)
def test_a_node_is_short_of_what_a_majority_holds_more_of(sessions):
    """The leader asks this of each session that waits, and `agreed` is slower."""
    names = [f"n{number}" for number in range(7)]
    voters = names[: len(sessions[0])] if sessions else names
    for learns in (False, True):  # then this node has no vote
        node = Holdings("me" if learns else "n0", voters)
        node.follow(voters)
        for number, ends in enumerate(sessions):
            for voter, end in zip(voters, ends, strict=True):
                report = Report(ReportKind.CHANGES, {f"s{number}": Position(end)})
                if voter == "n0" and not learns:
                    node.record_durable(f"s{number}", Position(end))
                else:
                    node.take_report(voter, encode_report(report))
        asked = [f"s{number}" for number in range(len(sessions))]
        short = [each for each in asked if node.agreed(each) > node.own.get(each, START)]
        assert [*node.short(asked)] == short


def test_a_report_of_any_number_of_sessions_is_accepted():
    """The peers refused one of more than 100,000 sessions, and merged nothing more."""
    leader, other = Holdings("a", "abc"), Holdings("b", "abc")
    for number in range(100_001):
        other.record_durable(f"s{number}", Position(8))
    for reports in (other.changes(), other.whole()):
        for report in reports:
            leader.take_report("b", report)
        assert leader.of("b") == other.own
        leader.take_report("b", *Holdings("b", "abc").whole())
        assert not leader.of("b")
    assert other.changes() == []


def publish(root: Path) -> None:
    """Two sessions of two runs each with small files, and two of one group that overlap."""
    for name, count in (("a", 3000), ("b", 1000)):
        for run in range(2):
            settings = WriterSettings(file_bytes_max=200_000)
            with Publisher(
                str(root), stream="s", session=name, writer=settings,
                batching=Batching(frame_bytes=4096),
            ) as publisher:  # fmt: skip
                for start in range(0, count, 100):
                    publisher.publish_many(
                        [b"%s-%d-%d" % (name.encode(), run, start + n) for n in range(100)]
                    )
    for name, count in (("x", 500), ("y", 800)):
        batching = Batching(frame_bytes=1024)
        with Publisher(str(root), stream="s", session=name, group="g", batching=batching) as each:
            each.publish_many([b"g%d" % n for n in range(count)])


class Bench:
    """An executor over real files, and the instructions it was given."""

    def __init__(self, root: Path) -> None:
        self.top = root / "s"
        self.open()
        self.commands: list[bytes] = []

    def open(self, *, alone: bool = True) -> None:
        """Begin from nothing but what is on the disk."""
        self.ledger = Ledger(file_bytes_max=FILE_BYTES)
        self.logs = SessionLogs(OsDisk(), str(self.top))
        self.executor = Executor(
            OsDisk(), str(self.top / "out"), IDENTITY, self.ledger, self.logs, alone=alone
        )

    def merge_all(self, names: str = "abxy") -> None:
        """Plan and execute until there is nothing left."""
        planner = self.planner = Planner(self.logs)
        durable = {name: end_of(LogDirectory(str(self.top / name))) for name in names}
        while merge := planner.plan(self.ledger, durable, len(self.commands) + 1):
            self.commands.append(encode_instruction(merge))
            self.executor.execute(len(self.commands), 1, merge)

    def order(self, instruction: Instruction) -> None:
        """Execute an instruction that was not planned."""
        self.commands.append(encode_instruction(instruction))
        self.executor.execute(len(self.commands), 1, instruction)

    def repeat(self, *, alone: bool = True) -> None:
        """Start again and execute everything once more."""
        self.executor.close()
        self.open(alone=alone)
        for index, command in enumerate(self.commands, 1):
            self.executor.execute(index, 1, decode_instruction(command))


@pytest.fixture
def merged(tmp_path: Path) -> Bench:
    """A merged log of four sessions."""
    publish(tmp_path)
    bench = Bench(tmp_path)
    bench.merge_all()
    return bench


def test_every_message_is_merged_once_and_in_its_sessions_order(merged, tmp_path):
    """The one thing a sequencer is for."""
    with Subscriber(str(tmp_path), stream="s", follow=False) as subscriber:
        messages = list(subscriber)
    assert [message.number for message in messages] == list(range(len(messages)))
    counts = Counter(message.session for message in messages)
    assert (counts["a"], counts["b"]) == (6000, 2000)
    for name in "ab":
        sequences = [each.sequence for each in messages if each.session == name]
        assert sequences == list(range(counts[name]))


def test_an_executor_that_is_closed_leaves_no_descriptor(tmp_path):
    """A process that serves streams leaves some of them, and would run out of descriptors."""
    publish(tmp_path)
    before = set(os.listdir("/proc/self/fd"))
    bench = Bench(tmp_path)
    bench.merge_all()
    bench.executor.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_copy_that_lacks_a_file_in_between_is_given_up(tmp_path):
    """The leader's step failed again and again, and no session of the stream was merged."""
    publish(tmp_path)
    with closing(LogDirectory(str(tmp_path / "s" / "a"))) as log:
        end = end_of(log)
        os.remove(log.file_path(log.manifest.order[1]))
    bench = Bench(tmp_path)
    planner = Planner(bench.logs)

    def merge_on():
        for index in range(1, 1000):
            bench.executor.execute(index, 1, planner.plan(bench.ledger, {"a": end}, index))

    with pytest.raises(SessionDiverged, match="the file is missing"):
        merge_on()
    bench.executor.close()


def test_a_group_gets_each_number_once(merged, tmp_path):
    """Either of two redundant publishers may die; a reader must not see both."""
    with Subscriber(str(tmp_path), stream="s", sessions=["x", "y"], follow=False) as subscriber:
        assert [message.payload for message in subscriber] == [b"g%d" % n for n in range(800)]


def join(bench: Bench, root: Path, payloads: list[bytes], first: int = 0) -> dict[str, str]:
    """Publish with a newcomer to the group, merge what can be, and return what cannot."""
    with Publisher(str(root), stream="s", session="late", group="g") as publisher:
        if first > publisher.next_sequence:
            publisher.skip_to(first)
        publisher.publish_many(payloads)
    bench.merge_all(["late"])
    return {name: each.words for name, each in bench.logs.records.stuck.items()}


def payloads_of(root: Path, session: str) -> list[bytes]:
    """Return a session's payloads in the merged log."""
    with Subscriber(str(root), stream="s", sessions=[session], follow=False) as subscriber:
        return [message.payload for message in subscriber]


def test_a_session_with_other_messages_than_its_group_is_not_merged(merged, tmp_path):
    """They were left out as repeats, and its publisher heard that they are merged."""
    stuck = join(merged, tmp_path, [b"other%d" % number for number in range(10)])
    assert "does not have message 0 as its group 'g' has merged it" in stuck["late"]
    assert "late" not in merged.ledger.sessions
    assert merged.logs.records.stuck["late"].is_refused


def test_a_redundant_session_joins_its_group_whenever_it_comes(merged, tmp_path):
    """It has the same messages, however they are framed; what is new continues the group."""
    with Publisher(
        str(tmp_path), stream="s", session="late", group="g", batching=Batching(frame_bytes=1024)
    ) as publisher:
        for number in range(900):
            publisher.publish(b"g%d" % number)
    merged.merge_all(["late"])
    assert not merged.logs.records.stuck
    assert payloads_of(tmp_path, "late") == [b"g%d" % number for number in range(800, 900)]


def test_a_redundant_session_that_begins_late_joins_once_it_can_be_compared(merged, tmp_path):
    """It begins where the other publisher was when it started, which nodes do not remember."""
    numbers = range(300, 700)
    stuck = join(merged, tmp_path, [b"g%d" % number for number in numbers], first=300)
    if stuck:  # none of the messages that the group remembers was among them
        assert "begins below message 800" in stuck["late"]
    assert not join(merged, tmp_path, [b"g%d" % number for number in range(700, 900)])
    assert payloads_of(tmp_path, "late") == [b"g%d" % number for number in range(800, 900)]


def test_a_session_that_skips_what_its_group_has_merged_is_merged_from_there(merged, tmp_path):
    """The way out for a publisher with messages of its own."""
    assert not join(merged, tmp_path, [b"more"], first=800)
    assert payloads_of(tmp_path, "late") == [b"more"]


def test_what_is_remembered_of_a_group_stays_small_and_reaches_back_to_its_first_message():
    """It is in every snapshot."""
    known = Ledger()
    for number in range(20_000):
        known.sample("g", [Sample(number, b"")])
    numbers = [each.number for each in known.samples["g"]]
    assert len(numbers) == 32
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (0, 19_999)
    ages = [19_999 - number for number in numbers]
    assert all(before <= 2 * after + 2 for before, after in itertools.pairwise(ages))


def test_the_merge_is_repeatable_after_a_cut_at_any_byte(merged):
    """A node that crashes while it merges must come to the same bytes as the others."""
    out, gold = merged.top / "out", merged.top / "gold"
    shutil.copytree(out, gold)
    ledger = merged.ledger.encode()
    active = max((path for path in out.glob("log.*.*") if path.suffix != ".idx"), key=_place)
    size = active.stat().st_size
    for cut in [*range(0, size, 4999), size - 1]:
        with active.open("r+b") as file:
            file.truncate(cut)
        merged.repeat()
        assert merged.ledger.encode() == ledger
        assert active.read_bytes() == (gold / active.name).read_bytes()
    assert (out / "manifest").read_bytes() == (gold / "manifest").read_bytes()


def test_a_wrong_range_where_another_was_agreed_on_is_damage(merged):
    """Existing bytes are never overwritten, and never taken for the agreed ones."""
    first = decode_instruction(merged.commands[0])
    merged.commands[0] = encode_instruction(Merge(first.time_ns + 1, first.slices))
    with pytest.raises(CorruptLog, match="not the range"):
        merged.repeat()


def test_a_whole_range_where_another_was_agreed_on_is_a_fork_and_is_kept(merged):
    """Set aside as damage, the only copy of what a lost majority had confirmed went unnoticed."""
    second = decode_instruction(merged.commands[1])
    agreed = Position(merged.ledger.end)
    merged.commands[1] = encode_instruction(Merge(second.time_ns + 1, second.slices))
    with pytest.raises(Diverged, match="not the range") as found:
        merged.repeat(alone=False)
    out = str(merged.top / "out")
    assert START < found.value.position < agreed
    assert first_range_from(OsDisk(), out, 2) == found.value.position
    assert first_range_from(OsDisk(), out, 1) == START
    assert first_range_from(OsDisk(), out, 10**6) == merged.executor.appender.end


def test_rot_in_the_padding_of_a_range_is_damage_and_no_fork(merged):
    """The checksums do not cover it. A node that calls itself forked waits for an operator."""
    path, place = merged.top / "out" / "log.0.0", 0
    data = path.read_bytes()
    header = parse_header(data)
    while header.kind != FrameKind.RANGE or header.size == HEADER_BYTES + header.length:
        place += header.size
        header = parse_header(data, place)
    log = merged.executor.appender
    assert isinstance(disagreement(log, Position(place), alone=False), Diverged)
    with path.open("r+b") as file:
        file.seek(place + header.size - 1)
        file.write(b"x")
    assert not isinstance(disagreement(log, Position(place), alone=False), Diverged)


def test_a_damaged_rolled_file_is_replaced_with_the_whole_merged_log(merged):
    """Set aside by itself it was gone for good: a copy continues where the log ends."""
    merged.commands.append(encode_instruction(Roll(9)))
    merged.executor.execute(len(merged.commands), 1, Roll(9))
    whole, out, gold = merged.ledger.encode(), merged.top / "out", merged.top / "gold"
    shutil.copytree(out, gold)
    damaged = out / "log.0.0"
    with damaged.open("r+b") as file:
        file.seek(damaged.stat().st_size // 2)
        file.write(bytes(9000))
    with pytest.raises(CorruptLog) as caught:
        merged.repeat(alone=False)
    executor = merged.executor
    assert executor.is_rolled(caught.value.path)
    assert 0 < merged.ledger.index < len(merged.commands)
    executor.discard(caught.value.path)
    assert executor.lacks_log
    assert executor.appender.next_place == START
    assert (merged.top / "quarantine.out.0" / "log.0.0").exists()
    executor.close()
    shutil.rmtree(out)
    gold.rename(out)  # as a copy from another node
    executor.reopen()
    assert not executor.lacks_log
    for index in range(merged.ledger.index, len(merged.commands) + 1):
        executor.execute(index, 1, decode_instruction(merged.commands[index - 1]))
    assert merged.ledger.encode() == whole


def test_the_active_file_is_not_called_rolled(merged):
    """It is set aside by itself, and the rest of the log is kept."""
    merged.executor.execute(len(merged.commands) + 1, 1, Roll(9))
    assert merged.executor.is_rolled(str(merged.top / "out" / "log.0.0"))
    assert not merged.executor.is_rolled(str(merged.top / "out" / "log.0.1"))
    assert not merged.executor.is_rolled(str(merged.top / "out" / "manifest"))


@pytest.mark.parametrize(("size", "missing"), [(1000, 8), (100_000, 8), (1001, 4)])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_a_copy_that_became_shorter_is_damage_and_nothing_of_it_is_merged(
    tmp_path, size, missing, leads
):
    """Its node fetches it again, also where only padding is missing: the log would be too short."""
    with Publisher(str(tmp_path), stream="s", session="a") as publisher:
        publisher.publish(bytes(size))
    bench = Bench(tmp_path)
    end = end_of(LogDirectory(str(tmp_path / "s" / "a")))
    merge = Planner(bench.logs).plan(bench.ledger, {"a": end}, 1)
    with (tmp_path / "s" / "a" / "log.0.0").open("r+b") as file:
        file.truncate(end - missing)
    if not leads:
        bench.logs.forget("a")  # it has planned nothing, so it reads the headers now
    with pytest.raises(CorruptLog) as error:
        bench.executor.execute(1, 1, merge)
    assert error.value.path.endswith("s/a/log.0.0")
    assert bench.executor.appender.end == bench.ledger.end == 0


@pytest.fixture
def diverged(tmp_path):
    """A bench, and an instruction that was planned where the session has other bytes."""

    def written(root, payload):
        with Publisher(str(root), stream="s", session="a") as publisher:
            publisher.publish(payload)
        return Bench(root)

    theirs, ours = written(tmp_path / "theirs", b"one"), written(tmp_path / "ours", b"two")
    end = end_of(LogDirectory(str(theirs.top / "a")))
    ours.executor.held = {"a": end}
    return theirs, ours, Planner(theirs.logs).plan(theirs.ledger, {"a": end}, 1)


def test_a_copy_that_is_not_what_was_agreed_on_is_named_and_nothing_of_it_is_merged(diverged):
    """Its publisher sent each node something else: the copy is at fault, not the node."""
    _, ours, merge = diverged
    with pytest.raises(SessionDiverged) as error:
        ours.executor.execute(1, 1, merge)
    assert (error.value.session, error.value.position) == ("a", 0)
    assert error.value.path.endswith("s/a/log.0.0")
    assert "session a" in str(error.value)
    assert ours.executor.appender.end == 0


def test_a_copy_that_lacks_the_agreed_file_and_has_later_ones_differs(diverged):
    """Merging paused for ever: a publisher restored from a backup goes on in its next run."""
    _, ours, merge = diverged
    (ours.top / "a" / "log.0.0").rename(ours.top / "a" / "log.1.0")
    (ours.top / "a" / "log.0.0.idx").unlink()
    with pytest.raises(SessionDiverged, match="has more of this file"):
        ours.executor.execute(1, 1, merge)
    assert ours.executor.lacking(merge) is None
    shutil.rmtree(ours.top / "a")
    with pytest.raises(FileNotFoundError):  # set aside just now, and not given up once more
        ours.executor.execute(1, 1, merge)


def test_a_copy_that_differs_twice_is_replaced_by_the_output_of_a_node_that_has_executed(diverged):
    """Publisher and nodes may fill it with the same wrong bytes for ever."""
    theirs, ours, merge = diverged
    for attempt in range(2):
        assert ours.executor.lacking(merge) is None, attempt
        with pytest.raises(SessionDiverged):
            ours.executor.execute(1, 1, merge)
    assert ours.executor.lacking(merge) is merge.slices[0]
    theirs.executor.execute(1, 1, merge)
    ours.executor.close()
    shutil.rmtree(ours.top / "out")
    shutil.copytree(theirs.top / "out", ours.top / "out")
    ours.executor.reopen()
    assert ours.executor.lacking(merge) is None
    with pytest.raises(SessionDiverged, match="other frames"):
        ours.executor.execute(1, 1, merge)  # the output is right, so the copy beside it is not
    shutil.rmtree(ours.top / "a")
    ours.logs.records.set_aside("a")
    ours.executor.execute(1, 1, merge)
    assert ours.ledger.digest == theirs.ledger.digest != EMPTY_DIGEST


def test_a_repeated_instruction_leaves_the_copy_of_the_log_that_follows_alone(diverged):
    """After a power cut, what was merged of the next log had no copy left on any node."""
    theirs, ours, merge = diverged
    theirs.executor.execute(1, 1, merge)
    ours.executor.close()
    shutil.rmtree(ours.top / "out")
    shutil.copytree(theirs.top / "out", ours.top / "out")
    ours.executor.reopen()
    ours.executor.held = {}  # the copy here was begun after a later instruction
    ours.executor.execute(1, 1, merge)
    assert ours.ledger.digest == theirs.ledger.digest != EMPTY_DIGEST


def test_a_copy_begun_again_is_checked_against_the_last_frame_that_was_merged(diverged):
    """A publisher restored from a backup would hear that its other messages are merged."""
    theirs, ours, merge = diverged
    theirs.executor.execute(1, 1, merge)
    theirs.executor.check_copy("a")
    ours.ledger.tails.update(theirs.ledger.tails)
    with pytest.raises(SessionDiverged, match="another frame was merged"):
        ours.executor.check_copy("a")
    assert decode_ledger(theirs.ledger.encode()).tails == theirs.ledger.tails


@pytest.mark.parametrize(("shorter", "is_ours"), [(0, True), (8, False)])
def test_an_archived_file_that_ends_within_the_last_merged_frame_is_of_another_log(
    diverged, shorter, is_ours
):
    """After a power cut its publisher had ended the file earlier, and heard that all was merged."""
    theirs, _, merge = diverged
    theirs.executor.execute(1, 1, merge)
    size = theirs.ledger.merged_to("a").offset - shorter
    assert theirs.ledger.tails["a"].position.offset < size
    lines = Rolled(START, size, 0, 1, 1, 1, 1), Archived(START, 1, "age")
    manifest = theirs.top / "a" / FILE_NAME
    identity, *_rolled = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(identity + b"".join(map(encode_entry, lines)))
    theirs.logs.forget("a")
    assert theirs.logs["a"].is_archived(START)
    with nullcontext() if is_ours else pytest.raises(SessionDiverged, match="another frame"):
        theirs.executor.check_copy("a")


def test_a_copy_that_continues_where_the_agreed_file_ended_differs(tmp_path):
    """What follows would never come: publisher and nodes have less of that file."""
    for payload in (b"one", b"two"):
        with Publisher(str(tmp_path), stream="s", session="a") as publisher:
            publisher.publish(payload)
    bench = Bench(tmp_path)
    planner, end = Planner(bench.logs), end_of(LogDirectory(str(bench.top / "a")))
    bench.executor.execute(1, 1, planner.plan(bench.ledger, {"a": end}, 1))
    merge = planner.plan(bench.ledger, {"a": end}, 2)
    after = bench.ledger.merged_to("a")
    for held in (START, after, end.file, end):
        bench.executor.held = {"a": Position(held)}
        bench.executor.check_end(merge)
    bench.executor.held = {"a": Position(after + 8)}
    with pytest.raises(SessionDiverged, match="ends here"):
        bench.executor.check_end(merge)


def test_a_slice_planned_on_another_state_is_left_out(merged):
    """After a change of leader the same bytes may be proposed twice; they are merged once."""
    before = merged.ledger.encode()
    stale = decode_instruction(merged.commands[-1])
    merged.executor.execute(len(merged.commands) + 1, 2, stale)
    after = decode_ledger(merged.ledger.encode())
    after.index -= 1
    assert after.encode() == before


def test_a_ledger_is_read_back_as_it_was_written(merged):
    """A snapshot is all that a node starts from."""
    assert decode_ledger(merged.ledger.encode()) == merged.ledger


def test_a_run_that_ended_before_its_first_frame_is_passed_over(tmp_path):
    """A publisher may be killed between making a file and filling it; the next run continues."""
    directory = tmp_path / "s" / "a"
    for payload in (b"one", b"two"):
        with Publisher(str(tmp_path), stream="s", session="a") as publisher:
            publisher.publish(payload)
        unborn = _place(max(directory.glob("log.?.0"))).next_run()
        with closing(opened(directory)) as appender:
            for place in (unborn, unborn.next_file()):
                appender.begin_file(place)
                appender.roll(1)
    bench = Bench(tmp_path)
    bench.merge_all("a")
    with Subscriber(str(tmp_path), stream="s", follow=False) as subscriber:
        assert [message.payload for message in subscriber] == [b"one", b"two"]
    bench.repeat()


def test_a_session_that_begins_with_another_run_than_the_first_is_merged(tmp_path):
    """Any publisher may send such files; a file that is looked for in vain stops all merging."""
    bench = Bench(tmp_path)
    place_frame(tmp_path / "s" / "a", Position.of(2, 3, 0))
    place_frame(tmp_path / "s" / "b", Position.of(300_000, 0, 0))
    bench.merge_all("ab")
    assert bench.ledger.merged_to("a") == Position.of(2, 3, 88)
    bench.repeat()
    assert bench.ledger.merged_to("b") == Position.of(300_000, 0, 88)


def test_the_last_number_there_is_can_be_merged(tmp_path):
    """A publisher chooses its numbers; what a node takes of them it must be able to agree on."""
    bench = Bench(tmp_path)
    with Publisher(str(tmp_path), stream="s", session="a") as publisher:
        publisher.skip_to(NUMBER_END - 1)
        publisher.publish(b"last")
        with pytest.raises(FrameError, match="63 bits"):
            publisher.publish_many([b"beyond"])
    bench.merge_all("a")
    bench.repeat()
    assert bench.ledger.watermark("a") == NUMBER_END


@pytest.mark.parametrize("sequence", [0, 10**9])
def test_a_control_frame_is_passed_over_whatever_it_has_where_numbers_are(tmp_path, sequence):
    """If it moved the number, messages never delivered would count as repeats."""
    bench = Bench(tmp_path)
    for payload in (b"one", b"two"):
        with Publisher(str(tmp_path), stream="s", session="a") as publisher:
            publisher.publish(payload)
        with closing(opened(tmp_path / "s" / "a")) as appender:
            place = appender.end.next_run()
            appender.begin_file(place)
            frame = encode_frame(
                b"", position=place, sequence=sequence, time_ns=1, messages=0,
            kind=FrameKind.CONTROL,
                session_tag=session_tag("a"),
            )  # fmt: skip
            after = appender.walk.copy()
            after.step(frame.header)
            appender.append(frame.parts, (frame.header,), after)
    bench.merge_all("a")
    with Subscriber(str(tmp_path), stream="s", follow=False) as subscriber:
        found = [(each.sequence, each.number, each.payload) for each in subscriber]
    assert found == [(0, 0, b"one"), (1, 1, b"two")]
    bench.repeat()


def test_a_flood_delays_another_session_by_one_instruction(tmp_path):
    """A publisher that floods must not make the others wait until it is done."""
    with Publisher(str(tmp_path), stream="s", session="flood") as publisher:
        for _ in range(12):
            publisher.publish_many([bytes(1000)] * 1000)
    with Publisher(str(tmp_path), stream="s", session="lone") as publisher:
        publisher.publish(b"one")
    logs = SessionLogs(OsDisk(), str(tmp_path / "s"))
    ends = {each: end_of(LogDirectory(str(tmp_path / "s" / each))) for each in ("flood", "lone")}
    merge = Planner(logs).plan(Ledger(), ends, 1)
    assert {each.session for each in merge.slices} == {"flood", "lone"}
    assert max(each.length for each in merge.slices) <= SLICE_BYTES_MAX
    logs.close()


def place_frame(directory: Path, place: Position) -> None:
    """Begin a session with one message at a place."""
    identity = LogIdentity(SESSION, "s", directory.name, "0" * 32, 1)
    with closing(Appender(OsDisk(), str(directory), identity)) as appender:
        appender.begin_file(place)
        frame = make_frame(place, [b"one"], session=directory.name)
        after = appender.walk.copy()
        after.step(frame.header)
        appender.append(frame.parts, (frame.header,), after)


def opened(directory: Path) -> Appender:
    """The log that is in a directory."""
    log = LogDirectory(str(directory))
    log.refresh()
    log.close()
    return Appender(OsDisk(), str(directory), log.manifest.identity)


def _place(path: Path) -> Position:
    return Position.parse(path.name[4:] + ".0")
