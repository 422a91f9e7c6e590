"""Walk: a frame is accepted only at the place it was written for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import make_frame

from rt.errors import FrameError
from rt.format.ranges import Range
from rt.format.walk import Walk
from rt.position import Position


def frames(*counts, session="jfk", position=0):
    """Return consecutive frames of a session with so many messages each."""
    made, sequence = [], 0
    for count in counts:
        made.append(make_frame(position, [b"x"] * count, session=session, sequence=sequence))
        position, sequence = position + made[-1].header.size, sequence + count
    return made


def range_over(session_frames, *, session="jfk", number=0):
    """Return the range that holds these frames."""
    first = session_frames[0].header.position
    length = sum(each.header.size for each in session_frames)
    messages = sum(each.header.messages for each in session_frames)
    return Range(1, 1, 0, session, Position(first), length, number, messages, 0)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_consecutive_frames_are_taken_and_end_where_the_bytes_do(counts):
    """The end of the walk is where the next frame is written."""
    made = frames(*counts)
    walk = Walk(Position(0), merged=False, session="jfk")
    for each in made:
        walk.step(each.header)
    assert walk.position == sum(each.header.size for each in made)
    assert walk.at_boundary


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.lists(st.integers(1, 40)))
def test_a_walk_past_checked_frames_ends_as_one_that_steps_over_them(counts, more):
    """The merge writes what it has encoded itself, and need not decode it again."""
    made, later = frames(*counts), frames(*more)
    new = range_over(made)
    frame = new.frame(0)
    stepped = Walk(Position(0), merged=True)
    past = stepped.past(frame.header, new)
    stepped.step(frame.header, frame.parts[1])
    for each in made:
        stepped.step(each.header)
    one, other = ((each.position, each.left, each.at_boundary) for each in (stepped, past))
    assert one == other
    following = range_over(later or made, number=new.messages).frame(stepped.position)
    for walk in (stepped, past):
        walk.step(following.header, following.parts[1])
    assert stepped.range == past.range


@pytest.mark.parametrize("place", ["elsewhere", "inside a range", "in a session"])
def test_a_range_that_was_just_made_is_refused_where_none_may_begin(place):
    """A frame in the wrong place would be found by every reader, after it was synced."""
    new = range_over(frames(1))
    walk = Walk(Position(8 * (place == "elsewhere")), merged=place != "in a session")
    frame = new.frame(0)
    if place == "inside a range":
        walk.step(frame.header, frame.parts[1])
        frame = new.frame(walk.position)
    with pytest.raises(FrameError, match="may follow here"):
        walk.past(frame.header, new)


@given(st.permutations(range(5)))
def test_frames_out_of_order_are_refused(order):
    """Two blocks swapped by a disk are each whole, and both wrong."""
    made = frames(1, 2, 3, 4, 5)
    walk = Walk(Position(0), merged=False)
    for expected, place in enumerate(order):
        if place != expected:
            with pytest.raises(FrameError, match="written for"):
                walk.step(made[place].header)
            return
        walk.step(made[place].header)


def test_a_frame_of_another_session_is_refused_though_its_place_fits():
    """Publishers in lockstep have frames of equal places and sizes; a block of one is not ours."""
    (other,) = frames(1, session="lga")
    with pytest.raises(FrameError, match="another session"):
        Walk(Position(0), merged=False, session="jfk").step(other.header)
    ours = frames(1)
    walk = Walk(Position(0), merged=True)
    new = range_over(ours).frame(0)
    walk.step(new.header, new.parts[1])
    with pytest.raises(FrameError, match="another session"):
        walk.step(other.header)


def test_a_range_ends_exactly_with_its_last_frame():
    """A frame too many would be one that was never agreed on."""
    made = frames(1, 2, 3)
    walk = Walk(Position(0), merged=True)
    new = range_over(made[:2]).frame(0)
    walk.step(new.header, new.parts[1])
    assert not walk.at_boundary
    walk.step(made[0].header)
    walk.step(made[1].header)
    assert walk.at_boundary
    with pytest.raises(FrameError, match="written for"):
        walk.step(made[2].header)


def test_inside_a_range_only_its_own_frames_are_taken():
    """A range frame, a later frame or a longer one inside a range is damage."""
    made = frames(1, 2, 3)
    new = range_over(made[:1]).frame(0)
    for wrong in (made[1].header, new.header, made[0].header._replace(length=400, raw_length=400)):
        walk = Walk(Position(0), merged=True)
        walk.step(new.header, new.parts[1])
        with pytest.raises(FrameError):
            walk.step(wrong)
        assert walk.position == new.header.size, "a refused frame must not move the walk"


def test_a_session_holds_no_ranges_and_a_merged_log_no_frame_outside_one():
    """The two kinds of log are not mistaken for each other."""
    made = frames(1)
    new = range_over(made).frame(0)
    with pytest.raises(FrameError, match="no range frames"):
        Walk(Position(0), merged=False).step(new.header, new.parts[1])
    with pytest.raises(FrameError, match="no range frame"):
        Walk(Position(0), merged=True).step(made[0].header)


def test_a_copy_moves_alone():
    """Frames are tried on a copy before they are written; a full disk must not move the log."""
    made = frames(1, 2)
    walk = Walk(Position(0), merged=True)
    new = range_over(made).frame(0)
    walk.step(new.header, new.parts[1])
    copy = walk.copy()
    copy.step(made[0].header)
    walk.skip_range()
    assert copy.left == made[1].header.size
    copy.step(made[1].header)
    assert copy.position == walk.position
