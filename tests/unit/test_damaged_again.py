"""A publisher whose frames lie elsewhere than those that were merged, and a disk that rots."""

import pytest

from rt.errors import Refused
from rt.node.ingest.session_epochs import SessionEpoch
from rt.node.ingest.session_state import SessionState
from rt.position import Position


def copies(*damaged_at):
    """A node that has set these copies of a session aside, one after the other."""
    state = SessionState("jfk")
    for position in damaged_at:
        state.set_aside(diverged=False, damaged_at=Position(position))
    return state


def demand_accepted(state, times):
    """Check that so many more copies may be damaged at one place, and that the next is refused."""
    for _ in range(times):
        state.set_aside(diverged=False, damaged_at=Position(320))
        state.demand_owner("p")
    state.set_aside(diverged=False, damaged_at=Position(320))
    with pytest.raises(Refused, match="have merged other bytes"):
        state.demand_owner("p")


def test_a_publisher_whose_copies_are_damaged_at_one_place_is_refused_in_the_end():
    """The same copy was fetched, set aside and fetched for as long as the session waited."""
    copies(320, 320).demand_owner("p")
    with pytest.raises(Refused, match="have merged other bytes"):
        copies(320, 320, 320).demand_owner("p")


def test_the_beginning_of_a_log_is_a_place_too():
    """Position 0 counts as any other."""
    with pytest.raises(Refused, match="have merged other bytes"):
        copies(0, 0, 0).demand_owner("p")


def test_damage_before_a_place_up_to_which_a_copy_was_right_is_forgotten():
    """Two flipped bits in one slice, weeks apart, are the disk's."""
    state = copies(320, 320)
    state.proved(Position(640))
    demand_accepted(state, 1)


def test_damage_at_different_places_is_the_disks():
    """It says nothing against the publisher."""
    demand_accepted(copies(320, 640, 320, 640), 2)


def test_a_session_that_begins_again_is_judged_anew():
    """Its next log has nothing to do with the last one."""
    state = copies(320, 320, 320)
    state.drop(SessionEpoch())
    demand_accepted(state, 2)
