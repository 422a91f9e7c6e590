"""Columns: messages as Arrow arrays want them, and no offset that would read elsewhere."""

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import TIME_NS, make_frame

from rt.errors import FrameError, Misuse
from rt.format.columns import (
    check_columns,
    decode_columns,
    encode_columns,
)
from rt.format.frame import HEADERS_COLUMN, KEYS_COLUMN
from rt.format.headers import decode_headers, encode_headers

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


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
HEADERS = st.dictionaries(NAMES, st.binary(max_size=40), max_size=5)


@given(st.lists(st.tuples(TIMES, st.binary(max_size=30), HEADERS), min_size=1), st.booleans())
def test_headers_survive_beside_keys_and_without(messages, with_keys):
    """A bridge keeps there where a message is from; what is lost there doubles messages."""
    times, payloads, headers = (list(column) for column in zip(*messages, strict=True))
    keys = payloads if with_keys else None
    frame = HEADER._replace(
        messages=len(messages), columns=HEADERS_COLUMN | (KEYS_COLUMN if with_keys else 0)
    )
    cells = list(map(encode_headers, headers))
    columns = decode_columns(frame, encode_columns(times, payloads, keys, cells))
    assert columns.headers == headers
    assert columns.payloads() == payloads
    assert columns.message_keys() == (keys or [b""] * len(messages))


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_headers_that_encode_to_the_same_or_a_named_error(cell):
    """There is one way to write a set of headers: two readers cannot see two."""
    try:
        headers = decode_headers(cell)
    except FrameError:
        return
    assert encode_headers(headers) == cell


@given(HEADERS, st.data())
def test_headers_with_a_changed_byte_or_cut_off_end_in_headers_or_a_named_error(headers, data):
    """A publisher may seal anything."""
    cell = bytearray(encode_headers(headers) + b"\1\1\0zx" * data.draw(st.integers(0, 1)))
    for _ in range(data.draw(st.integers(0, 2)) if cell else 0):
        cell[data.draw(st.integers(0, len(cell) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(cell[: data.draw(st.integers(0, len(cell)))])
    try:
        assert encode_headers(decode_headers(cut)) == cut
    except FrameError:
        return


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (b"\1", "cut off"),
        (b"\1\0\0", "cut off"),
        (b"\1\2\0ax", "cut off"),
        (b"\0\1\0x", "cut off"),
        (b"\1\0\0b\1\0\0a", "not in order"),
        (b"\1\0\0a\1\0\0a", "not in order"),
        (b"\1\0\0\xff", "not UTF-8"),
        (b"".join(b"\1\0\0" + bytes([each]) for each in range(1, 66)), "more than 64"),
        (b"\1\0\x40a" + bytes(1 << 14), "longer than 16384"),
    ],
)
def test_headers_that_no_writer_of_ours_makes_are_refused(cell, reason):
    """Names that repeat, or lengths that lead out of a message, would be read in two ways."""
    with pytest.raises(FrameError, match=reason):
        decode_headers(cell)
    frame = HEADER._replace(messages=1, columns=HEADERS_COLUMN)
    with pytest.raises(FrameError, match=reason):
        check_columns(frame, encode_columns([0], [b""], None, [cell]))


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"": b""}, "1 to 255 bytes, not 0"),
        ({"a" * 256: b""}, "not 256"),
        ({7: b""}, "a text, not int"),
        ({"\ud800": b""}, "not UTF-8"),
        ({"a": "text"}, "header 'a' is bytes, not str; encode it first"),
        ({str(each): b"" for each in range(65)}, "65 headers; use 64 at most"),
        ({"a": bytes(1 << 14)}, "take 16388 bytes; use 16384 at most"),
        ([("a", b"")], "a mapping of names to bytes, not list"),
    ],
)
def test_a_publisher_is_told_what_is_wrong_with_headers(headers, words):
    """One clear error where the mistake is made, and nothing was taken."""
    with pytest.raises(Misuse, match=words):
        encode_headers(headers)


def test_the_longest_headers_are_taken():
    """A limit is the most that works."""
    headers = {"a": bytes((1 << 14) - 4)}
    assert decode_headers(encode_headers(headers)) == headers


@given(st.binary(max_size=300), st.integers(1, 25), st.integers(0, 3))
def test_arbitrary_bytes_end_in_columns_or_a_named_error(data, count, which):
    """Arrow trusts offsets: one that goes back or beyond would read foreign memory."""
    try:
        columns = decode_columns(HEADER._replace(messages=count, columns=which), data)
    except FrameError:
        return
    assert len(columns.payloads()) == len(columns.message_keys()) == count
    assert columns.headers is None or len(columns.headers) == count
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
def test_offsets_that_go_back_are_found_in_long_columns_as_in_short_ones(values, is_sorted):
    """Many offsets are compared by arithmetic on long integers: a borrow would hide a fault."""
    values = sorted(values) if is_sorted else values
    offsets = array("I", [0, *values]).tobytes()
    reason = "go back" if values != sorted(values) else "add up"
    with pytest.raises(FrameError, match=reason):  # as the payloads end after all of them
        check_columns(
            HEADER._replace(messages=len(values)),
            bytes(8 * len(values)) + offsets + bytes(values[-1] + 1 if values[-1] < 9 else 1),
        )


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
