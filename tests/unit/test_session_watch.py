"""SessionWatch: the leader decides what becomes of sessions whose publishers come and go."""

import json
from types import SimpleNamespace

import pytest

from rt import Position
from rt.errors import Misuse, PeerError
from rt.node.sessions.policy import (
    SESSIONS_NOTE,
    SessionPolicy,
    session_policy_of,
    session_policy_of_notes,
)
from rt.node.sessions.watch import PRESENCE, SessionWatch
from sequencer.ledger.instruction import LIVES_MAX, decode_instruction, encode_instruction
from sequencer.ledger.ledger import Ledger, decode_ledger
from sequencer.ledger.session_facts import Ownership
from sequencer.planning.holdings import Holdings, encode_reports
from sequencer.planning.presence import (
    PUSHED_MAX,
    Presence,
    PresencePart,
    Pushed,
    decode_part,
    encode_part,
)

LOG, NEXT = "0123456789abcdef" * 2, "f" * 32
NS = 10**9
CLOSE_S = 4.0


class Clock:
    """Goes on, however little, between two looks."""

    def __init__(self):
        self.settled_index, self._now_ns = 0, 100 * NS

    @property
    def now_ns(self):
        self._now_ns += 1
        return self._now_ns

    @now_ns.setter
    def now_ns(self, now_ns):
        self._now_ns = now_ns


class Bench:
    """Node n1 of three, without engine or disk."""

    def __init__(self, *, leads=True, expire_s=0.0):
        policy = SessionPolicy(close_s=CLOSE_S, expire_s=expire_s).text()
        self.ledger = Ledger(index=7, notes={SESSIONS_NOTE: policy})
        self.copies, self.orders, self.sent = {}, [], []
        self.under_way = []  # orders that are not executed yet
        self.clock = Clock()
        self.engine = SimpleNamespace(leads=leads, leader="n1" if leads else "n2")
        self.member = SimpleNamespace(
            name="n1", holdings=Holdings("n1", ["n1", "n2", "n3"]), handlers={}, engine=self.engine,
            executor=SimpleNamespace(ledger=self.ledger),
            proposals=SimpleNamespace(is_under_way=lambda order: order in self.under_way),
            execution=SimpleNamespace(suspended=False),
            order=lambda order, *, first: self.orders.append(order),
            send=lambda *words: self.sent.append(words),
        )  # fmt: skip
        copies = SimpleNamespace(get=self.copies.get, every=lambda: list(self.copies.values()))
        self.watch = SessionWatch(self.member, copies, self.clock)
        self.now_s = 0.0

    def copy(self, session="jfk", peer="alice", log=LOG):
        """Hold a copy, which this publisher fills; "" if none does."""
        appender = SimpleNamespace(identity=SimpleNamespace(id=log))
        self.copies[session] = SimpleNamespace(
            session=session, appender=appender, peer=peer, is_fed=bool(peer)
        )

    def open(self, session="jfk", owner="alice", log=LOG, closed_ns=0):
        """Open or close the session."""
        self.ledger.opened[session] = Ownership(owner, log, 3, closed_ns)

    def hears(self, node="n2", **pushed):
        """Take a report of what is pushed to another node."""
        found = {name: Pushed(*each) for name, each in pushed.items()}
        self.member.handlers[PRESENCE](node, encode_part(PresencePart(True, found, 0)))

    def hears_holdings(self, node="n2", *, end=0):
        """Take a whole report of what another node holds."""
        items = {"jfk": Position(end)} if end else {}
        for report in encode_reports(items, whole=True):
            self.member.holdings.take_report(node, report)

    def lead(self):
        """Win an election."""
        self.engine.leads, self.engine.leader = True, self.member.name

    def is_called(self):
        """Whether a turn is due, as the duties find out."""
        return bool(self.watch.fresh) or self.watch.led != self.engine.leads

    def turn(self, seconds=0.0, changed=()):
        """Let time pass; return the ordered changes, each as session and kind."""
        self.orders.clear()
        self.now_s += seconds
        self.watch.turn(self.now_s, changed)
        return [(each.session, each.change.value) for one in self.orders for each in one.lives]


def test_a_node_that_begins_to_lead_has_to_look_at_once():
    """What publishers have sent it is merged in the same step, and sessions are opened first."""
    bench = Bench(leads=False)
    bench.copy()
    bench.turn()
    assert not bench.is_called()
    bench.lead()
    assert bench.is_called()
    assert bench.turn() == [("jfk", "opened")]
    bench.open()
    bench.turn()
    assert not bench.is_called()


def test_a_session_that_could_not_be_opened_yet_is_looked_at_in_the_next_step():
    """An opening was under way; its first message waits meanwhile."""
    bench = Bench()
    bench.turn()
    bench.copy()
    assert bench.turn(changed=["jfk"]) == [("jfk", "opened")]
    bench.under_way += bench.orders
    bench.copy("lga")
    assert bench.turn(changed=["lga"]) == []
    assert bench.is_called()
    bench.under_way.clear()
    bench.open()
    assert bench.turn() == [("lga", "opened")]


def test_an_opening_that_gets_lost_is_ordered_again_in_the_next_step():
    """Leadership moved to another node and back; the session's messages wait for it."""
    bench = Bench()
    bench.turn()
    bench.copy()
    assert bench.turn(changed=["jfk"]) == bench.turn() == [("jfk", "opened")]


def test_a_session_is_merged_once_the_merged_log_says_whose_it_is():
    """Readers meet the event first; so also after a reset, which another log follows."""
    bench = Bench()
    may_begin = bench.member.proposals.may_begin
    assert not may_begin("jfk")
    bench.open()
    assert may_begin("jfk")
    bench.open(log="")
    assert not may_begin("jfk")


def test_a_node_does_not_rest_before_it_has_looked_who_came_and_who_went():
    """At rest, the next look is 10 s later, and that of the leader as much again."""
    bench = Bench(leads=False)
    bench.turn()
    bench.copy()
    bench.watch.turn(0.1, (), is_stirred=True)
    assert bench.watch.is_deciding
    assert not bench.sent[1:], "it looks every two seconds at most"
    bench.turn(2)
    assert not bench.watch.is_deciding
    assert len(bench.sent) == 2


def test_a_leader_does_not_rest_before_it_has_looked_at_what_others_report():
    """It opens, resumes and closes sessions by that."""
    bench = Bench()
    bench.open()
    bench.copy()
    bench.turn()
    assert not bench.watch.is_deciding
    bench.hears(lga=("bob", LOG))
    assert bench.watch.is_deciding
    bench.open("lga", "bob")
    bench.turn(2)
    assert not bench.watch.is_deciding
    bench.hears(lga=("bob", LOG))
    assert not bench.watch.is_deciding, "nothing new"


def test_what_is_ordered_is_what_the_other_nodes_decode():
    """The leader executes its own proposal undecoded: another time would be another merged log."""
    bench = Bench()
    bench.turn()
    for name in ("jfk", "lga", "ewr"):
        bench.copy(name)
    assert len(bench.turn(2, ["jfk", "lga", "ewr"])) == 3
    assert decode_instruction(encode_instruction(bench.orders[0])) == bench.orders[0]


def test_a_new_session_is_opened_at_once_for_the_publisher_that_is_there():
    """Another one could take the name between its first message and the next look."""
    bench = Bench()
    bench.turn()
    bench.copy()
    assert bench.turn(0.01, ["jfk"]) == [("jfk", "opened")]
    [life] = bench.orders[0].lives
    assert (life.owner, life.log, life.since) == ("alice", LOG, 0)
    bench.open()
    assert not bench.turn(0.01, ["jfk"])


def test_a_session_that_reaches_another_node_only_is_opened_for_its_publisher():
    """The leader holds a copy that a node relays, or none."""
    bench = Bench()
    bench.turn()
    bench.hears(jfk=("alice", LOG))
    assert bench.turn(1) == [("jfk", "opened")]
    assert bench.orders[0].lives[0].owner == "alice"


def test_a_session_of_which_only_a_copy_is_left_is_opened_for_no_one():
    """It was merged by an older version, or its publisher has left: the next one gets it."""
    bench = Bench()
    bench.copy(peer="")
    assert bench.turn() == [("jfk", "opened")]
    assert bench.orders[0].lives[0].owner == ""
    bench.open(owner="", closed_ns=5)
    bench.copy(peer="bob")
    bench.hears()
    assert bench.turn(1) == [("jfk", "resumed")]
    assert bench.orders[0].lives[0].owner == "bob"


def test_a_log_that_is_pushed_to_another_node_does_not_displace_the_leaders():
    """The nodes merge what the leader holds: the other log would go on where this one ends."""
    bench = Bench()
    bench.turn()
    bench.copy(peer="")
    bench.hears(jfk=("bob", NEXT))
    assert bench.turn(1) == [("jfk", "opened")]
    [life] = bench.orders[0].lives
    assert (life.owner, life.log) == ("", LOG)


def test_a_session_that_is_pushed_to_another_node_is_not_closed():
    """A live owner is never displaced, whichever node it reaches."""
    bench = Bench()
    bench.open()
    for _ in range(20):
        bench.hears(jfk=("alice", LOG))
        assert not bench.turn(1)
    bench.hears(jfk=("bob", LOG))
    bench.turn(1)
    bench.hears()
    assert bench.turn(CLOSE_S) == [("jfk", "closed")]


def test_silence_counts_from_when_the_leader_began_and_only_while_it_hears_a_majority():
    """It has not heard yet, or not any more, what is pushed to the others."""
    bench = Bench(leads=False)
    bench.open()
    bench.hears("n3")
    bench.turn(60)
    bench.hears("n3")
    bench.lead()
    assert not bench.turn(1)
    assert not bench.turn(CLOSE_S), "n3 was heard before this node led"
    bench.hears("n3")
    assert not bench.turn(1)
    assert not bench.turn(60), "n3 is silent too"
    bench.hears("n3")
    assert not bench.turn(1)
    bench.hears("n3")
    assert bench.turn(CLOSE_S) == [("jfk", "closed")]


def test_nothing_expires_that_is_not_merged_or_not_settled():
    """The copies may be all that a power cut of every node leaves."""
    bench = Bench(expire_s=50)
    bench.open(closed_ns=40 * NS)
    bench.member.holdings.record_durable("jfk", Position(800))
    bench.hears_holdings(end=800)
    bench.clock.settled_index = 99
    bench.hears()
    assert not bench.turn(1), "a majority holds more than is merged"
    bench.ledger.sessions["jfk"] = Position(800)
    bench.clock.settled_index = 6
    bench.hears()
    assert not bench.turn(1)
    bench.member.holdings.round += 1
    bench.hears_holdings(end=800)
    assert not bench.turn(1)
    bench.clock.settled_index = 7
    bench.ledger.index = 50
    assert bench.turn(1) == [("jfk", "expired")]
    [life] = bench.orders[0].lives
    assert (life.log, life.before, life.since) == (LOG, 800, 3), "its log may not come again"
    bench.clock.now_ns = 89 * NS
    assert not bench.turn(1), "49 s after it was closed"


def test_nothing_expires_before_a_new_leader_has_heard_what_a_majority_holds():
    """The report of the two nodes that hold the last messages had been lost before the election."""
    bench = Bench(leads=False, expire_s=50)
    bench.open(closed_ns=40 * NS)
    bench.clock.settled_index = 7
    for node in ("n2", "n3"):
        bench.hears_holdings(node)  # before the messages came
    bench.turn(1)
    bench.lead()
    bench.turn()
    bench.hears()
    for _ in range(3):
        assert not bench.turn(1), "what was heard before the election says nothing"
        bench.hears()
    bench.member.holdings.round += 1
    bench.hears_holdings("n2", end=800)
    assert not bench.turn(1), "n3 may hold the same"
    bench.hears_holdings("n3", end=800)
    bench.hears()
    assert not bench.turn(1), "a majority holds it"
    bench.ledger.sessions["jfk"] = Position(800)
    bench.turn(1)
    bench.member.holdings.round += 1
    bench.hears_holdings("n2", end=800)
    assert bench.turn(1) == [("jfk", "expired")], "n3 alone is no majority"


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_report_that_has_lost_a_part_says_nothing_of_what_a_node_does_not_hold(lost):
    """The session that is to expire may be named in that part."""
    leader, other = Holdings("n1", ["n1", "n2", "n3"]), Holdings("n2", ["n1", "n2", "n3"])
    for number in range(20_001):
        other.record_durable(f"s{number}", Position(8))
    parts = other.whole()
    for nth, part in enumerate(parts):
        if nth != lost:
            leader.take_report("n2", part)
    assert leader.may_reach("jfk", Position(0), since=0)
    for part in parts:
        leader.take_report("n2", part)
    assert not leader.may_reach("jfk", Position(0), since=0)
    leader.take_report("n2", parts[0])
    assert leader.may_reach("jfk", Position(0), since=0), "the rest is on its way"


def test_a_session_that_has_no_time_to_expire_is_kept():
    """Off by default: a publisher may be away for a year."""
    bench = Bench()
    bench.open(closed_ns=1)
    bench.clock.settled_index, bench.clock.now_ns = 99, 10**19
    bench.hears()
    assert not bench.turn(1)


def test_a_late_report_binds_no_name_to_a_log_that_was_retired():
    """Its owner could then push no log at all."""
    bench = Bench()
    bench.ledger.begun["jfk"] = (5, LOG)
    bench.open(log="", closed_ns=5)
    bench.hears(jfk=("alice", LOG))
    assert not bench.turn(1)
    bench.hears(jfk=("alice", NEXT))
    assert bench.turn(1) == [("jfk", "resumed")]
    assert bench.orders[0].lives[0].log == NEXT


def test_a_stranger_neither_resumes_a_session_nor_keeps_it_open():
    """Its connection may have been accepted by a node that lags."""
    bench = Bench()
    bench.open()
    bench.turn()
    bench.hears(jfk=("bob", LOG))
    bench.turn(1)
    assert bench.turn(CLOSE_S) == [("jfk", "closed")]
    bench.open(closed_ns=5)
    assert not bench.turn(1)


@pytest.mark.parametrize("stranger_at", ["n1", "n2", "n3"])
def test_a_stranger_at_a_node_that_lags_does_not_close_a_live_session(stranger_at):
    """The owner is pushing elsewhere; its subscribers would hear that it has gone."""
    bench = Bench()
    bench.open()
    for _ in range(20):
        for node in ("n2", "n3"):
            bench.hears(node, jfk=("bob", NEXT) if node == stranger_at else ("alice", LOG))
        if stranger_at == "n1":
            bench.copy(peer="bob", log=NEXT)
        assert not bench.turn(1)
    bench.open(closed_ns=5)
    assert bench.turn(1) == [("jfk", "resumed")], "and it does not keep its owner from returning"
    assert bench.orders[0].lives[0].owner == "alice"


@pytest.mark.parametrize("stranger_at", ["n2", "n3"])
def test_a_stranger_at_a_node_that_lags_does_not_keep_the_owner_of_a_reset_session_out(stranger_at):
    """The name is still its owner's, whichever node answers first."""
    bench = Bench()
    bench.open(log="", closed_ns=5)
    bench.turn()
    for node in ("n2", "n3"):
        bench.hears(node, jfk=("bob" if node == stranger_at else "alice", NEXT))
    assert bench.turn(1) == [("jfk", "resumed")]
    assert bench.orders[0].lives[0].owner == "alice"


def test_any_number_of_sessions_is_opened_in_instructions_of_bounded_size():
    """A command has a limit, and so has the time that merging waits for one."""
    bench, opened = Bench(), []
    for number in range(2 * LIVES_MAX + 1):
        bench.copy(f"s{number}")
    while found := bench.turn(0.001):
        assert len(encode_instruction(bench.orders[0])) < 1 << 16
        opened += found
        for session, _ in found:
            bench.open(session)
    assert len(set(opened)) == 2 * LIVES_MAX + 1


def test_a_follower_reports_what_is_pushed_to_it_at_once_and_repeats_it():
    """A report may be lost."""
    bench = Bench(leads=False)
    bench.copy()
    bench.turn(1)
    bench.turn(1)
    [(to, kind, body)] = bench.sent
    assert (to, kind, decode_part(body).pushed) == ("n2", PRESENCE, {"jfk": Pushed("alice", LOG)})
    bench.turn(5)
    assert len(bench.sent) == 2
    bench.copies.clear()
    bench.turn(1)
    assert not decode_part(bench.sent[2][2]).pushed


@pytest.mark.parametrize("cut", [1, 3, 10, 23, 29])
def test_a_report_that_is_cut_or_lies_is_a_peers_fault(cut):
    """What a peer sends is checked before it is believed."""
    whole = encode_part(PresencePart(True, {"jfk": Pushed("alice", LOG)}, 0))
    with pytest.raises(PeerError):
        Presence().receive("n2", whole[:cut])
    with pytest.raises(PeerError):
        decode_part(whole + b"x")
    with pytest.raises(PeerError):
        decode_part(whole.replace(b"jfk", b"../"))
    with pytest.raises(PeerError, match="1000001 sessions that are pushed to it; 1000000 is the"):
        decode_part(encode_part(PresencePart(True, {"jfk": Pushed("alice", LOG)}, PUSHED_MAX)))


def test_a_report_of_more_than_one_part_counts_once_all_of_it_is_here():
    """A longer one than one part was refused, and then no session was closed any more."""
    presence, other = Presence(), Presence()
    other.own = {f"s{number}": Pushed("alice", LOG) for number in range(20_001)}
    parts = other.report()
    assert len(parts) == 3
    for part in parts[:-1]:
        presence.receive("n2", part)
        assert not presence.heard()
    presence.receive("n2", parts[-1])
    assert presence.reports(["n2"]) == [{}, other.own]
    other.own = dict([*other.own.items()][1:])
    for part in (other.report()[0], *other.report()[2:]):
        presence.receive("n2", part)
    assert presence.find("s0"), "a part was lost, so the last whole report counts"
    for part in other.report():
        presence.receive("n2", part)
    assert not presence.find("s0")
    assert presence.find("s20000")


def test_what_is_remembered_of_owners_survives_a_snapshot():
    """A node that receives the state instead of the instructions refuses the same publishers."""
    ledger = Ledger()
    ledger.opened["jfk"] = Ownership("alice", LOG, 3, 5)
    assert decode_ledger(ledger.encode()).opened == ledger.opened
    old = json.loads(ledger.encode())
    del old["opened"]
    assert not decode_ledger(json.dumps(old).encode()).opened


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"expire_s": "soon"}', '{"expires": 1}', '{"take_s": null}']
)
def test_a_policy_that_cannot_be_read_lets_nothing_expire(text):
    """A later version may have written it."""
    assert session_policy_of_notes({SESSIONS_NOTE: text}) == SessionPolicy()


def test_a_time_that_cannot_be_read_is_quoted_once():
    """The sentence is all that an operator has."""
    with pytest.raises(Misuse, match=r"^expire_s is 'soon'; use seconds, "):
        session_policy_of({"expire_s": "soon"})


def test_times_out_of_range_are_refused():
    """NaN compares with nothing, and would let everything expire or nothing."""
    for wrong in ({"close_s": 0}, {"take_s": -1}, {"expire_s": float("nan")}, {"take_s": 1e12}):
        with pytest.raises(Misuse, match=next(iter(wrong))):
            SessionPolicy(**wrong)
