"""Membership: whom a node talks to, and whose word it takes for that, as its log is behind."""

import pytest

from rt.errors import PeerError
from sequencer.greeting import PATIENCE_TICKS, Greeting, GreetingMessage, encode_greeting
from sequencer.holdings import Holdings
from sequencer.membership import Membership
from sequencer.raft.consensus import LastChange, Seat
from sequencer.raft.starts import Claim, Reach, StartChain

OWN = 11  # the number of this node's start


def seats(*names):
    """A configuration of these nodes, all of which vote."""
    return {name: Seat(0, True, f"{name}:7420") for name in names}


class Engine:
    """Has the configuration that it was given last."""

    leader = ""

    def __init__(self, *names):
        self.have(2, 10, seats(*names))

    def have(self, term, index, now, before=None):
        """Take another configuration; `before` while it is undecided."""
        self.last_change, self.members = LastChange(term, index, now, before or {}), now


class World:
    """A node that was founded with `n1`, `n2` and `n3`, and what it tells its dialler."""

    def __init__(self, name="n1", members=("n1", "n2", "n3")):
        self.engine, self.dialled = Engine(*members), {}
        others = [each for each in members if each != name]
        claim = Claim(0, StartChain(1, (OWN,)), Reach(), Reach())
        self.greeting = Greeting(others, claim, {}, lambda _memories: None)
        holdings = Holdings(name, members)
        self.membership = Membership(name, self.engine, holdings, self.greeting, self._dial)
        self.membership.follow()

    def _dial(self, addresses):
        self.dialled = addresses

    def hear(self, sender, term, index, *names):
        """Take an announcement, as another node of the same kind makes it."""
        other = World(sender)
        other.engine.have(term, index, seats(*names))
        self.membership.take(sender, other.membership.announcement())

    def confirm(self, *senders):
        """These nodes confirm this node's start; then an election timeout passes."""
        for sender in senders:
            claim = Claim(0, StartChain(1, (22,)), Reach(), Reach())
            self.greeting.take(sender, encode_greeting(GreetingMessage(claim, OWN, None)))
        for _ in range(PATIENCE_TICKS):
            self.greeting.tick()


def test_a_newer_configuration_is_followed_before_the_log_has_it():
    """Otherwise a node that was away could not reply to a leader that it does not know."""
    world = World()
    world.hear("n3", 3, 20, "n1", "n3", "n4")
    assert world.dialled.keys() == {"n2", "n3", "n4"}


def test_the_entry_of_a_later_term_is_newer_whatever_its_index():
    """A removed node may have led, and hold a longer log that was never decided."""
    world = World()
    world.hear("n3", 1, 999, "n2", "n3", "n9")
    assert "n9" not in world.dialled


def test_a_node_that_is_not_listed_is_believed_while_there_is_no_leader():
    """It may have replaced another one while this node was away, and all others may be down."""
    world = World()
    world.hear("n4", 3, 20, "n1", "n3", "n4")
    assert "n4" in world.dialled
    world.confirm("n4")
    assert world.greeting.is_over


@pytest.mark.parametrize("names", [("n4", "n5", "n6"), ("n1", "n2", "n3", "n5")])
def test_a_node_that_is_not_listed_has_to_list_both(names):
    """One that lists only itself, or only us, has nothing to tell us."""
    world = World()
    world.hear("n4", 3, 20, *names)
    assert "n5" not in world.dialled


def test_a_removed_node_is_not_believed_against_a_leader():
    """The log will say who the members are, and its certificate may still be good."""
    world = World()
    world.engine.leader = "n2"
    world.hear("n4", 9, 999, "n1", "n4", "n5")
    assert "n5" not in world.dialled
    world.engine.leader = "n4"
    world.hear("n4", 9, 999, "n1", "n4", "n5")
    assert "n5" in world.dialled


def test_what_a_stranger_announced_lapses_when_a_member_leads():
    """Its list may have been believed for want of a leader; a start must not wait for it."""
    world = World()
    world.hear("n4", 9, 999, "n1", "n4", "n5", "n6", "n7")
    world.membership.follow()
    world.confirm("n2")
    assert not world.greeting.is_over
    world.engine.leader = "n2"
    world.membership.follow()
    assert world.greeting.is_over


def test_a_start_is_confirmed_by_those_before_an_undecided_change():
    """They may elect a leader among themselves, which needs this node and undoes the change."""
    world = World()
    world.engine.have(2, 20, seats("n1", "n2"), before=seats("n1", "n2", "n3"))
    world.membership.follow()
    assert world.membership.admits("n3")
    world.confirm("n3")
    assert world.greeting.is_over


def test_a_start_is_not_confirmed_by_a_node_whose_removal_is_decided():
    """It knows nothing of what this node has done since."""
    world = World()
    world.engine.have(2, 20, seats("n1", "n2"), before=seats("n1", "n2", "n3"))
    world.membership.follow()
    world.engine.have(2, 20, world.engine.members)
    world.membership.follow()
    with pytest.raises(PeerError, match="not a member"):
        world.membership.admits("n3")
    world.confirm("n3")
    assert not world.greeting.is_over


def test_a_node_that_joins_seven_others_says_nothing_that_they_refuse():
    """Its configuration file lists eight, and seven may vote: its connections were broken off."""
    names = [f"n{number}" for number in range(1, 9)]
    newcomer, member = World("n8", names), World("n1", names[:7])
    newcomer.engine.have(0, 0, seats(*names))
    member.membership.take("n8", newcomer.membership.announcement())
    assert member.dialled.keys() == {*names[1:7]}, "and what no log says changes nothing"
