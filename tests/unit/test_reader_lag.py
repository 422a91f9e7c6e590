"""ReaderLag: a reader that has not read the end for too long is noticed, and no other."""

from types import SimpleNamespace

import pytest

from rt import Current, LagError, Lagging, Misuse
from rt.client.readers.reader_lag import ReaderLag, checked_lag
from rt.position import Position


class World:
    """A stream whose end is asked for, and a clock."""

    def __init__(self, lag_max_s=6.0, on_lag="notify"):
        self.now_s, self.events, self.asked = 100.0, [], []
        self.watch = ReaderLag(
            lag_max_s, on_lag, self.events.append, self.ask, lambda: "n1 is away",
            clock=lambda: self.now_s,
        )  # fmt: skip

    def ask(self):
        """Return a question without an answer yet."""
        asked = SimpleNamespace(end=None, is_over=False, is_reached=False, close=lambda: None)
        self.asked.append(asked)
        return asked

    def turn(self, seconds, position, end=None):
        """Pass time, have the question answered, and let the reader look."""
        self.now_s += seconds
        if self.asked:
            self.asked[-1].end = end
        self.watch.check(Position(position))


def test_a_reader_that_keeps_up_is_never_late():
    """Half of the time is never reported, however the questions fall."""
    world = World()
    for turn in range(200):
        world.turn(0.5, 64 * turn, 64 * max(0, turn - 5))
    assert world.events == []
    assert len(world.asked) > 10


def test_a_reader_behind_the_end_is_late_once_and_then_current():
    """A slow handler reads old prices as if they were new ones."""
    world = World()
    for _ in range(20):
        world.turn(1, 0, 640)
    assert world.events == [Lagging(Position(0), Position(640), 7.0, "n1 is away")]
    world.turn(1, 640, 640)
    assert len(world.events) == 1, "the end was asked for long ago"
    world.turn(0.1, 640, 640)
    world.turn(0.1, 640, 640)
    assert world.events[1:] == [Current(Position(640))]


def test_nodes_that_do_not_answer_are_lag_too():
    """Without an answer, what was missed is unknown."""
    world = World(on_lag="raise")
    world.turn(0, 64)
    with pytest.raises(LagError, match="no node has said where it ends"):
        world.turn(6.5, 64)
    world.asked[-1].is_over = True  # no node can
    world.turn(1, 64)
    world.turn(1, 64)
    assert len(world.asked) == 2


def test_a_copy_that_has_the_end_and_was_read_is_current():
    """The stream may end in a file that has no bytes yet."""
    world = World()
    world.turn(0, 64)
    world.turn(1, 64, 1 << 30)
    world.watch.read_all(Position(64))
    world.turn(5.5, 64, 1 << 30)
    world.asked[-1].is_reached = True  # only now, after the reader had looked
    world.watch.read_all(Position(64))
    world.turn(1, 64, 1 << 30)
    assert [type(each) for each in world.events] == [Lagging]
    world.watch.read_all(Position(64))
    world.turn(0, 64, 1 << 30)
    world.asked[-1].is_reached = True
    world.turn(0, 64, 1 << 30)
    world.watch.read_all(Position(64))
    assert [type(each) for each in world.events] == [Lagging, Current]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lag_max_s": 0.5}, "at least 1 s"),
        ({"lag_max_s": True}, "lag_max_s"),
        ({"on_lag": "skip"}, "use raise or notify"),
        ({"follow": False}, "leave it out"),
        ({"is_member": True}, "not for a group"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    """The caller learns which argument is wrong, and what to use."""
    given = {"lag_max_s": 2.0, "on_lag": "raise", "follow": True, "is_member": False}
    with pytest.raises(Misuse, match=words):
        checked_lag(**{**given, **arguments})
