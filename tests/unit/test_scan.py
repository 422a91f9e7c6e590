"""Scan: whole frames out of a file that may still be growing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import make_frame

from rt.errors import FrameError
from rt.format.scan import Scan, next_header
from rt.format.walk import Walk
from rt.position import Position


def image(*counts, size=3):
    """Return the bytes of a session with frames of so many messages."""
    data, sequence = b"", 0
    for count in counts:
        data += b"".join(make_frame(len(data), [b"x" * size] * count, sequence=sequence).parts)
        sequence += count
    return data


def reader(data):
    """Return `read(length, offset)` over bytes."""
    return lambda length, offset: data[offset : offset + length]


def scan_of(data):
    """Return a scan from the start of a session's bytes."""
    return Scan(reader(data), Walk(Position(0), merged=False, session="jfk"))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.data())
def test_a_growing_file_gives_the_same_frames_as_a_whole_one(counts, data):
    """A reader that follows must not miss, repeat or split a frame, wherever the file ends now."""
    whole = image(*counts)
    ends = sorted({*data.draw(st.lists(st.integers(0, len(whole)))), len(whole)})
    scan, grown = scan_of(whole), []
    for end in ends:
        while frame := scan.next(end):
            grown.append((frame.position, frame.header, bytes(frame.body)))
    every = scan_of(whole)
    assert grown == [
        (frame.position, frame.header, bytes(frame.body))
        for frame in iter(lambda: every.next(len(whole)), None)
    ]
    assert [header.messages for _, header, _ in grown] == counts


@given(st.binary(min_size=64, max_size=400))
def test_arbitrary_bytes_end_in_a_named_error(data):
    """Any other exception would stop the reader."""
    with pytest.raises(FrameError):
        scan_of(data).next(len(data))


def test_no_more_is_read_than_there_is():
    """A follower of a slow stream reads one frame at a time, and would allocate 1 MiB each time."""
    data, lengths = image(1, 1), []
    frame_bytes = len(data) // 2

    def read(length, offset):
        lengths.append(length)
        return data[offset : offset + length]

    scan = Scan(read, Walk(Position(0), merged=False, session="jfk"))
    assert scan.next(frame_bytes) is not None
    assert scan.next(frame_bytes) is None
    assert scan.next(len(data)) is not None
    assert lengths == [frame_bytes, frame_bytes]


def test_a_frame_larger_than_one_read_is_given_whole():
    """Messages may have 16 MiB; a read has one."""
    data = image(1, 1, 1, size=3 << 20)
    scan = scan_of(data)
    assert [scan.next(len(data)).header.sequence for _ in range(3)] == [0, 1, 2]
    assert scan.next(len(data)) is None


def test_padding_that_is_not_zero_is_damage():
    """No byte of a log is outside every check."""
    data = bytearray(image(1))
    assert data[-1] == 0
    data[-1] = 1
    with pytest.raises(FrameError, match="padding"):
        scan_of(bytes(data)).next(len(data))


def test_a_bad_frame_leaves_the_scan_where_it_is_and_can_be_read_again():
    """A tail may be bad only because it is being written; the next look may find it whole."""
    good = image(2)
    data = bytearray(good)
    data[80] ^= 1
    scan = Scan(
        lambda length, offset: bytes(data[offset : offset + length]),
        Walk(Position(0), merged=False),
    )
    with pytest.raises(FrameError, match="body"):
        scan.next(len(data))
    assert scan.walk.position == 0
    data[80] ^= 1
    scan.forget()
    assert scan.next(len(data)).header.messages == 2


def test_headers_alone_lead_through_a_file_without_its_payload():
    """The merge looks at headers; reading payloads would cost a second copy of everything."""
    data, reads = image(3, 4, size=5000), []

    def read(length, offset):
        reads.append(length)
        return data[offset : offset + length]

    walk = Walk(Position(0), merged=False)
    assert next_header(read, walk, len(data)).messages == 3
    assert next_header(read, walk, len(data) - 1) is None
    assert next_header(read, walk, len(data)).messages == 4
    assert next_header(read, walk, len(data)) is None
    assert max(reads) == 64
