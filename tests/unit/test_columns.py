"""Columns: messages as Arrow arrays want them, and no offset that would read elsewhere."""

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import TIME_NS, make_frame

from rt.errors import FrameError
from rt.format.columns import (
    _ascends,
    _ascends_wide,
    check_columns,
    decode_columns,
    encode_columns,
)
from rt.format.frame import KEYS_COLUMN

TIMES = st.integers(-(1 << 63), (1 << 63) - 1)
HEADER = make_frame(0, [b"AA1"]).header


@given(st.lists(st.tuples(TIMES, st.binary(max_size=30), st.binary(max_size=8)), min_size=1))
def test_messages_survive_with_and_without_keys(messages):
    """The one thing a log is for."""
    times, payloads, keys = (list(column) for column in zip(*messages, strict=True))
    for given_keys in (None, keys):
        header = HEADER._replace(
            messages=len(messages), columns=0 if given_keys is None else KEYS_COLUMN
        )
        columns = decode_columns(header, encode_columns(times, payloads, given_keys))
        assert columns.payloads() == payloads
        assert columns.times.tolist() == times
        assert columns.message_keys() == (given_keys or [b""] * len(messages))


@given(st.binary(max_size=300), st.integers(1, 25), st.integers(0, 1))
def test_arbitrary_bytes_end_in_columns_or_a_named_error(data, count, with_keys):
    """Arrow trusts offsets: one that goes back or beyond would read foreign memory."""
    try:
        columns = decode_columns(HEADER._replace(messages=count, columns=with_keys), data)
    except FrameError:
        return
    assert len(columns.payloads()) == len(columns.message_keys()) == count
    assert sum(map(len, columns.payloads())) == len(columns.payload)


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        ((0, 5, 3), "go back"),
        ((1, 2, 3), "go back"),
        ((0, 1, 2), "add up"),
        ((0, 1, 4), "add up"),
        ((0, 1, (1 << 32) - 1), "add up"),
    ],
)
def test_offsets_that_do_not_add_up_are_refused(offsets, reason):
    """Each payload would begin where another ends."""
    data = struct.pack("<2q3I", 0, 0, *offsets) + b"abc"
    with pytest.raises(FrameError, match=reason):
        decode_columns(HEADER._replace(messages=2), data)


@given(st.lists(st.integers(0, 1 << 26), min_size=2, max_size=400), st.booleans())
def test_long_columns_are_judged_as_short_ones(values, is_sorted):
    """Many offsets are compared by arithmetic on long integers: a borrow would hide a fault."""
    offsets = memoryview(array("I", sorted(values) if is_sorted else values).tobytes()).cast("I")
    assert _ascends_wide(offsets) == _ascends(offsets)


@pytest.mark.parametrize("count", [1, 98, 99, 100, 1000])
def test_every_single_offset_that_is_wrong_is_found(count):
    """In the first lane, the last one, and at the border between the two ways to compare."""
    ends = list(range(0, 3 * (count + 1), 3))
    header = HEADER._replace(messages=count)
    for place in {0, 1, count // 2, count - 1, count}:
        for wrong in (ends[place] - 4, ends[place] + 4, 1 << 31, (1 << 32) - 1):
            changed = [*ends]
            changed[place] = wrong % (1 << 32)
            body = bytes(8 * count) + array("I", changed).tobytes() + bytes(ends[-1])
            with pytest.raises(FrameError):
                check_columns(header, body)


def test_a_compressed_body_is_checked_inside():
    """A false offset does the same harm in compressed bytes as in plain ones."""
    frame = make_frame(0, [b"a" * 100] * 20, level=1)
    check_columns(frame.header, frame.parts[1])
    with pytest.raises(FrameError, match="longer than the body"):
        check_columns(frame.header._replace(messages=2000), frame.parts[1])


def test_the_columns_are_views_of_the_body():
    """Spark and Arrow wrap them without a copy; a copy would cost the rate we promise."""
    body = encode_columns([TIME_NS, TIME_NS], [b"AA1", b"B6 2"], [b"AA", b"B6"])
    columns = decode_columns(HEADER._replace(messages=2, columns=KEYS_COLUMN), body)
    assert columns.payload.obj is body
    assert columns.keys.obj is body
    assert columns.times.format == "q"
    assert columns.offsets.format == "I"
