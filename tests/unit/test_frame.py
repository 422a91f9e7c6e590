"""Frame: what is written is what is read, and anything else ends in one named error."""

import struct
import tracemalloc
from zlib import crc32

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from logs import make_frame

from rt.errors import FrameError
from rt.format.columns import encode_columns
from rt.format.frame import (
    HEADER_BYTES,
    MAGIC,
    NUMBER_END,
    Codec,
    FrameKind,
    body_matches,
    encode_frame,
    parse_header,
    seal_header,
    unpack_body,
)
from rt.limits import BODY_BYTES_MAX, MIB

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
HEADER = make_frame(4096, [b"AA1", b"B6 2"], sequence=7).header


def zipped(body, **fields):
    """Return a header that claims zstd, and its body, whatever that is."""
    known = HEADER._replace(length=len(body), body_crc=crc32(body), codec=Codec.ZSTD, messages=1)
    return known._replace(**fields), body


@given(
    U64,
    st.integers(0, NUMBER_END),
    st.integers(-(1 << 63), (1 << 63) - 1),
    U64,
    st.binary(max_size=200),
    U32,
)
def test_every_field_of_a_header_survives(position, sequence, time_ns, durable, body, tag):
    """Each later hop believes what this says of the frame."""
    frame = encode_frame(
        body, position=position, sequence=sequence, time_ns=time_ns, messages=0,
            kind=FrameKind.CONTROL,
        durable=durable, session_tag=tag,
    )  # fmt: skip
    read = parse_header(b"".join(frame.parts))
    assert read == frame.header
    assert (read.position, read.sequence, read.time_ns, read.durable) == (
        position, sequence, time_ns, durable,
    )  # fmt: skip
    assert body_matches(read, body)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_not_a_frame(data):
    """A parser that fails in any other way takes a node down with it."""
    with pytest.raises(FrameError):
        parse_header(data)


@given(st.binary(min_size=56, max_size=56))
def test_arbitrary_fields_under_a_good_seal_end_in_a_header_or_a_named_error(fields):
    """The CRC is a wall that random bytes do not pass; a hostile peer computes it."""
    data = MAGIC + crc32(fields).to_bytes(4, "little") + fields
    try:
        header = parse_header(data)
    except FrameError:
        return
    assert seal_header(header) == data
    assert header.length <= BODY_BYTES_MAX
    assert header.raw_length <= BODY_BYTES_MAX
    assert header.size <= BODY_BYTES_MAX + HEADER_BYTES + 8


def test_every_flipped_bit_of_a_header_is_found():
    """A disk flips one bit; a wrong position or length must not get through."""
    data = seal_header(HEADER)
    for bit in range(8 * HEADER_BYTES):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            parse_header(flipped)


def test_a_header_whose_reserved_byte_is_set_is_refused():
    """A later version may give it a meaning, and this one would read its frames wrongly."""
    data = bytearray(seal_header(HEADER))
    data[59] = 1
    data[4:8] = crc32(data[8:]).to_bytes(4, "little")
    with pytest.raises(FrameError, match="does not know"):
        parse_header(data)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kind": 3}, "does not know"),
        ({"codec": 2}, "does not know"),
        ({"columns": 4}, "column"),
        ({"length": BODY_BYTES_MAX + 1}, "longer"),
        ({"raw_length": BODY_BYTES_MAX + 1, "codec": 1}, "longer"),
        ({"raw_length": 30}, "contradicts"),
        ({"messages": 0}, "count"),
        ({"messages": 1 << 30}, "count"),
        ({"messages": 1, "kind": FrameKind.CONTROL}, "numbers"),
        ({"sequence": NUMBER_END - 1}, "numbers"),
        ({"sequence": (1 << 64) - 1}, "numbers"),
    ],
)
def test_an_impossible_sealed_header_is_refused(fields, reason):
    """A good CRC does not prove that it makes sense; lengths are checked before use."""
    with pytest.raises(FrameError, match=reason):
        parse_header(seal_header(HEADER._replace(**fields)))


def test_another_version_is_named_and_zeros_are_not_a_frame():
    """After an upgrade the message must say so; a preallocated tail is an end, not a frame."""
    data = bytearray(seal_header(HEADER))
    data[3] += 1
    with pytest.raises(FrameError, match="version"):
        parse_header(data)
    with pytest.raises(FrameError, match="no frame starts here"):
        parse_header(bytes(HEADER_BYTES))


def test_a_field_out_of_its_bounds_is_refused_before_it_is_written():
    """What could not be read back must not reach the disk."""
    with pytest.raises(FrameError, match="bounds"):
        seal_header(HEADER._replace(sequence=-1))
    with pytest.raises(FrameError, match="longer"):
        encode_frame(bytes(BODY_BYTES_MAX + 1), position=0, sequence=0, time_ns=0, messages=1)
    with pytest.raises(FrameError, match="63 bits"):
        encode_frame(b"", position=0, sequence=NUMBER_END - 1, time_ns=0, messages=2)


def test_a_frame_is_never_shorter_than_its_messages_and_a_range_need_not_be():
    """Message positions are frame position + i; they must not reach into the next frame."""
    many = encode_frame(
        encode_columns([0] * 5000, [b""] * 5000), position=0, sequence=0, time_ns=0, messages=5000,
        compressor=zstandard.ZstdCompressor(level=1),
    )  # fmt: skip
    assert many.header.length < 5000 <= many.header.size
    assert sum(map(len, many.parts)) == many.header.size
    adds = encode_frame(b"12345678", position=0, sequence=0, time_ns=0, messages=5000, kind=1)
    assert adds.header.size == 72


def test_a_body_that_does_not_shrink_is_stored_plain():
    """Compression may be on for a stream of pictures; it must not cost space."""
    compressor = zstandard.ZstdCompressor(level=3)
    fields = {"position": 0, "sequence": 0, "time_ns": 0, "messages": 1, "compressor": compressor}
    plain = encode_frame(b"0123456789abcdef", **fields)
    assert plain.header.codec == Codec.NONE
    packed = encode_frame(bytes(1000), **fields)
    assert packed.header.codec == Codec.ZSTD
    assert unpack_body(packed.header, packed.parts[1]) == bytes(1000)


RAW = b"departed " * 1000
PACKED = zstandard.ZstdCompressor(level=3).compress(RAW)


@pytest.mark.parametrize(
    ("body", "raw_length"),
    [
        pytest.param(PACKED, len(RAW) - 1, id="the header states less"),
        pytest.param(PACKED, len(RAW) + 1, id="the header states more"),
        pytest.param(
            zstandard.ZstdCompressor(write_content_size=False).compress(RAW), len(RAW),
            id="no size stated",
        ),
        pytest.param(PACKED + PACKED, len(RAW), id="a second frame after it"),
        pytest.param(PACKED + b"\0", len(RAW), id="a byte after it"),
        pytest.param(PACKED[:-1], len(RAW), id="cut short"),
        pytest.param(b"", 0, id="empty"),
        pytest.param(b"\x50\x2a\x4d\x18\x00\x00\x00\x00", 8, id="a skippable frame"),
        pytest.param(RAW, len(RAW), id="not zstd at all"),
    ],
)  # fmt: skip
def test_a_compressed_body_that_lies_is_refused(body, raw_length):
    """The library ignores a caller's limit if a size is stated, and drops a second frame."""
    header, body = zipped(body, raw_length=raw_length)
    with pytest.raises(FrameError):
        unpack_body(header, body)


def test_a_forged_content_size_is_refused():
    """The frame states what the header does, and holds something else."""
    forged = bytearray(zstandard.ZstdCompressor(level=3).compress(bytes(300)))
    at = forged.index(struct.pack("<H", 300 - 256))
    forged[at : at + 2] = struct.pack("<H", 200)
    header, body = zipped(bytes(forged), raw_length=200 + 256)
    with pytest.raises(FrameError):
        unpack_body(header, body)


@pytest.mark.parametrize("window_log", [26, 27, 31])
def test_a_huge_window_is_refused_before_it_is_allocated(window_log):
    """14 bytes may demand 128 MiB and more of their reader."""
    # magic, descriptor (4-byte content size, no single segment), window, size, last empty block
    body = b"\x28\xb5\x2f\xfd\x80" + bytes([(window_log - 10) << 3]) + struct.pack("<I", 64)
    header, body = zipped(body + b"\x01\x00\x00", raw_length=64)
    tracemalloc.start()
    with pytest.raises(FrameError):
        unpack_body(header, body)
    assert tracemalloc.get_traced_memory()[1] < MIB
    tracemalloc.stop()


def test_a_bomb_is_refused_without_being_opened():
    """1 GiB of zeros is 32 KiB of zstd."""
    compressor = zstandard.ZstdCompressor(level=3).compressobj(size=1 << 30)
    chunk = bytes(16 * MIB)
    body = b"".join([compressor.compress(chunk) for _ in range(64)] + [compressor.flush()])
    tracemalloc.start()
    for raw_length in (64, BODY_BYTES_MAX):
        header, body = zipped(body, raw_length=raw_length)
        with pytest.raises(FrameError, match="size"):
            unpack_body(header, body)
    assert tracemalloc.get_traced_memory()[1] < MIB
    tracemalloc.stop()


@given(st.binary(max_size=100), st.integers(0, 1000))
def test_arbitrary_compressed_bytes_end_in_a_named_error(body, raw_length):
    """The CRC matches, the peer is hostile: still no other exception."""
    header, body = zipped(body, raw_length=raw_length)
    try:
        assert len(unpack_body(header, body)) == raw_length
    except FrameError:
        return
