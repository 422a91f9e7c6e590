"""The parts of `rt publish`: splitting lines, keeping a pace, parsing a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt.cli.data.lines import LineCutter
from rt.cli.data.pace import Pace, parse_rate
from rt.errors import Misuse
from rt.text import parse_time


@given(st.binary(max_size=60).map(lambda data: data.replace(b"a", b"\n")), st.data())
def test_lines_are_the_same_however_their_bytes_arrive(data, cuts):
    """A pipe cuts where it likes."""
    cutter, found, left = LineCutter(100), [], data
    while left:
        size = cuts.draw(st.integers(1, len(left)))
        found += cutter.feed(left[:size])
        left = left[size:]
    found += cutter.finish()
    whole = data.split(b"\n")
    assert found == (whole if whole[-1] else whole[:-1])
    assert cutter.lines == len(found)


def test_line_is_given_out_with_the_byte_that_ends_it():
    """A live source is not made to wait for its next line."""
    cutter = LineCutter(100)
    assert [cutter.feed(bytes([byte])) for byte in b"ab\nc"] == [[], [], [b"ab"], []]
    assert cutter.unfinished == 1
    assert cutter.finish() == [b"c"]
    assert cutter.unfinished == 0


def test_line_without_an_end_is_refused():
    """Memory is bounded by the longest message there may be."""
    cutter = LineCutter(3)
    cutter.feed(b"abcd")
    with pytest.raises(Misuse, match="longer than 3 bytes"):
        cutter.feed(b"e")


@pytest.mark.parametrize("text", ["", "fast", "-1", "0/s", "1/min", "1e9", "10K", "1" * 40])
def test_an_invalid_rate_is_refused(text):
    """A rate of nothing would wait for ever."""
    with pytest.raises(Misuse, match="not a rate"):
        parse_rate(text)


@given(st.floats(1, 1e6), st.lists(st.integers(1, 100), min_size=1, max_size=50))
def test_pace_lets_messages_through_at_its_rate_and_no_faster(rate, counts):
    """The rate is what a slow consumer was promised."""
    pace, now_s = Pace(rate), 1000.0
    for count in counts:
        now_s += pace.wait_s(count, now_s)
    assert now_s - 1000.0 == pytest.approx(sum(counts[:-1]) / rate, abs=1e-6)


def test_source_that_was_late_may_catch_up_a_little():
    """A pause of a minute is not made up for in a flood."""
    pace = Pace(100)
    assert pace.wait_s(1, 1000.0) == 0
    waits = [pace.wait_s(1, 1060.0) for _ in range(12)]
    assert waits[:11] == [0] * 11
    assert waits[11] > 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01 00:00:01", 1_000_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00.5", 500_000_000),
        ("1970-01-01T00:00:00,000000001Z", 1),
        ("1969-12-31T23:59:59.75Z", -250_000_000),
        ("1970-01-02", 86_400_000_000_000),
        ("19700101T000000.5Z", 500_000_000),
        ("19691231T235959.75Z", -250_000_000),
    ],
)
def test_time_is_read_to_the_nanosecond(text, expected):
    """The standard library stops at microseconds, and ticks of a market do not."""
    assert parse_time(text) == expected


@pytest.mark.parametrize("value", ["", "noon", "12:00", "2013-13-01T00:00:00", 1.5, True, [], None])
def test_an_invalid_time_is_refused(value):
    """Better no message than one at the wrong time."""
    with pytest.raises(Misuse, match="time"):
        parse_time(value)
