"""How a member of a group handles answers: it neither retracts nor believes too early."""

import pytest

from rt.client.groups.group import Group
from rt.client.groups.member_claims import MemberClaims
from rt.client.readers.held_cursor import HeldCursor
from rt.errors import ClaimLost, Fenced, PeerError, Refused
from rt.log.files.continued import ContinuedLog
from rt.position import START, Position

CLAIM = {"number": 7, "first": 0, "end": 10, "deliveries": 1, "is_dead": False}


def answered(**facts):
    """An answer to `group-work`."""
    return {"claims": [], "lost": [], "position": "0.0.0", "is_done": False, **facts}


@pytest.fixture
def member():
    """Return a member that has asked once, and was handed the messages from 0 to 10."""
    claims = MemberClaims(Group("etl"), "a", START, follow=False)
    claims.handle_answer(claims.said(0.0), answered(claims=[CLAIM]), 0.0)
    return claims


def held(member):
    """Return the member's range, and mark what its handler was given."""
    claim = member.next(0.0)
    claim.handed = Position(5)
    return claim


def test_what_is_acknowledged_is_agreed_once_an_answer_says_so(member):
    """And not when it was said: the request may be refused."""
    claim = held(member)
    upto = member.progress(claim, Position(5), 1.0)
    assert not member.is_agreed(claim, upto)
    request = member.said(1.0)
    assert request["done"] == [[7, 5]]
    member.not_said(request, Refused("undecided", "no majority"))
    assert not member.is_agreed(claim, upto)
    member.handle_answer(member.said(2.0), answered(), 2.0)
    assert member.is_agreed(claim, upto)


def test_an_acknowledgement_of_a_lost_range_is_refused(member):
    """It returned as if the nodes had agreed, and another member got the message."""
    claim = held(member)
    upto = member.progress(claim, Position(5), 1.0)
    member.handle_answer(member.said(1.0), answered(lost=[7]), 1.0)
    assert not claim.is_lost, "this node may not know of it yet"
    request = member.said(1.0)
    assert member.due_s() >= 1.0
    assert request["latest"]
    assert request["done"] == [[7, 5]], "it was not taken, so it is said again"
    member.handle_answer(request, answered(lost=[7]), 1.0)
    with pytest.raises(ClaimLost, match="does not count") as lost:
        member.is_agreed(claim, upto)
    assert not lost.value.may_count
    (event,) = member.lost
    assert (event.begin, event.end) == (0, 10)
    assert not member.said(2.0)["done"]


def test_an_acknowledgement_whose_answer_was_lost_may_have_counted(member):
    """A program that undoes its work must know the difference."""
    claim = held(member)
    upto = member.progress(claim, Position(10), 1.0)
    member.not_said(member.said(1.0), PeerError("it hung up"))
    member.handle_answer(member.said(2.0) | {"latest": True}, answered(lost=[7]), 2.0)
    with pytest.raises(ClaimLost, match="may have counted") as lost:
        member.is_agreed(claim, upto)
    assert lost.value.may_count
    assert not member.lost, "most likely, it was the answer that was lost"


def test_a_lost_range_is_taken_from_the_queue_too(member):
    """Nothing of it was handed out, and another member has it by now."""
    member.handle_answer(member.said(1.0) | {"latest": True}, answered(lost=[7]), 1.0)
    assert member.next(1.0) is None


def test_what_precedes_a_rejected_message_is_agreed_with_the_rejection(member):
    """The acknowledgement of a message before it returned at once, before any node had heard."""
    claim = held(member)
    member.reject(claim, Position(3))
    assert not member.is_agreed(claim, member.progress(claim, Position(2), 1.0))
    request = member.said(1.0)
    assert request["failed"] == [[7, 3, 1.0]]
    member.handle_answer(request, answered(), 1.0)
    assert member.is_agreed(claim, Position(2))


def test_a_rejection_of_a_range_that_a_node_does_not_know_yet_is_said_again(member):
    """It was said once, and the acknowledgement of what followed it counted the message as done."""
    claim = held(member)
    member.reject(claim, Position(3))
    member.handle_answer(member.said(1.0), answered(lost=[7]), 1.0)
    assert member.said(1.0)["failed"] == [[7, 3, 1.0]]
    member.handle_answer(member.said(2.0) | {"latest": True}, answered(lost=[7]), 2.0)
    member.reject(claim, Position(4))
    assert not member.said(3.0)["failed"], "and not of one that is lost for good"


def test_the_end_is_believed_only_as_of_the_latest(member):
    """A leader that had not executed its log said so at 2,046 of 3,000 messages."""
    claim = held(member)
    member.progress(claim, Position(10), 1.0)
    member.handle_answer(member.said(1.0), answered(is_done=True), 1.0)
    assert not member.is_done
    assert member.due_s() <= 1.0, "it asks again at once"
    request = member.said(1.0)
    assert request["latest"]
    member.handle_answer(request, answered(is_done=True), 1.0)
    assert member.is_done


@pytest.mark.parametrize("code", ["unknown-group", "role", "settings"])
def test_a_refusal_is_final_only_as_of_the_latest(member, code):
    """A node that was just restarted knows no group; 24 of 24 members believed it."""
    request = member.said(1.0)
    member.not_said(request, Refused(code, "there is no group"))
    assert member.error is None
    assert member.due_s() <= 1.0
    request = member.said(1.0)
    assert request["latest"]
    member.not_said(request, Refused("not-leader", "n2 leads"))
    assert member.error is None
    request = member.said(2.0)
    assert request["latest"]
    member.not_said(request, Refused(code, "there is no group"))
    held(member)  # what it has may be handed out
    with pytest.raises(Refused, match="there is no group"):
        member.next(2.0)


def test_an_answer_that_cannot_be_read_changes_nothing(member):
    """The half of it that can be read says nothing of the rest."""
    claim = held(member)
    member.progress(claim, Position(5), 1.0)
    request = member.said(1.0)
    with pytest.raises(TypeError):
        member.handle_answer(request, answered(claims=[5]), 1.0)
    assert claim.sent == 0


def test_a_holder_believes_that_it_is_fenced_only_as_of_the_latest():
    """A new leader called a cursor taken by an operator, and no one had taken it."""
    cursor = HeldCursor("etl", 3, START, 0.0)
    cursor.ack(Position(64))
    request = cursor.said(1.0)
    assert cursor.must_ask_again(request, Refused("fenced", "taken"))
    again = cursor.said(1.0)
    assert (again["latest"], again["position"]) == (True, "0.0.64")
    with pytest.raises(Refused, match="n2 leads"):
        cursor.must_ask_again(again, Refused("not-leader", "n2 leads"))
    assert cursor.fenced is None
    again = cursor.said(2.0)
    assert again["latest"]
    with pytest.raises(Fenced, match="taken"):
        cursor.must_ask_again(again, Refused("fenced", "taken"))
    cursor = HeldCursor("etl", 3, START, 0.0)
    assert cursor.must_ask_again(cursor.said(1.0), Refused("unknown-cursor", "no cursor"))
    cursor.record_done(cursor.said(1.0))
    assert not cursor.said(2.0)["latest"]


@pytest.mark.parametrize("is_refused", [False, True], ids=["the copy is cut", "nodes refuse it"])
def test_what_is_held_of_a_log_that_has_ended_is_not_reported_in_the_next(is_refused):
    """Its cluster and the one that continues it give the same numbers to other ranges."""
    member = MemberClaims(Group("etl"), "a", START, follow=True)
    first = member.said(0.0, "old")
    assert first["log"] == "old"
    member.handle_answer(first, answered(claims=[CLAIM]), 0.0)
    claim = held(member)
    member.progress(claim, Position(3), 1.0)
    member.reject(claim, Position(4))
    if is_refused:
        request = member.said(1.0, "old")
        assert (request["done"], request["failed"][0][:2]) == ([[7, 5]], [7, 4])
        member.not_said(request, Refused("other-log", "this is another one"))
    request = member.said(2.0, "new")
    assert request["log"] == "new"
    assert [*request["done"], *request["held"], *request["failed"], *request["given_back"]] == []
    assert claim.is_lost
    assert [each.end for each in member.lost] == [Position(10)]
    member.handle_answer(request, answered(claims=[CLAIM]), 2.0)
    assert member.next(3.0).number == 7, "which is of the new log"
    assert member.said(3.0)["log"] == "new", "while the copy is replaced, its log is not known"


def test_a_cursors_holder_tells_the_nodes_of_the_next_log_up_to_where_the_logs_part():
    """It had acknowledged more of the log that has ended, which is not in the next one."""
    known = ContinuedLog("old", "new", Position(40), 4, 9, "")
    cursor = HeldCursor("etl", 3, START, 0.0)
    cursor.log = "old"
    cursor.ack(Position(64))
    cursor.record_done(cursor.said(1.0))
    cursor.carry(known)
    request = cursor.said(2.0, is_sign=True)
    assert (request["log"], request["position"]) == ("new", "0.0.40"), "they may know an older one"
    cursor.ack(Position(48))
    cursor.carry(known)
    assert cursor.position == 48, "it is of the new log by now"
