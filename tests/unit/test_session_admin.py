"""Decisions about a session must never lose, repeat, or displace a publisher."""

from types import SimpleNamespace

import pytest

from rt import Position
from rt.errors import Misuse, Refused
from rt.node.admin.session_admin import SessionAdmin
from rt.position import START
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.life import Life
from sequencer.ledger.session_facts import Ownership
from sequencer.planning.holdings import Holdings, encode_reports
from sequencer.planning.presence import HEARD_S, PresencePart, Pushed, encode_part
from tests.control_fuzz import at_once

LOG = "0123456789abcdef" * 2
FILES = [Position.of(0, roll, 0) for roll in range(5)]


class Leader:
    """A leader without engine or disk: session jfk, and what the nodes hold of it."""

    def __init__(self, merged=START, **held):
        self.ledger = Ledger(index=7, sessions={"jfk": merged} if merged else {})
        holdings = Holdings("n1", ["n1", "n2", "n3"])
        for node, end in held.items():
            if node == "n1":
                holdings.record_durable("jfk", end)
            else:
                holdings.take_report(node, *encode_reports({"jfk": end}, whole=True))
        self.copy = None
        self.checked = {"jfk"}
        self.orders = []
        self.on_settle = lambda: None
        member = SimpleNamespace(
            name="n1", holdings=holdings, proposals=SimpleNamespace(stuck={}),
            executor=SimpleNamespace(
                ledger=self.ledger,
                logs=SimpleNamespace(records=SimpleNamespace(checked=self.checked)),
            ),
        )  # fmt: skip
        asked = SimpleNamespace(view=SimpleNamespace(leads=True), ask=lambda question: question())
        copies = SimpleNamespace(get=lambda _session: self.copy)
        self.admin = SessionAdmin(
            asked, member, copies, decide=self._decide, settle=lambda _index: self.on_settle(),
            wait=at_once, change_note=None,
        )  # fmt: skip
        self.presence = holdings.presence
        self.hears()

    def hears(self, node="n2", **pushed):
        """Take a report of what is pushed to another node."""
        report = encode_part(PresencePart(True, pushed, 0))
        self.presence.receive(node, report)

    def _decide(self, life, _is_done):
        self.orders.append(life)
        self.ledger.sessions["jfk"] = life.after

    def hold(self, archived=(), *, fed=False):
        """Hold a copy: four rolled files of 100 bytes, some archived, and the active one."""
        manifest = SimpleNamespace(
            order=FILES[:4], rolled=dict.fromkeys(FILES[:4]), archived=dict.fromkeys(archived),
            rolled_end=lambda file: 100 if file in FILES[:4] else None,
        )  # fmt: skip
        appender = SimpleNamespace(
            identity=SimpleNamespace(id=LOG), manifest=manifest, end=Position(FILES[4] + 64)
        )
        self.copy = SimpleNamespace(appender=appender, peer="publisher", is_fed=fed)


@pytest.mark.parametrize("act", ["reset", "forget"])
def test_a_leader_without_the_log_that_was_merged_does_not_end_its_session(act):
    """It does not know the id: the log could be pushed again, and be merged twice."""
    leader = Leader(Position(800), n2=Position(800), n3=Position(800))
    with pytest.raises(Refused, match="n1 leads, and does not hold all of session 'jfk', as n2"):
        getattr(leader.admin, act)({"session": "jfk"})
    leader.hold()
    leader.checked.clear()  # it may be the log that was made in the merged one's place
    with pytest.raises(Refused, match="restart n1"):
        getattr(leader.admin, act)({"session": "jfk"})
    leader.checked.add("jfk")
    assert getattr(leader.admin, act)({"session": "jfk"})["retired"] == LOG
    assert [(each.before, each.log) for each in leader.orders] == [(Position(800), LOG)]


def test_a_session_of_which_no_node_has_a_copy_is_forgotten_without_retiring_a_log():
    """Nothing could be pushed from a node; the answer says that no log is kept out."""
    leader = Leader(Position(800))
    assert leader.admin.forget({"session": "jfk"})["retired"] == ""
    assert isinstance(leader.orders[0], Life)


def test_a_publisher_that_comes_back_while_the_state_is_saved_is_not_displaced():
    """Saving takes seconds, and the publisher's log would be retired under it."""
    leader = Leader(Position(800), n1=Position(800))
    leader.hold()
    leader.on_settle = lambda: leader.hold(fed=True)
    with pytest.raises(Refused, match="being pushed by 'publisher'"):
        leader.admin.reset({"session": "jfk"})
    leader.hold()
    leader.on_settle = lambda: leader.ledger.sessions.update(jfk=Position(900))
    with pytest.raises(Refused, match="merged further meanwhile"):
        leader.admin.reset({"session": "jfk"})
    assert not leader.orders, "what was merged since may be durable on one node only"


def test_a_publisher_that_reaches_another_node_only_is_not_displaced():
    """Its connection to the leader may be down, and its log would be retired under it."""
    leader = Leader(Position(800), n1=Position(800))
    leader.hold()
    presence = leader.presence
    leader.hears(jfk=Pushed("alice", LOG))
    for act in (leader.admin.reset, leader.admin.forget):
        with pytest.raises(Refused, match="'jfk' is being pushed to node n2; stop its publisher"):
            act({"session": "jfk"})
    presence.now_s = 2.0
    leader.hears()
    assert leader.admin.reset({"session": "jfk"})["retired"] == LOG


def test_a_node_that_is_gone_for_good_does_not_keep_its_sessions_from_being_ended():
    """It was lost together with its publishers, and will never say that they have left."""
    leader = Leader(Position(800), n1=Position(800))
    leader.hold()
    leader.hears(jfk=Pushed("alice", LOG))
    presence = leader.presence
    presence.now_s = HEARD_S - 0.1
    leader.hears("n3")
    with pytest.raises(Refused, match="pushed to node n2"):
        leader.admin.reset({"session": "jfk"})
    presence.now_s = HEARD_S
    assert leader.admin.reset({"session": "jfk"})["retired"] == LOG


def test_a_leader_that_has_not_heard_the_others_yet_ends_no_session():
    """The publisher may be connected to them."""
    leader = Leader(Position(800), n1=Position(800))
    leader.hold()
    leader.presence.forget()
    with pytest.raises(Refused, match="has not heard yet which sessions are pushed"):
        leader.admin.forget({"session": "jfk"})
    assert not leader.orders


def test_a_publisher_takes_no_name_with_a_new_log_before_all_of_the_last_one_is_merged():
    """Its owner was told that a majority has it, and the copies go."""
    leader = Leader(Position(800), n1=Position(900), n2=Position(900))
    leader.ledger.opened["jfk"] = Ownership("alice", LOG, 3, closed_ns=1)
    bob = SimpleNamespace(name="bob", title="publisher bob", may_operate=False)
    operator = SimpleNamespace(name="operator", title="operator", may_operate=True)
    request = {"session": "jfk", "begins_again": True}
    with pytest.raises(Refused, match="may hold messages of session 'jfk' that are not merged"):
        leader.admin.take_over(request, bob)
    leader.ledger.sessions["jfk"] = Position(900)
    with pytest.raises(Refused, match="may hold messages"):
        leader.admin.take_over(request, bob)  # n2 and n3 have not said since what they hold
    assert not leader.orders
    leader.admin.take_over(request, operator)
    assert leader.orders[-1].begins_again


def test_an_adopted_session_continues_at_the_first_file_that_is_there():
    """What lies between two archived files would be lost although the leader has it."""
    leader = Leader(n1=Position(FILES[4] + 64))
    leader.hold(archived=[FILES[0], FILES[2]])
    assert leader.admin.adopt({"session": "jfk"})["after"] == str(FILES[1])
    leader.ledger.sessions["jfk"] = Position(FILES[1] + 50)
    with pytest.raises(Misuse, match="needs no adoption"):
        leader.admin.adopt({"session": "jfk"})
    leader.ledger.sessions["jfk"] = Position(FILES[1] + 100)
    assert leader.admin.adopt({"session": "jfk"})["after"] == str(FILES[3])
    assert [each.after for each in leader.orders] == [FILES[1], FILES[3]]
