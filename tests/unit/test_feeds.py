"""LogFeeds: which of many pulling connections hear of a merge before its publisher does."""

from types import SimpleNamespace

import pytest

from replicator.serve.feeds import LogFeeds
from rt.errors import Refused
from rt.position import START, Position

END = Position(64)
MANY = 200


class Bells:
    """Connections that note when they are rung."""

    def __init__(self, count):
        self.rung = []
        self.feeds = LogFeeds("out")
        for number in range(count):
            self.feeds.open(SimpleNamespace(set=lambda number=number: self.rung.append(number)))


@pytest.fixture
def many():
    """Return more connections than are told at once."""
    return Bells(MANY)


def test_a_few_are_told_at_once_and_each_of_the_others_once(many):
    """64 subscribers of one node kept a publisher waiting until all were sent its message."""
    many.feeds.begin(END)
    assert 0 < len(many.rung) < MANY / 2
    assert many.feeds.end == END
    many.feeds.go_on()
    many.feeds.go_on()
    assert sorted(many.rung) == list(range(MANY))


def test_all_are_told_where_no_publisher_waits(many):
    """A copy that has grown, as on a mirror, has no publisher."""
    many.feeds.grown(END)
    assert sorted(many.rung) == list(range(MANY))


def test_all_are_told_of_a_second_merge_that_comes_before_the_others_were_told(many):
    """A step may merge twice."""
    many.feeds.begin(Position(32))
    many.feeds.begin(END)
    many.feeds.go_on()
    assert set(many.rung) == set(range(MANY))


def test_all_are_turned_away_whatever_was_left(many):
    """A node that finds itself forked serves none of them any more."""
    many.feeds.begin(END)
    many.rung.clear()
    many.feeds.refuse(Refused("forked", "why"))
    assert sorted(many.rung) == list(range(MANY))


def test_pullers_open_a_file_again_once_the_log_has_become_shorter():
    """A file at the end was set aside; one that had it open waited for ever for the rest of it."""
    feeds = LogFeeds("out")
    feeds.grown(Position(64))
    assert not feeds.damaged.replaced
    feeds.grown(START)
    assert feeds.damaged.replaced == 1
