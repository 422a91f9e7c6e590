"""A node that was away while it was removed learns it from a majority, and not from fewer."""

import pytest

from sequencer.peers.departed import RemovalVerdicts
from sequencer.raft.consensus import FOUNDER, LastChange, Seat

VOTER, LEARNER = Seat(FOUNDER), Seat(FOUNDER, votes=False)


def listed(*names):
    """Return a configuration of these voters."""
    return dict.fromkeys(names, VOTER)


def decisive(change, *members, name="n3"):
    """Return whether these members end a node by refusing it as removed."""
    verdicts = RemovalVerdicts()
    for each in members:
        verdicts.record(each, is_removed=True)
    return verdicts.are_decisive(change, name)


@pytest.mark.parametrize(
    ("voters", "needed"), [(1, None), (2, None), (3, 2), (4, 3), (5, 3), (7, 4)]
)
def test_no_single_member_ends_a_node_by_calling_it_removed(voters, needed):
    """Beside a hostile member, an honest one that has seen the removal has to say so."""
    names = [f"n{each}" for each in range(1, voters + 1)]
    change = LastChange(0, 0, listed(*names), {})
    own, others = names[-1], names[:-1]
    enough = [each for each in range(voters) if decisive(change, *others[:each], name=own)]
    assert enough == ([] if needed is None else [*range(needed, voters)])


def test_a_member_that_lets_the_node_in_takes_its_verdict_back():
    """It had not yet heard that the node was added again."""
    verdicts, change = RemovalVerdicts(), LastChange(0, 0, listed("n1", "n2", "n3"), {})
    verdicts.record("n1", is_removed=True)
    verdicts.record("n1", is_removed=False)
    verdicts.record("n2", is_removed=True)
    assert not verdicts.are_decisive(change, "n3")


@pytest.mark.parametrize("sayers", [("n4", "n5"), ("n3", "n1"), ("l1", "n1")])
def test_those_that_the_log_does_not_list_as_voters_have_no_say(sayers):
    """Strangers, learners and the node itself are no members that could have decided it."""
    change = LastChange(0, 0, {**listed("n1", "n2", "n3"), "l1": LEARNER}, {})
    assert not decisive(change, *sayers)


def test_before_a_change_is_decided_a_majority_of_either_list_has_to_say_so():
    """The change may be undone, and those that it would add have decided nothing yet."""
    change = LastChange(1, 9, listed("n1", "n3", "n4"), listed("n1", "n2", "n3"))
    assert not decisive(change, "n1", "n4")
    assert not decisive(change, "n1", "n2")
    assert decisive(change, "n1", "n2", "n4")


def test_a_node_that_its_log_does_not_list_is_not_ended():
    """It has yet to be added, and until then the others may say that it was removed before."""
    assert not decisive(LastChange(0, 0, listed("n1", "n2"), {}), "n1", "n2")


def test_a_node_that_was_removed_as_soon_as_it_was_promoted_is_ended():
    """It was killed before it heard that its promotion is decided, and waited for ever."""
    old = listed("n1", "n2", "n3")
    change = LastChange(1, 4, listed("n1", "n2", "n3", "n4"), {**old, "n4": LEARNER})
    assert decisive(change, "n1", "n2", "n3", name="n4")
    assert not decisive(change, "n1", "n2", name="n4")


@pytest.mark.parametrize("before", [{}, listed("n1", "n2", "n3")])
def test_a_learner_is_not_ended(before):
    """Those that have not heard that it was added again may still call it removed."""
    change = LastChange(1, 3, {**listed("n1", "n2", "n3"), "n4": LEARNER}, before)
    assert not decisive(change, "n1", "n2", "n3", name="n4")
