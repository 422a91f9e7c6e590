"""Range: the record of merged frames in the merged log, and the digest that seals it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt.errors import FrameError
from rt.format.frame import NUMBER_END, FrameKind, parse_header
from rt.format.ranges import EMPTY_DIGEST, Range, decode_range
from rt.position import Position

U32, U63, U64 = (st.integers(0, (1 << bits) - 1) for bits in (32, 63, 64))
RANGES = st.builds(
    Range,
    instruction=U64, term=U64, time_ns=st.integers(0, (1 << 63) - 1),
    session=st.from_regex(r"[a-z0-9]{1,63}", fullmatch=True), first=U63.map(Position),
    length=st.integers(1, (1 << 26)).map(lambda eighths: 8 * eighths),
    number=st.integers(0, NUMBER_END - (1 << 32)), messages=U32, skip=U32,
    digest=st.binary(min_size=16, max_size=16),
)  # fmt: skip
RANGE = Range(5, 1, 99, "jfk", Position(64), 800, 10, 3, 1)


@given(RANGES, U63)
def test_a_range_survives_its_frame(new, position):
    """Every node must read what the leader's instruction made."""
    frame = new.frame(position)
    header = parse_header(frame.parts[0])
    assert decode_range(header, frame.parts[1]) == new
    assert header.position == position


@given(RANGES, U63, st.binary(min_size=16, max_size=16), st.binary(max_size=256))
def test_a_range_that_is_sealed_at_once_is_the_same_as_one_that_is_sealed_in_steps(
    new, position, previous, headers
):
    """Nodes that take either road must have the same log."""
    sealed, frame = new.sealed(previous, position, headers)
    assert sealed == new.digested(previous, position, headers)
    assert frame == sealed.frame(position)


@given(st.binary(max_size=120))
def test_arbitrary_bytes_end_in_a_range_or_a_named_error(body):
    """A sender computes the body's CRC itself, so it proves nothing."""
    header = RANGE.frame(0).header
    try:
        assert decode_range(header, body).body() == body
    except FrameError:
        return


@pytest.mark.parametrize(
    "change",
    [
        {"length": 0}, {"length": 804}, {"session": ""}, {"session": "x" * 256},
        {"session": "j\xf6k"}, {"first": 1 << 63},
    ],
)  # fmt: skip
def test_an_impossible_range_is_refused(change):
    """It would lead the walk to a place where no frame can be."""
    with pytest.raises(FrameError):
        decode_range(RANGE.frame(0).header, RANGE._replace(**change).body())


def test_a_frame_of_messages_is_not_a_range():
    """A session's frame with the body of a range must not steer the merged log."""
    header = RANGE.frame(0).header._replace(kind=FrameKind.MESSAGES)
    with pytest.raises(FrameError):
        decode_range(header, RANGE.body())


def test_the_digest_depends_on_everything_that_is_merged():
    """Two copies prove themselves equal by it: whatever may differ must change it."""
    headers = b"h" * 128
    base = RANGE.digested(EMPTY_DIGEST, 0, headers).digest
    changes = [
        {"instruction": 6}, {"term": 2}, {"time_ns": 98}, {"session": "jfl"}, {"length": 808},
        {"first": Position(72)}, {"number": 11}, {"messages": 4}, {"skip": 2},
    ]  # fmt: skip
    others = [
        RANGE._replace(**change).digested(EMPTY_DIGEST, 0, headers).digest for change in changes
    ]
    others.append(RANGE.digested(b"x" * 16, 0, headers).digest)
    others.append(RANGE.digested(EMPTY_DIGEST, 8, headers).digest)
    others.append(RANGE.digested(EMPTY_DIGEST, 0, b"g" + headers[1:]).digest)
    assert len({base, *others}) == len(others) + 1
    assert RANGE._replace(digest=b"y" * 16).digested(EMPTY_DIGEST, 0, headers).digest == base
