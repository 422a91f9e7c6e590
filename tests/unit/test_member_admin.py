"""MemberAdmin and `rt cluster`: a change is not called made before it is decided."""

from types import SimpleNamespace

import pytest

from rt.cli.cluster.members import ChangeRequests, replace_member
from rt.errors import Refused
from rt.node.admin.member_admin import MemberAdmin
from sequencer.raft.consensus import EngineRole, Seat, Status

TERM, INDEX = 3, 9
MEMBERS = {name: Seat(1, True, f"{name}:7420") for name in ("n1", "n2", "n4")}
PROMOTE = {"do": "promote-member", "name": "n4"}


class Leader:
    """A node in whose log n4 votes, by an entry that is not committed yet."""

    def __init__(self, members=MEMBERS, retention=None):
        self.leads, self.leader, self.members = True, "n1", members
        self.term, self.commit, self.role = TERM, INDEX - 1, EngineRole.LEADER
        self.last_change = SimpleNamespace(index=INDEX)
        self.waits = []
        self.after = lambda: None
        settings = SimpleNamespace(
            cluster_id="", stream="flights", places={},
            agreement=SimpleNamespace(timers=SimpleNamespace(election_ticks=10)),
            storage=SimpleNamespace(log_id=""),
        )  # fmt: skip
        self.admin = MemberAdmin(settings, self, SimpleNamespace(engine=self), retention, self.wait)

    def ask(self, question):
        return question()

    @property
    def view(self):
        return SimpleNamespace(engine=self.status())

    def status(self):
        return Status(
            "n1", self.role, self.term, self.leader, self.commit, INDEX, INDEX, (), "",
            self.members,
        )  # fmt: skip

    def wait(self, need):
        """Look ten times, with something that happens in between."""
        while not need.is_over():
            if len(self.waits) > 10:
                raise Refused(need.code, need.words)
            self.waits.append(1)
            self.after()


@pytest.fixture
def leader():
    """Return a leader whose time passes only while it waits."""
    return Leader()


def do(leader, request):
    """Make a request of the node."""
    return leader.admin.verbs[request["do"]].do(request, None)


def test_a_change_that_is_asked_for_again_is_answered_once_it_is_decided(leader):
    """A leader that was lost then took the change with it, and the command had said exit 0."""
    leader.after = lambda: setattr(leader, "commit", INDEX if len(leader.waits) == 3 else 0)
    answer = do(leader, PROMOTE)
    assert len(leader.waits) == 3
    assert len(answer["members"]) == len(MEMBERS)


@pytest.mark.parametrize(
    "lost", [lambda leader: setattr(leader, "term", TERM + 1), lambda _leader: None]
)
def test_a_change_that_is_asked_for_again_and_not_decided_is_refused(leader, lost):
    """Another leader may not have it, or no majority lives."""
    leader.after = lambda: lost(leader)
    with pytest.raises(Refused, match="no majority decided it") as refusal:
        do(leader, PROMOTE)
    assert refusal.value.code == "undecided"


def test_a_follower_does_not_answer_for_what_its_log_ends_with(leader):
    """A leader of a later term may yet replace it."""
    leader.leads, leader.leader = False, "n2"
    with pytest.raises(Refused, match="n2 leads the stream"):
        do(leader, PROMOTE)


def test_a_client_may_ask_for_the_members_that_are_decided(leader):
    """A node that was removed and does not know it names others, whom it takes for members."""
    decided = {"do": "members", "decided": True}
    with pytest.raises(Refused) as refusal:
        do(leader, decided)
    assert refusal.value.code == "undecided"
    leader.commit = INDEX
    assert len(do(leader, decided)["members"]) == len(MEMBERS)
    leader.role = EngineRole.FOLLOWER
    with pytest.raises(Refused) as refusal:
        do(leader, decided)
    assert refusal.value.code == "not-leader"
    assert len(do(leader, {"do": "members"})["members"]) == len(MEMBERS), "to find the others"


def answer_of(*names):
    """Return a node's answer about its members, all of which vote."""
    return {
        "members": [{"name": name, "address": "", "votes": True, "live": True} for name in names]
    }


def asked_for(answers):
    """Return requests to nodes that give these answers, and what is asked."""
    asked = []

    def ask(_addresses, _contexts, request):
        asked.append((request["do"], request["decided"]))
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    settings = SimpleNamespace(addresses=list, contexts=lambda: None)
    return ChangeRequests(settings, 60.0, ask=ask, poll_s=0), asked


def test_a_command_waits_until_the_last_change_is_decided(capsys):
    """It goes by the members that it learns first, such as whether a node votes already."""
    answers = [Refused("undecided", "it is not decided yet"), answer_of("n1", "n2", "n4")]
    changes, asked = asked_for(answers)
    assert asked == [("members", True)] * 2
    assert list(changes.members) == ["n1", "n2", "n4"]
    assert "waiting: it is not decided yet" in capsys.readouterr().err


def test_a_replacement_that_is_run_again_has_the_leader_confirm_it():
    """A node of the version before, such as one that is cut off, may have said that it votes."""
    changes, asked = asked_for([answer_of("n1", "n2", "n4")] * 2)
    replace_member(changes, "n3", "n4", "d:7420")
    assert [what for what, _ in asked] == ["members", "promote-member"]


class Settled:
    """What a leader knows of merged logs, first right after its start."""

    settled_index, durable = 0, None

    def durable_at(self, _name):
        """Return up to where the learner has it."""
        return self.durable


def test_a_learner_is_not_promoted_by_a_leader_that_has_just_started():
    """It took 0 for what most nodes have merged, and kept that as the learner's target."""
    learner = {**MEMBERS, "n4": Seat(1, False, "n4:7420")}
    retention = Settled()
    leader = Leader(learner, retention)
    for settled, durable, words in ((0, None, "not heard"), (0, 0, "not known"), (9, 0, "0 of 9")):
        retention.settled_index, retention.durable = settled, durable
        with pytest.raises(Refused, match=words) as refused:
            do(leader, PROMOTE)
        assert refused.value.code == "not-caught-up"
