"""Columns: the body of a messages frame, in Arrow's memory layout."""

import functools
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from rt.errors import FrameError
from rt.format.frame import HEADERS_COLUMN, KEYS_COLUMN, Codec, Header, unpack_body
from rt.format.headers import decode_headers

if sys.byteorder != "little" or array("I").itemsize != 4:
    raise ImportError(
        "rt writes arrays in the processor's byte order, and needs it to be little-endian"
    )


_PLAIN: Final = int(Codec.NONE)  # looking up a member takes 0.1 us
_LANE_BITS_MAX: Final = 16  # 256 KiB of offsets; larger constants are not cached
_FEW: Final = 100  # with fewer offsets, the long-integer arithmetic costs more than it saves


class Columns(NamedTuple):
    """The messages of one frame, column by column; the payloads are not copied."""

    messages: int
    times: memoryview  # i64[count], ns since the epoch
    offsets: memoryview  # u32[count + 1], into payload
    payload: memoryview
    key_offsets: memoryview | None  # u32[count + 1], into keys; None if the frame has no keys
    keys: memoryview
    # headers of each message; None if the frame has none
    headers: list[dict[str, bytes]] | None = None

    def payloads(self) -> list[bytes]:
        """Return a copy of each payload."""
        return _slices(self.payload, self.offsets)

    def message_keys(self) -> list[bytes]:
        """Return a copy of each key; all are empty if the frame has no keys."""
        if self.key_offsets is None:
            return [b""] * self.messages
        return _slices(self.keys, self.key_offsets)


def encode_columns(
    times_ns: Iterable[int],
    payloads: Sequence[bytes],
    keys: Sequence[bytes] | None = None,
    headers: Sequence[bytes] | None = None,
) -> bytes:
    """Encode messages as the body of a frame.

    Args:
        times_ns: publish time of each message, ns since the epoch.
        payloads: one for each message.
        keys: one for each message; None if no message has one.
        headers: the headers of each message, encoded by `rt.format.headers.encode_headers`; None if
            no message has any.
    """
    columns = [each for each in (payloads, keys, headers) if each is not None]
    parts = [array("q", times_ns).tobytes(), *map(_ends, columns)]
    for column in columns:
        parts += column
    return b"".join(parts)


def decode_columns(header: Header, raw: bytes | memoryview) -> Columns:
    """Decode the body of a messages frame; `FrameError` if the columns do not fill it exactly."""
    count, view = header.messages, memoryview(raw)
    with_keys = bool(header.columns & KEYS_COLUMN)
    with_headers = bool(header.columns & HEADERS_COLUMN)
    ends_bytes = 4 * (count + 1)
    start = 8 * count + ends_bytes * (1 + with_keys + with_headers)
    if start > len(view):
        raise FrameError("the columns are longer than the body")
    offsets = view[8 * count : 12 * count + 4].cast("I")
    key_offsets = view[12 * count + 4 :][:ends_bytes].cast("I") if with_keys else None
    header_offsets = view[start - ends_bytes : start].cast("I") if with_headers else None
    payload_end = start + _checked_end(offsets)
    keys_end = payload_end + (_checked_end(key_offsets) if key_offsets is not None else 0)
    end = keys_end + (_checked_end(header_offsets) if header_offsets is not None else 0)
    if end != len(view):
        raise FrameError("the columns do not add up to the body")
    return Columns(
        count,
        view[: 8 * count].cast("q"),
        offsets,
        view[start:payload_end],
        key_offsets,
        view[payload_end:keys_end],
        None if header_offsets is None else _decoded_headers(view[keys_end:], header_offsets),
    )


def check_columns(header: Header, body: bytes | memoryview) -> None:
    """Check that the columns of a messages frame fill its body exactly.

    Correct CRCs do not prove that the offsets are sound: a faulty or malicious writer can seal
    offsets that point outside the body. The check takes about 10 ns a message, plus decompression
    if the body is compressed, and about 1 us for each message that has headers.

    Args:
        header: the header of a frame of kind `MESSAGES`.
        body: the body as on disk, its CRC already checked.

    Raises:
        FrameError: says what is wrong.
    """
    decode_columns(header, body if header.codec == _PLAIN else unpack_body(header, body))


def _decoded_headers(data: memoryview, offsets: memoryview) -> list[dict[str, bytes]]:
    return list(map(decode_headers, _slices(data, offsets)))


def _ends(values: Sequence[bytes]) -> bytes:
    return array("I", accumulate(map(len, values), initial=0)).tobytes()


def _checked_end(offsets: memoryview) -> int:
    """Return the last offset; `FrameError` unless they start at 0 and never decrease.

    Arrow trusts offsets: one that decreases or points beyond the body would make it read other
    memory.
    """
    if len(offsets) < _FEW:
        values: list[int] = offsets.tolist()
        is_ascending = values == sorted(values)  # sorting a sorted list is one pass in C
    else:
        is_ascending = _ascends_wide(offsets)
    if offsets[0] or not is_ascending:
        raise FrameError("the offsets of the messages go back")
    end: int = offsets[-1]
    return end


def _ascends_wide(offsets: memoryview) -> bool:
    """Whether no offset is smaller than the one before it.

    One subtraction of two long integers compares all neighbours: 10 ns an offset, a third of the
    time of sorting, which creates an object for each offset. An offset is a 32-bit lane whose top
    bit is 0, since a body has at most 32 MiB. The top bit of each lane is set before the
    subtraction, so that no lane borrows from its neighbour. The subtraction clears that bit exactly
    where the next offset is smaller. The last lane has no next offset, so its bit is kept only if
    its offset is 0.
    """
    lanes = len(offsets)
    bits = lanes.bit_length()
    tops = _tops(bits) if bits <= _LANE_BITS_MAX else _tops_of(bits)
    tops >>= 32 * ((1 << bits) - lanes)
    every = int.from_bytes(offsets.cast("B"), "little")
    if every & tops:
        return False
    kept = ((every >> 32) + tops - every) & tops
    return kept.bit_count() == lanes - (offsets[-1] > 0)


def _tops_of(bits: int) -> int:
    """Return an integer of 2**bits lanes, of 32 bits each, with only each lane's top bit set."""
    return int.from_bytes(b"\0\0\0\x80" * (1 << bits), "little")


_tops: Final = functools.lru_cache(_LANE_BITS_MAX + 1)(_tops_of)


def _slices(data: memoryview, offsets: memoryview) -> list[bytes]:
    ends = offsets.tolist()
    return list(map(bytes(data).__getitem__, map(slice, ends, ends[1:])))
