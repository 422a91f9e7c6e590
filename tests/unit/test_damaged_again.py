"""A publisher whose frames lie elsewhere than those that were merged, and a disk that rots."""

import pytest

from rt.errors import Refused
from rt.node.ingest.session_blocks import BarredSessions
from rt.position import Position


def copies(*damaged_at):
    """A node that has set these copies of a session aside, one after the other."""
    blocks = BarredSessions()
    for position in damaged_at:
        if blocks.is_damaged_again("jfk", Position(position)):
            blocks.strike("jfk")
    return blocks


def test_a_publisher_whose_copies_are_damaged_at_one_place_is_refused_in_the_end():
    """The same copy was fetched, set aside and fetched for as long as the session waited."""
    copies(320, 320).demand_agreed("jfk")
    with pytest.raises(Refused, match="have merged other bytes"):
        copies(320, 320, 320).demand_agreed("jfk")


def test_damage_at_different_places_is_the_disks():
    """It says nothing against the publisher."""
    copies(320, 640, 320, 640).demand_agreed("jfk")


def test_a_session_that_begins_again_is_judged_anew():
    """Its next log has nothing to do with the last one."""
    blocks = copies(320, 320, 320)
    blocks.pardon("jfk")
    assert not blocks.is_damaged_again("jfk", Position(320))
    blocks.demand_agreed("jfk")
