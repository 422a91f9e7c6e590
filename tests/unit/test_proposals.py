"""Proposals: which sessions a leader looks at when it plans an instruction."""

from collections import Counter
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace

import pytest

from rt import Publisher
from rt.errors import Refused
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.read.start import end_of
from rt.position import START, Position
from sequencer.ledger.founded import FOUNDED_NOTE, Founded
from sequencer.ledger.instruction import Merge, Note, Slice, decode_instruction
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.session_facts import Sample
from sequencer.planning.holdings import Holdings, Report, ReportKind, encode_report
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLog, SessionLogs
from sequencer.proposals import Proposals
from sequencer.raft.consensus import Entry, EntryKind

IDLE = [f"idle{number}" for number in range(20)]
NEXT_FILE = Position.of(1, 0, 0)
# A cluster founded from a part of a log merges no session that is older than its founding.
FOUNDED = Founded("0" * 32, 1 << 62, frozenset(), frozenset(), is_partial=True).text()
SEARCHED_BYTES = 5 << 20  # of a message: one look searches no further


class Leader:
    """Takes every proposal, and executes it by the ledger alone."""

    leads, leader = True, "a"

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.index, self.refuses = ledger, 0, False

    def propose(self, command: bytes) -> SimpleNamespace:
        """Execute a proposal at once, unless leadership moves."""
        if self.refuses:
            raise Refused("leads", "another is to lead")
        merge = decode_instruction(command)
        assert isinstance(merge, Merge)
        for each in merge.slices:
            self.ledger.pass_over(each)
        self.index += 1
        return SimpleNamespace(index=self.index)

    def status(self) -> SimpleNamespace:
        """Say which entry is the last."""
        return SimpleNamespace(last=self.index)


class CountedLogs(SessionLogs):
    """Copies of sessions, and how often each was asked for."""

    def __init__(self, top: Path) -> None:
        super().__init__(OsDisk(), str(top))
        self.looked: Counter[str] = Counter()

    def __getitem__(self, session: str) -> SessionLog:
        self.looked[session] += 1
        return super().__getitem__(session)


class Bench:
    """A leader of one or more members, over copies on the disk."""

    def __init__(self, top: Path, members: str) -> None:
        self.top, self.ledger = top / "s", Ledger()
        self.leader, self.holdings = Leader(self.ledger), Holdings("a", members)
        executor = SimpleNamespace(ledger=self.ledger)
        self.execution = SimpleNamespace(executor=executor, queue=(), done_index=1 << 40)
        self.received: dict[str, Position] = {}
        self.logs = CountedLogs(self.top)
        self.planner = Planner(self.logs, lambda session: self.received.get(session, START))
        self.proposals = Proposals(
            self.leader, self.holdings, self.execution, self.planner, lambda: 1
        )  # type: ignore[arg-type]

    def hold(self, session: str, end: Position) -> None:
        """Give the leader a copy."""
        self.holdings.record_durable(session, end)
        self.logs.records.check_passed(session)
        self.proposals.waiting.notice([session])

    def report(self, member: str, ends: dict[str, Position]) -> None:
        """Let a member report everything that it holds."""
        said = encode_report(Report(ReportKind.FIRST, ends))
        self.proposals.waiting.notice_reported(self.holdings.take_report(member, said))

    def propose(self) -> None:
        """Propose until there is nothing left to merge."""
        before = -1
        while before < self.leader.index:
            before = self.leader.index
            self.proposals.propose()
            self.proposals.executed(self.leader.index)


def place(top: Path, name: str) -> Position:
    """Return where a session ends on the disk."""
    return end_of(LogDirectory(str(top / "s" / name)))


def leave_an_empty_file(top: Path, name: str) -> None:
    """Publish a message, and leave a file without a frame, as a publisher that is killed does."""
    with Publisher(str(top), stream="s", session=name) as publisher:
        publisher.publish(b"one")
    (top / "s" / name / NEXT_FILE.file_name).touch()


def test_sessions_without_a_new_frame_delay_no_plan_of_others(tmp_path):
    """300 took 60 % of a processor, for good: they were looked at for each message of another."""
    bench = Bench(tmp_path, "abc")
    for name in IDLE:
        leave_an_empty_file(tmp_path, name)
        bench.hold(name, NEXT_FILE)
    ends = dict.fromkeys(IDLE, NEXT_FILE)
    bench.report("b", ends)
    bench.propose()
    assert set(bench.ledger.sessions) == set(IDLE)
    bench.logs.looked.clear()
    with Publisher(str(tmp_path), stream="s", session="jfk") as publisher:
        for _ in range(20):
            publisher.publish(b"two")
            publisher.flush("written")
            bench.hold("jfk", place(tmp_path, "jfk"))
            bench.report("b", ends | {"jfk": place(tmp_path, "jfk")})
            bench.propose()
            assert bench.ledger.merged_to("jfk") == place(tmp_path, "jfk")
    assert set(bench.logs.looked) == {"jfk"}


@pytest.mark.parametrize("news", ["hold", "report"])
def test_a_session_at_rest_is_looked_at_once_more_of_it_is_held(tmp_path, news):
    """Whichever node is last to have it."""
    bench = Bench(tmp_path, "abc")
    leave_an_empty_file(tmp_path, "jfk")
    bench.hold("jfk", NEXT_FILE), bench.report("b", {"jfk": NEXT_FILE})
    bench.propose()
    before = bench.ledger.merged_to("jfk")
    with Publisher(str(tmp_path), stream="s", session="jfk") as publisher:
        publisher.publish(b"two")
    end = place(tmp_path, "jfk")
    if news == "hold":
        bench.holdings.take_report("b", encode_report(Report(ReportKind.FIRST, {"jfk": end})))
        bench.hold("jfk", end)
    else:
        bench.holdings.record_durable("jfk", end)
        bench.report("b", {"jfk": end})
    bench.propose()
    assert before < NEXT_FILE < bench.ledger.merged_to("jfk") <= end


def test_a_session_at_rest_is_looked_at_again_without_news_of_it(tmp_path):
    """What was in its way may go by itself; and it is shown for as long as it does not."""
    bench = Bench(tmp_path, "a")
    bench.ledger.notes[FOUNDED_NOTE] = FOUNDED
    for name in IDLE:
        leave_an_empty_file(tmp_path, name)
        bench.hold(name, NEXT_FILE)
    for _ in range(3):
        bench.propose()
        bench.proposals.waiting.tick()
        assert set(bench.proposals.stuck) == set(IDLE)
    del bench.ledger.notes[FOUNDED_NOTE]
    for _ in range(100):
        bench.proposals.waiting.tick()
        bench.propose()
    assert set(bench.ledger.sessions) == set(IDLE)
    assert not bench.proposals.stuck


def test_a_session_that_joins_a_group_is_searched_on_without_a_rest(tmp_path):
    """A look reads 4 MiB of it: with a thousand sessions at rest, 1 GiB took twenty minutes."""
    bench = Bench(tmp_path, "a")
    with Publisher(str(tmp_path), stream="s", session="jfk", group="g") as publisher:
        for number in range(4):
            message = b"%d" % number + bytes(SEARCHED_BYTES)
            publisher.publish(message)
            publisher.flush("written")
    bench.ledger.watermarks["group g"] = 4
    samples = [Sample(3, blake2b(bytes(4) + message, digest_size=8).digest())]
    bench.ledger.samples["g"] = samples
    bench.hold("jfk", place(tmp_path, "jfk"))
    for _ in range(4):
        assert not bench.ledger.sessions
        bench.propose()
    assert bench.ledger.merged_to("jfk") == place(tmp_path, "jfk")


def test_a_session_that_waits_for_its_group_rests(tmp_path):
    """Nothing of it is left to be searched."""
    bench = Bench(tmp_path, "a")
    with Publisher(str(tmp_path), stream="s", session="jfk", group="g") as publisher:
        publisher.publish(b"0")
    bench.ledger.watermarks["group g"] = 10
    bench.ledger.samples["g"] = [Sample(9, bytes(8))]
    bench.hold("jfk", place(tmp_path, "jfk"))
    for _ in range(10):
        bench.propose()
    assert (set(bench.proposals.stuck), bench.logs.looked["jfk"] < 6) == ({"jfk"}, True)


def test_a_session_that_was_dropped_is_not_stuck_any_more(tmp_path):
    """Nothing of it is left to be merged."""
    bench = Bench(tmp_path, "a")
    bench.ledger.notes[FOUNDED_NOTE] = FOUNDED
    leave_an_empty_file(tmp_path, "jfk")
    bench.hold("jfk", NEXT_FILE)
    bench.propose()
    assert set(bench.proposals.stuck) == {"jfk"}
    bench.holdings.drop("jfk")
    bench.proposals.waiting.tick()
    bench.propose()
    assert not bench.proposals.stuck


def test_a_session_whose_copy_was_set_aside_is_not_stuck_any_more(tmp_path):
    """Its publisher may be refused for it, and is the one that has to send it again."""
    bench = Bench(tmp_path, "abc")
    bench.ledger.notes[FOUNDED_NOTE] = FOUNDED
    leave_an_empty_file(tmp_path, "jfk")
    bench.hold("jfk", NEXT_FILE)
    for member in "bc":
        bench.report(member, {"jfk": NEXT_FILE})
    bench.propose()
    assert set(bench.proposals.stuck) == {"jfk"}
    bench.logs.records.set_aside("jfk")
    bench.hold("jfk", START)
    bench.propose()
    assert not bench.proposals.stuck


def test_a_leader_plans_what_it_has_received_once_the_others_hold_it_durably(tmp_path):
    """Its own sync may be the last of all; it merges, as others do, once that is done."""
    bench, ends = Bench(tmp_path, "abc"), []
    with Publisher(str(tmp_path), stream="s", session="jfk") as publisher:
        for _ in range(2):
            publisher.publish(b"one")
            publisher.flush("written")
            ends.append(place(tmp_path, "jfk"))
    bench.hold("jfk", ends[0])
    for member in "bc":
        bench.report(member, {"jfk": ends[1]})
    bench.propose()
    assert bench.ledger.merged_to("jfk") == ends[0]  # the rest has not come yet
    bench.received["jfk"] = ends[1]
    bench.report("c", {"jfk": ends[1]})
    bench.propose()
    assert bench.ledger.merged_to("jfk") == ends[1]


def test_bytes_that_only_the_leader_has_are_not_planned(tmp_path):
    """A power cut of one node may take them."""
    bench = Bench(tmp_path, "abc")
    with Publisher(str(tmp_path), stream="s", session="jfk") as publisher:
        publisher.publish(b"one")
        publisher.flush("written")
        first = place(tmp_path, "jfk")
        publisher.publish(b"two")
        publisher.flush("written")
    bench.hold("jfk", first)
    bench.received["jfk"] = place(tmp_path, "jfk")
    bench.report("b", {"jfk": first})
    bench.propose()
    assert bench.ledger.merged_to("jfk") == first


def test_a_copy_of_which_nothing_is_known_to_be_durable_is_not_planned(tmp_path):
    """It may be of the session's next log, which this node's state does not know yet."""
    bench = Bench(tmp_path, "abc")
    with Publisher(str(tmp_path), stream="s", session="jfk") as publisher:
        publisher.publish(b"one")
    end = bench.received["jfk"] = place(tmp_path, "jfk")
    for member in "bc":
        bench.report(member, {"jfk": end})
    bench.propose()
    assert not bench.ledger.merged_to("jfk")


def test_an_order_that_comes_while_leadership_moves_is_kept_if_it_stays(tmp_path):
    """It was dropped, and a member's request, with all that waited for it, hung for 10 s."""
    bench = Bench(tmp_path, "a")
    order, proposed = Note(7, "policy", "a"), []

    def propose(command):
        if bench.leader.is_moving:
            raise Refused("handing-over", "b is about to lead")
        proposed.append(decode_instruction(command))
        return SimpleNamespace(index=1)

    bench.leader.propose, bench.leader.is_moving = propose, True
    bench.proposals.order(order)
    bench.proposals.propose()
    assert bench.proposals.has_orders
    bench.leader.is_moving = False
    bench.proposals.propose()
    assert proposed == [order]


def test_the_first_slice_of_a_session_waits_until_it_may_begin(tmp_path):
    """Its first message preceded its opening if another order was under way; later ones go on."""
    bench = Bench(tmp_path, "a")
    for name in ("jfk", "lga"):
        with Publisher(str(tmp_path), stream="s", session=name) as publisher:
            publisher.publish(b"one")
    opened = {"lga"}
    bench.proposals.may_begin = opened.__contains__
    ends = {name: place(tmp_path, name) for name in ("jfk", "lga")}
    for name, end in ends.items():
        bench.hold(name, end)
    bench.propose()
    assert bench.ledger.sessions == {"lga": ends["lga"]}
    opened.add("jfk")
    bench.propose()
    assert bench.ledger.sessions == ends
    opened.clear()
    with Publisher(str(tmp_path), stream="s", session="lga") as publisher:
        publisher.publish(b"two")
    bench.hold("lga", place(tmp_path, "lga"))
    bench.propose()
    assert bench.ledger.merged_to("lga") > ends["lga"], "a session of before there were owners"


def test_an_order_is_under_way_until_it_is_executed(tmp_path):
    """SessionWatch waits for its own order, and not for the orders of others."""
    bench = Bench(tmp_path, "a")
    mine, equal = Note(7, "policy", "a"), Note(7, "policy", "a")
    bench.leader.propose = lambda _: SimpleNamespace(index=1)
    assert not bench.proposals.is_under_way(None)
    bench.proposals.order(mine)
    assert bench.proposals.is_under_way(mine)
    assert not bench.proposals.is_under_way(equal)
    bench.proposals.propose()
    assert bench.proposals.is_under_way(mine)
    bench.proposals.executed(1)
    assert not bench.proposals.is_under_way(mine)


@pytest.mark.parametrize("outcome", ["taken", "in part", "refused"])
def test_a_session_is_looked_at_again_only_while_more_of_it_is_due(tmp_path, outcome):
    """Each session was looked at twice a message; one that is not proposed whole must be."""
    bench = Bench(tmp_path, "a")
    with Publisher(str(tmp_path), stream="s", session="jfk") as publisher:
        for _ in range(3):
            publisher.publish(b"one" * 40)
            publisher.flush("written")
    bench.hold("jfk", place(tmp_path, "jfk"))
    if outcome == "in part":
        bench.ledger.file_bytes_max = 400
    bench.leader.refuses = outcome == "refused"
    bench.proposals.propose()
    assert list(bench.proposals.waiting.due) == ([] if outcome == "taken" else ["jfk"])
    assert bool(bench.ledger.sessions) == (outcome != "refused")


def test_what_another_entry_took_the_place_of_is_looked_at_again(tmp_path):
    """A message is looked at no more once it is proposed; it waited for the next one."""
    bench = Bench(tmp_path, "a")
    part = Slice("jfk", START, START, 88, 1, 0, 0, 1)
    entry = Entry(7, 1, b"", EntryKind.COMMAND)
    bench.proposals.undecided = (entry, Merge(1, (part,)))
    bench.proposals.executed(7)
    assert list(bench.proposals.waiting.due) == ["jfk"]
    bench.proposals.waiting.due.clear()
    bench.ledger.pass_over(part)
    bench.proposals.undecided = (entry, Merge(1, (part,)))
    bench.proposals.executed(7)
    assert not bench.proposals.waiting.due
