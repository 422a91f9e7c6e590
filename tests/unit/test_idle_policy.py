"""IdlePolicy: when a node stops the clock of a stream, and what ends that."""

from operator import attrgetter
from types import SimpleNamespace

import pytest

from rt.node.agree.idle_policy import IdlePolicy
from rt.position import Position
from sequencer.membership import Doors
from sequencer.planning.holdings import Holdings, encode_reports
from sequencer.planning.wants import is_even
from sequencer.raft.consensus import Quiescence

PLACE, LATER = Quiescence(3, 14), Quiescence(3, 15)


class Bench:
    """A member of three, n1, and its idle heartbeat; all is quiescent."""

    def __init__(self, leader="n1"):
        self.vouched, self.shown, self.there = [], [], {}
        leads = leader == "n1"
        self.engine = SimpleNamespace(
            leader=leader,
            leads=leads,
            quiescence=PLACE,
            vouch=self.vouched.append,
            away=frozenset(),
        )
        ledger = SimpleNamespace(index=14, merged_to=lambda _session: Position(100))
        self.executor = SimpleNamespace(ledger=ledger, lacks_log=False)
        self.member = SimpleNamespace(
            name="n1", engine=self.engine, holdings=Holdings("n1", ["n1", "n2", "n3"]),
            executor=self.executor, restart_check=SimpleNamespace(waits_for=0),
            execution=SimpleNamespace(queue=[], suspended=False, saved_index=14),
            proposals=SimpleNamespace(undecided=None, orders=[], stuck={}),
            membership=SimpleNamespace(doors=Doors()),
        )  # fmt: skip
        self.watch = SimpleNamespace(is_deciding=False)
        idle_heartbeat = SimpleNamespace(show=self.shown.append, heard=lambda: self.there)
        self.rest = IdlePolicy(
            self.member, idle_heartbeat, self.watch, quiescent_s=3.0, easy_ticks=5
        )
        self.now_s = 0.0

    def pass_s(self, seconds, *, is_loud=False):
        """Let time pass and check again; return whether the node is idle."""
        self.now_s += seconds
        return self.rest.decide(self.now_s, is_loud=is_loud)

    def shows(self):
        """Return whether the others are told of a place."""
        return bool(self.shown) and self.shown[-1] is not None

    def come_to_rest(self):
        """Let the others answer until the node is idle."""
        self.pass_s(0.0)
        self.there = {"n2": PLACE, "n3": PLACE}
        assert self.pass_s(3.0)
        return self


def test_a_leader_rests_once_it_was_calm_for_a_while_and_all_others_are_where_it_is():
    """A follower that did not answer may still need to be told something."""
    bench = Bench()
    assert not bench.pass_s(0.0)
    bench.there = {"n2": PLACE, "n3": PLACE}
    assert not bench.pass_s(2.9)
    assert not bench.shows()
    bench.there = {"n2": PLACE}
    assert not bench.pass_s(0.2)
    assert bench.shown[-1] == PLACE, "so that the others can answer"
    bench.there = {"n2": PLACE, "n3": Quiescence(2, 14)}
    assert not bench.pass_s(0.1)
    bench.there = {"n2": PLACE, "n3": PLACE}
    assert bench.pass_s(0.1)
    assert bench.rest.ticks == 0
    assert bench.vouched == [{"n2", "n3"}]


def test_no_node_rests_while_a_removed_one_is_still_heard():
    """Its clock ends that; else the removed node was let in for minutes, and waited for ever."""
    bench = Bench().come_to_rest()
    bench.member.membership.doors = Doors(leaving=frozenset({"n4"}))
    assert not bench.pass_s(10.0)
    bench.member.membership.doors = Doors()
    bench.pass_s(0.0)
    assert bench.pass_s(3.0)


def test_a_follower_rests_only_while_it_hears_that_its_leader_is_where_it_is():
    """No other node would elect a leader in place of a dead one."""
    bench = Bench(leader="n2")
    bench.pass_s(0.0)
    bench.there = {"n3": PLACE}
    assert not bench.pass_s(10.0)
    assert not bench.shows(), "it answers its leader, and does not begin"
    bench.there = {"n2": LATER}
    assert not bench.pass_s(1.0)
    bench.there = {"n2": PLACE}
    assert bench.pass_s(1.0)
    assert bench.shown[-1] == PLACE
    bench.there = {}
    assert not bench.pass_s(1.0)
    assert not bench.shows()
    assert bench.rest.ticks > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("proposals.undecided", True), ("proposals.orders", [True]), ("execution.queue", [True]),
        ("execution.suspended", True),
        ("execution.saved_index", 13), ("proposals.stuck", {"jfk": None}),
    ],
)  # fmt: skip
def test_whatever_a_node_has_to_do_ends_its_rest(name, value):
    """Each of them may need time to pass: a retry, a snapshot, another leader."""
    bench = Bench().come_to_rest()
    *part, field = name.split(".")
    setattr(attrgetter(*part)(bench.member) if part else bench.member, field, value)
    assert not bench.pass_s(0.1)
    assert not bench.shows()


def test_a_node_that_lacks_its_merged_log_does_not_rest():
    """Only a tick begins to copy it from another node."""
    bench = Bench().come_to_rest()
    bench.executor.lacks_log = True
    assert not bench.pass_s(0.1)


def test_a_leader_rests_without_a_member_that_is_away_and_counts_on_the_others_alone():
    """A machine that is being repaired would keep all other nodes awake for days."""
    bench = Bench()
    bench.pass_s(0.0)
    bench.there = {"n2": PLACE}
    assert not bench.pass_s(3.0), "n3 may only be late"
    bench.engine.away = {"n3"}
    assert bench.pass_s(0.1)
    assert bench.vouched == [{"n2"}]
    bench.engine.away = {"n2", "n3"}
    bench.there = {"n2": LATER}
    assert not bench.pass_s(0.1), "n2 is there, and has something to do"


def test_a_follower_rests_whoever_else_is_away():
    """Its leader knows whether a majority is there."""
    bench = Bench(leader="n2")
    bench.pass_s(0.0)
    bench.there = {"n2": PLACE}
    assert bench.pass_s(1.5)
    assert bench.vouched == [{"n2"}]


def test_a_proposal_a_message_and_a_session_that_is_decided_on_end_a_rest():
    """The leader's clock decides when a silent session is closed."""
    for wake in ("proposal", "place", "session", "loud"):
        bench = Bench().come_to_rest()
        if wake == "proposal":
            bench.engine.quiescence = None
        elif wake == "place":
            bench.engine.quiescence = LATER
        elif wake == "session":
            bench.watch.is_deciding = True
        assert not bench.pass_s(0.1, is_loud=wake == "loud"), wake
        assert not bench.shows(), wake


def test_a_leader_wakes_when_one_member_is_not_heard_and_is_ready_to_rest_again():
    """A member that died is missed by the heartbeats that follow, and one that returns is heard."""
    bench = Bench().come_to_rest()
    bench.there = {"n2": PLACE}
    assert not bench.pass_s(0.1)
    assert bench.rest.ticks > 0
    bench.there = {"n2": PLACE, "n3": PLACE}
    assert bench.pass_s(0.1)


def test_a_node_alone_rests_at_once_and_tells_nobody():
    """It has neither heartbeats nor elections."""
    bench = Bench()
    bench.member.holdings = Holdings("n1", ["n1"])
    assert bench.pass_s(0.0)
    assert not bench.shown
    assert not bench.pass_s(0.1, is_loud=True)


def test_fewer_steps_are_enough_while_nothing_happens_and_no_fewer_while_something_does():
    """With many streams and a member that is away for long, their steps are what costs."""
    bench = Bench()
    bench.pass_s(0.0)
    assert bench.rest.ticks == 1
    bench.pass_s(1.0)
    assert bench.rest.ticks == 5
    bench.pass_s(0.1, is_loud=True)
    assert bench.rest.ticks == 1


@pytest.mark.parametrize(
    ("mine", "theirs", "is_enough"),
    [(100, 100, True), (90, 100, True), (120, 120, True), (120, 100, False), (100, 120, False)],
)
def test_copies_that_reach_beyond_what_is_merged_have_to_be_even(mine, theirs, is_enough):
    """Otherwise a report was lost, or a copy has to be passed on: both need time to pass."""
    holdings = held_by_three(mine, theirs, theirs)
    assert is_even(holdings, LEDGER) == is_enough


def test_what_only_a_node_holds_that_is_away_is_passed_on_when_it_returns():
    """A publisher may have gone with the node, and the others would never rest."""
    holdings = held_by_three(100, 100, 120)
    assert not is_even(holdings, LEDGER)
    for _ in range(5):
        holdings.round += 1
        holdings.take_report("n2", *encode_reports({"jfk": Position(100)}, whole=True))
    assert is_even(holdings, LEDGER)
    holdings.take_report("n3", *encode_reports({"jfk": Position(120)}, whole=True))
    assert not is_even(holdings, LEDGER)


LEDGER = SimpleNamespace(merged_to=lambda _session: Position(100))


def held_by_three(mine, *theirs):
    """Return what the nodes hold of one session."""
    holdings = Holdings("n1", ["n1", "n2", "n3"])
    holdings.record_durable("jfk", Position(mine))
    for name, end in zip(("n2", "n3"), theirs, strict=True):
        holdings.take_report(name, *encode_reports({"jfk": Position(end)}, whole=True))
    return holdings
