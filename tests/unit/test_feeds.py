"""LogFeeds: which of many pulling connections hear of a merge before its publisher does."""

from types import SimpleNamespace

import pytest

from replicator.serve import feeds as feeds_module
from replicator.serve.feeds import LogFeeds
from rt.errors import Refused
from rt.node.host.pipeline import NodePipeline
from rt.position import Position

END = Position(64)


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
    return Bells(feeds_module._AT_ONCE + 60)


def test_a_few_are_told_at_once_and_each_of_the_others_once(many):
    """64 subscribers of one node kept a publisher waiting until all were sent its message."""
    many.feeds.begin(END)
    assert len(many.rung) == feeds_module._AT_ONCE
    assert many.feeds.end == END
    many.feeds.go_on()
    many.feeds.go_on()
    assert sorted(many.rung) == list(range(feeds_module._AT_ONCE + 60))


def test_all_are_told_where_no_publisher_waits(many):
    """A copy that has grown, as on a mirror, has no publisher."""
    many.feeds.grown(END)
    assert sorted(many.rung) == list(range(feeds_module._AT_ONCE + 60))


def test_all_are_told_of_a_second_merge_that_comes_before_the_others_were_told(many):
    """A step may merge twice."""
    many.feeds.begin(Position(32))
    many.feeds.begin(END)
    many.feeds.go_on()
    assert set(many.rung) == set(range(feeds_module._AT_ONCE + 60))


def test_all_are_turned_away_whatever_was_left(many):
    """A node that finds itself forked serves none of them any more."""
    many.feeds.begin(END)
    many.rung.clear()
    many.feeds.refuse(Refused("forked", "why"))
    assert sorted(many.rung) == list(range(feeds_module._AT_ONCE + 60))


def test_a_merge_is_served_to_the_others_after_the_step(many):
    """In between, its publisher has heard of it; who was told is not told again."""
    pipeline = SimpleNamespace(
        feeds=many.feeds,
        member=SimpleNamespace(executor=SimpleNamespace(ledger=SimpleNamespace(end=END))),
    )
    NodePipeline._serve_merged(pipeline)
    assert len(many.rung) == feeds_module._AT_ONCE
    NodePipeline._serve(pipeline, END)
    NodePipeline._serve(pipeline, END)
    assert sorted(many.rung) == list(range(feeds_module._AT_ONCE + 60))
