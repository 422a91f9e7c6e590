"""Bodies of frames: read to where a record batch wants them, and only if they are right."""

import os
from random import Random

import pytest
from logs import make_frame

from rt.errors import FrameError
from rt.format.frame import HEADER_BYTES, KEYS_COLUMN, encode_frame
from rt.log.files.disk import OsDisk
from rt.position import Position
from rt.spark.reading.arrays import PieceGroup
from rt.spark.reading.bodies import Block, BodyReader
from rt.spark.reading.pieces import Piece
from rt.spark.reading.storage import Ahead

LARGE = 40_000  # bytes of a payload whose frame is read by a read of its own


def reader(path, data, block):
    """A reader of the bodies in a file that holds `data`."""
    with open(path, "wb") as file:
        file.write(data)
    file = OsDisk().open_read(path)
    return BodyReader(file, Ahead(file.pread), block)


def framed(count, size, keys=None, level=0):
    """Consecutive frames of three random messages each: their headers, and all bytes."""
    random, headers, data = Random(size), [], b""
    for _ in range(count):
        payloads = [random.randbytes(size) for _ in range(3)]
        frame = make_frame(len(data), payloads, keys=keys, level=level)
        headers.append(frame.header)
        data += b"".join(frame.parts)
    return headers, data


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("keys", [None, [b"a", b"", b"cc"]])
@pytest.mark.parametrize("level", [0, 3])
def test_payloads_of_many_frames_are_read_to_where_the_batch_wants_them(
    tmp_path, size, keys, level
):
    """With keys between them too: joining them by a copy costs a tenth of a scan."""
    headers, data = framed(4, size, keys, level)
    block = Block(1 << 20)
    bodies = reader(tmp_path / "log", data, block)
    pieces = [
        Piece(each, bodies.read(each, each.position), Position(0), "jfk", None, 0, 3, 0)
        for each in headers
    ]
    random = Random(size)
    group = PieceGroup(pieces)
    assert group.payload.to_pylist() == [random.randbytes(size) for _ in range(12)]
    assert group.key.to_pylist() == [key or None for key in keys or [None] * 3] * 4
    assert group.payload.buffers()[2].address == PieceGroup(pieces[:1]).payload.buffers()[2].address
    assert block.used == 12 * size


def test_payloads_that_are_cut_or_of_two_blocks_are_joined(tmp_path):
    """A start inside a frame, and frames that are larger than what is left of a block."""
    headers, data = framed(3, 400_000)
    bodies = reader(tmp_path / "log", data, Block(0))
    bounds = [(1, 3), (0, 2), (2, 3)]
    pieces = [
        Piece(each, bodies.read(each, each.position), Position(0), "jfk", None, *bound, 0)
        for each, bound in zip(headers, bounds, strict=True)
    ]
    random = Random(400_000)
    payloads = [random.randbytes(400_000) for _ in range(9)]
    wanted = [payloads[1], payloads[2], payloads[3], payloads[4], payloads[8]]
    assert PieceGroup(pieces).payload.to_pylist() == wanted


@pytest.mark.parametrize("size", [10, LARGE])
def test_unwanted_payloads_are_checked_in_one_place(tmp_path, size):
    """Their sizes, times and keys are right all the same, and their memory stays in the cache."""
    headers, data = framed(4, size, [b"a", b"", b"cc"])
    bodies = reader(tmp_path / "log", data, block := Block(0, keeps=False))
    pieces = [
        Piece(each, bodies.read(each, each.position), Position(0), "jfk", None, 0, 3, 0)
        for each in headers
    ]
    group = PieceGroup(pieces)
    assert group.payload_size.to_pylist() == [size] * 12
    assert group.key.to_pylist() == [b"a", None, b"cc"] * 4
    assert block.used == 0
    changed = bytearray(data)
    changed[-20] ^= 1
    with pytest.raises(FrameError, match=r"CRC|padding"):
        reader(tmp_path / "log", changed, block).read(headers[-1], headers[-1].position)


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_body_that_was_changed_is_refused_and_takes_no_room(tmp_path, size):
    """Wherever the byte is: in the columns, the payloads or the padding."""
    (header,), data = framed(1, size)
    random, block = Random(1), Block(1 << 20)
    places = {*range(HEADER_BYTES, 120), *range(len(data) - 20, len(data))}
    for place in places | {random.randrange(HEADER_BYTES, len(data)) for _ in range(20)}:
        changed = bytearray(data)
        changed[place] ^= 1 + random.randrange(255)
        with pytest.raises(FrameError, match=r"CRC|padding"):
            reader(tmp_path / "log", changed, block).read(header, 0)
    assert block.used == 0


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_body_that_is_cut_off_is_refused(tmp_path, size):
    """As where the archiver cuts the file while it is read."""
    (header,), data = framed(1, size)
    for length in (0, HEADER_BYTES, HEADER_BYTES + 30, len(data) - 1):
        with pytest.raises(FrameError, match="incomplete"):
            reader(tmp_path / "log", data[:length], Block(0)).read(header, 0)


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("place", [0, 3, 4, 7])
def test_columns_that_do_not_fit_their_body_are_refused(tmp_path, size, place):
    """A writer can seal any nonsense: a first offset above 0, or last ones that miss the end."""
    body = bytearray(make_frame(0, [os.urandom(size)] * 3, keys=[b"k"] * 3).parts[1])
    body[24 + 4 * place] ^= 1
    frame = encode_frame(
        bytes(body), position=0, sequence=0, time_ns=0, messages=3, columns=KEYS_COLUMN
    )
    bodies = reader(tmp_path / "log", b"".join(frame.parts), Block(0))
    with pytest.raises(FrameError, match=r"go back|add up"):
        bodies.read(frame.header, 0)
    sealed = encode_frame(bytes(40), position=0, sequence=0, time_ns=0, messages=3)
    header = sealed.header._replace(columns=KEYS_COLUMN)
    with pytest.raises(FrameError, match="longer than the body"):
        reader(tmp_path / "log", b"".join(sealed.parts), Block(0)).read(header, 0)
