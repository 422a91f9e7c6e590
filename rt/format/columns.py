"""Columns: the body of a messages frame, laid out as Arrow arrays want it."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from rt.errors import FrameError
from rt.format.frame import KEYS_COLUMN, Header

if sys.byteorder != "little" or array("I").itemsize != 4:
    raise ImportError("rt writes arrays as the processor holds them and needs a little-endian one")


class Columns(NamedTuple):
    """The messages of one frame, column by column, without a copy of the payloads."""

    messages: int
    times: memoryview  # i64[count], ns since the epoch
    offsets: memoryview  # u32[count + 1], into payload
    payload: memoryview
    key_offsets: memoryview | None  # u32[count + 1], into keys; None where the frame has no keys
    keys: memoryview

    def payloads(self) -> list[bytes]:
        """Return every payload as bytes of its own."""
        return _slices(self.payload, self.offsets)

    def message_keys(self) -> list[bytes]:
        """Return every key; all empty where the frame has no keys."""
        if self.key_offsets is None:
            return [b""] * self.messages
        return _slices(self.keys, self.key_offsets)


def encode_columns(
    times_ns: Iterable[int], payloads: Sequence[bytes], keys: Sequence[bytes] | None = None
) -> bytes:
    """Lay out messages as the body of a frame; `keys` is None where no message has one."""
    times = array("q", times_ns).tobytes()
    if keys is None:
        return b"".join((times, _ends(payloads), *payloads))
    return b"".join((times, _ends(payloads), _ends(keys), *payloads, *keys))


def decode_columns(header: Header, raw: bytes | memoryview) -> Columns:
    """Read the body of a messages frame; `FrameError` if its columns do not add up to it."""
    count, view = header.messages, memoryview(raw)
    with_keys = bool(header.columns & KEYS_COLUMN)
    start = 8 * count + 4 * (count + 1) * (1 + with_keys)
    if start > len(view):
        raise FrameError("the columns are longer than the body")
    offsets = view[8 * count : 12 * count + 4].cast("I")
    key_offsets = view[12 * count + 4 : start].cast("I") if with_keys else None
    payload_end = start + _checked_end(offsets)
    keys_end = payload_end + (_checked_end(key_offsets) if key_offsets is not None else 0)
    if keys_end != len(view):
        raise FrameError("the columns do not add up to the body")
    return Columns(
        count,
        view[: 8 * count].cast("q"),
        offsets,
        view[start:payload_end],
        key_offsets,
        view[payload_end:keys_end],
    )


def _ends(values: Sequence[bytes]) -> bytes:
    return array("I", accumulate(map(len, values), initial=0)).tobytes()


def _checked_end(offsets: memoryview) -> int:
    values: list[int] = offsets.tolist()
    # sorting what is sorted is one pass in C; an unsorted column would let Arrow read elsewhere
    if values[0] != 0 or values != sorted(values):
        raise FrameError("the offsets of the messages go back")
    return values[-1]


def _slices(data: memoryview, offsets: memoryview) -> list[bytes]:
    ends = offsets.tolist()
    return list(map(bytes(data).__getitem__, map(slice, ends, ends[1:])))
