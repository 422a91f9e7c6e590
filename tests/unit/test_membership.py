"""Membership: whom a node talks to, and whose word it takes for that, as its log is behind."""

import pytest

from sequencer.journal.starts import Listed
from sequencer.membership import CUT_OFF_TICKS, Membership
from sequencer.peers.departed import Departed
from sequencer.peers.restart_check import (
    PATIENCE_TICKS,
    RestartCheck,
    RestartMessage,
    encode_restart,
)
from sequencer.planning.holdings import Holdings
from sequencer.raft.consensus import LastChange, Seat, UnheardError
from sequencer.raft.starts import Claim, Reach, StartChain

OWN = 11  # the number of this node's start


def seats(*names):
    """A configuration of these nodes, all of which vote."""
    return {name: Seat(0, True, f"{name}:7420") for name in names}


class Engine:
    """Has the configuration that it was given last."""

    leader = ""
    announced = None

    def __init__(self, *names):
        self.have(2, 10, seats(*names))

    def have(self, term, index, now, before=None):
        """Take another configuration; `before` while it is undecided."""
        self.last_change, self.members = LastChange(term, index, now, before or {}), now

    def announce(self, place, seats):
        """Take note of what is announced, as the engine does."""
        self.announced = place, seats


class World:
    """A node that was founded with `n1`, `n2` and `n3`, and what it tells its dialler."""

    def __init__(self, name="n1", members=("n1", "n2", "n3"), departed=(), *, place=(2, 10)):
        self.engine, self.dialled, self.saved = Engine(*members), {}, []
        self.engine.have(*place, self.engine.members)
        others = [each for each in members if each != name]
        claim = Claim(0, StartChain(1, (OWN,)), Reach(), Reach())
        self.restart_check = RestartCheck(others, claim, {}, lambda _memories: None)
        holdings = Holdings(name, members)
        self.departed = Departed(departed, self._save)
        self.membership = Membership(
            name, self.engine, holdings, self.restart_check, self._dial, departed=self.departed
        )
        self.membership.follow()

    def _dial(self, addresses):
        self.dialled = addresses

    def _save(self, names, _members):
        if names != (self.saved or [sorted(self.departed.names)])[-1]:
            self.saved.append(names)

    def hear(self, sender, term, index, *names):
        """Take an announcement, as another node of the same kind makes it; return if it counts."""
        other = World(sender)
        other.engine.have(term, index, seats(*names))
        self.membership.record_heard(sender)
        try:
            self.membership.receive(sender, other.membership.announcement())
        except UnheardError:
            return False
        return True

    def wait(self, ticks=CUT_OFF_TICKS):
        """Let time pass while no node sends anything."""
        for _ in range(ticks):
            self.restart_check.tick()
            self.membership.tick()

    def confirm(self, *senders):
        """These nodes confirm this node's start; then an election timeout passes."""
        for sender in senders:
            claim = Claim(0, StartChain(1, (22,)), Reach(), Reach())
            self.restart_check.receive(sender, encode_restart(RestartMessage(claim, OWN, None)))
        for _ in range(PATIENCE_TICKS):
            self.restart_check.tick()


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


def test_a_node_that_is_not_listed_is_believed_once_no_voter_is_left_that_could_tell():
    """It may have replaced another one while this node was away, and all others may be down."""
    world = World()
    assert not world.hear("n4", 3, 20, "n1", "n3", "n4")
    world.wait(CUT_OFF_TICKS - 1)
    assert not world.hear("n4", 3, 20, "n1", "n3", "n4")
    world.wait(1)
    assert world.hear("n4", 3, 20, "n1", "n3", "n4")
    assert "n4" in world.dialled
    assert world.engine.announced == ((3, 20), seats("n1", "n3", "n4"))
    world.confirm("n4")
    assert world.restart_check.is_over


def test_a_node_that_is_not_listed_is_not_believed_while_a_voter_is_heard():
    """In each election there is no leader for a while: a stranger would only have to wait."""
    world = World()
    for _ in range(2 * CUT_OFF_TICKS):
        world.wait(1)
        world.membership.record_heard("n3")
    assert not world.hear("n4", 3, 20, "n1", "n3", "n4")
    assert not world.membership.doors.is_open


def test_nodes_that_were_away_together_believe_those_that_replaced_the_others():
    """Each heard the other, which is no majority, and both kept their doors shut for good."""
    world = World(members=("n1", "n2", "n3", "n4", "n5"))
    for _ in range(2 * CUT_OFF_TICKS):
        world.wait(1)
        world.membership.record_heard("n2")
    assert world.membership.doors.is_open
    assert world.hear("n6", 5, 30, "n1", "n2", "n6", "n7", "n8")
    assert {"n6", "n7", "n8"} <= world.dialled.keys()


def test_a_majority_that_hears_itself_believes_no_stranger():
    """It elects a leader soon, who knows better."""
    world = World(members=("n1", "n2", "n3", "n4", "n5"))
    for _ in range(2 * CUT_OFF_TICKS):
        world.wait(1)
        world.membership.record_heard("n2")
        world.membership.record_heard("n3")
    assert not world.membership.doors.is_open
    assert not world.hear("n6", 5, 30, "n1", "n2", "n6", "n7", "n8")


def test_what_a_voter_announces_may_be_vouched_for_by_those_that_it_lists():
    """Several nodes may have been replaced, one after another, while this one was away."""
    world = World()
    assert world.hear("n3", 3, 20, "n1", "n3", "n4")
    assert world.hear("n4", 3, 30, "n1", "n4", "n5")
    assert world.dialled.keys() >= {"n4", "n5"}


def test_a_learner_does_not_say_who_votes():
    """It would say that it does itself; the log says when it was promoted."""
    world = World()
    now = {**seats("n1", "n2", "n3"), "n4": Seat(9, False, "n4:7420")}
    world.engine.have(2, 20, now)
    world.membership.follow()
    assert not world.hear("n4", 9, 99, "n1", "n4")
    world.membership.demand("n4")  # but it is a member, and heard as one


def test_a_removed_node_is_not_known_by_what_was_announced_before_its_removal():
    """It was believed whatever it announced, was followed as a leader, and forked a node."""
    world = World()
    assert world.hear("n3", 3, 20, "n1", "n2", "n3")
    world.engine.have(3, 30, seats("n1", "n3", "n4"))
    world.membership.follow()
    assert not world.hear("n2", 99, 999, "n1", "n2")
    assert world.hear("n4", 3, 40, "n1", "n3", "n4", "n5"), "the log lists it"


def test_a_removed_node_is_never_believed_again_even_after_a_restart():
    """Its certificate is still good, and its log may be longer than that of the others."""
    world = World()
    world.engine.have(2, 20, seats("n1", "n3"), before=seats("n1", "n2", "n3"))
    world.membership.follow()
    assert not world.saved, "as long as its removal may be undone, it is a member"
    world.engine.have(2, 20, world.engine.members)
    world.membership.follow()
    assert world.saved == [["n2"]]
    world.wait()
    assert world.membership.doors.admits("n9")
    assert not world.membership.doors.admits("n2")
    assert not world.hear("n2", 9, 99, "n1", "n2")
    again = World(members=("n1", "n3"), departed=["n2"])
    again.wait()
    assert not again.hear("n2", 9, 99, "n1", "n2")
    again.engine.have(3, 50, seats("n1", "n2", "n3"))
    again.membership.follow()
    assert again.saved == [[]], "another machine may get its name"
    assert again.membership.doors.admits("n2")


def test_a_node_that_joins_takes_no_one_for_removed_by_its_configuration_file():
    """Its log begins with members that have all been replaced since: it took the living ones for
    departed, refused their connections, and after a restart never learned better.
    """
    world = World("n7", ("n4", "n5", "n6", "n7"), place=(0, 0))
    world.engine.have(1, 5, seats("n1", "n2", "n3", "n4"), before=seats("n4", "n5", "n6", "n7"))
    world.membership.follow()
    world.engine.have(1, 5, world.engine.members)
    world.membership.follow()
    assert not world.saved
    world.engine.have(1, 9, seats("n2", "n3", "n4"))
    world.membership.follow()
    assert world.saved == [["n1"]], "and learns from its log who was"


def test_a_founder_whose_removal_may_be_undone_is_not_taken_for_removed_at_a_start():
    """The log of a node that starts may end in what was never decided: the founder was refused
    for good, though it had not been removed.
    """
    departed, before = Departed(founders=["n1", "n2", "n3"]), seats("n1", "n2", "n3")
    departed.follow(LastChange(2, 20, seats("n1", "n3"), before))
    assert not departed.names
    departed.follow(LastChange(2, 20, seats("n1", "n3"), {}))
    assert departed.names == {"n2"}


def test_a_node_whose_removal_came_with_a_snapshot_is_known_to_be_removed():
    """The follower that had listed it started again, and a snapshot replaced that list: the removed
    node was a stranger to it, and went on for ever.
    """
    departed = Departed(members=Listed(26, ["n1", "n2", "n6"]))
    departed.follow(LastChange(8, 20, seats("n2", "n6"), {}))
    assert not departed.names, "its log has yet to come as far again"
    departed.follow(LastChange(8, 30, seats("n2", "n6"), {}))
    assert departed.names == {"n1"}


def test_a_member_that_was_never_decided_is_not_taken_for_removed():
    """Its leader fell; a node was removed only if it has been a member."""
    world = World()
    world.engine.have(2, 20, seats("n1", "n2", "n3", "n4"), before=seats("n1", "n2", "n3"))
    world.membership.follow()
    world.engine.have(2, 10, seats("n1", "n2", "n3"))
    world.membership.follow()
    assert not world.saved


@pytest.mark.parametrize("names", [("n4", "n5", "n6"), ("n1", "n2", "n3", "n5")])
def test_a_node_that_is_not_listed_has_to_list_both(names):
    """One that lists only itself, or only us, has nothing to tell us."""
    world = World()
    world.wait()
    assert not world.hear("n4", 3, 20, *names)
    assert "n5" not in world.dialled


def test_a_stranger_is_not_believed_against_a_leader():
    """The log will say who the members are, and its certificate may still be good."""
    world = World()
    world.wait()
    world.engine.leader = "n2"
    assert not world.hear("n4", 9, 999, "n1", "n4", "n5")
    world.engine.leader = ""
    assert world.hear("n4", 3, 20, "n1", "n4")
    world.engine.leader = "n4"
    assert world.hear("n4", 9, 999, "n1", "n4", "n5")
    assert "n5" in world.dialled


def test_what_a_stranger_announced_holds_while_another_node_of_its_list_leads():
    """It was dropped as soon as they had elected one, whose messages were refused until the next
    announcement, and an election was held for want of a leader.
    """
    world = World()
    world.wait()
    assert world.hear("n4", 3, 20, "n1", "n4", "n5")
    world.engine.leader = "n5"
    world.membership.follow()
    world.membership.demand("n5")


def test_what_a_stranger_announced_lapses_when_a_member_leads():
    """Its list may have been believed for want of a leader; a start must not wait for it."""
    world = World()
    world.wait()
    assert world.hear("n4", 9, 999, "n1", "n4", "n5", "n6", "n7")
    world.membership.follow()
    world.confirm("n2")
    assert not world.restart_check.is_over
    world.engine.leader = "n2"
    world.membership.follow()
    assert world.restart_check.is_over


def test_a_start_is_confirmed_by_those_before_an_undecided_change():
    """They may elect a leader among themselves, which needs this node and undoes the change."""
    world = World()
    world.engine.have(2, 20, seats("n1", "n2"), before=seats("n1", "n2", "n3"))
    world.membership.follow()
    world.membership.demand("n3")
    world.confirm("n3")
    assert world.restart_check.is_over


def test_a_start_is_not_confirmed_by_a_node_whose_removal_is_decided():
    """It knows nothing of what this node has done since."""
    world = World()
    world.engine.have(2, 20, seats("n1", "n2"), before=seats("n1", "n2", "n3"))
    world.membership.follow()
    world.engine.have(2, 20, world.engine.members)
    world.membership.follow()
    with pytest.raises(UnheardError, match="not a member"):
        world.membership.demand("n3")
    world.confirm("n3")
    assert not world.restart_check.is_over


def test_a_node_that_joins_seven_others_says_nothing_that_they_refuse():
    """Its configuration file lists eight, and seven may vote: its connections were broken off."""
    names = [f"n{number}" for number in range(1, 9)]
    newcomer, member = World("n8", names), World("n1", names[:7])
    newcomer.engine.have(0, 0, seats(*names))
    member.membership.receive("n8", newcomer.membership.announcement())
    assert member.dialled.keys() == {*names[1:7]}, "and what no log says changes nothing"
