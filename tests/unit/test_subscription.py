"""A subscription's acknowledgements: none is undone, and none waits for the next one."""

from contextlib import contextmanager

import pytest
from logs import MergedLog

from rt.client.readers.cursor import LocalCursor, read_cursors
from rt.client.readers.subscription import Subscription
from rt.position import Position
from rt.subscriber import Subscriber

STREAM = "flights"


@pytest.fixture
def root(tmp_path):
    """Write a log of fifteen messages."""
    with MergedLog(str(tmp_path / STREAM / "out")) as log:
        for number in range(15):
            log.merge("jfk", [b"%d" % number])
    return str(tmp_path)


@contextmanager
def subscribed(root, **options):
    """Subscribe with a cursor, and acknowledge explicitly."""
    reader = Subscriber(root, stream=STREAM, **options)
    with Subscription(reader, LocalCursor(root, STREAM, "etl"), "explicit") as made:
        yield made


def test_an_acknowledgement_before_the_first_message_is_not_undone(root):
    """A program that knows from its own database how far it was says so first."""
    place = Position(200)
    with subscribed(root, follow=False) as reader:
        reader.ack(place, sync=True)
        next(reader.messages())
        assert reader.acked == place
    assert read_cursors(root, STREAM)["etl"].position == place


def test_an_acknowledgement_is_stored_while_the_reader_waits_for_more(root):
    """One within a second of the last was stored with the next only: a crash repeated it."""
    with subscribed(root, watch="poll") as reader:
        begun = reader.messages(timeout_s=1.5)
        handed = [next(begun) for _ in range(10)]
        reader.ack(handed[4])
        assert len(list(begun)) == 5, "the others are in work"
        assert reader.acked == handed[4].next_position
        assert read_cursors(root, STREAM)["etl"].position == reader.acked
