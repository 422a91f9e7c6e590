"""Arrays: the wanted columns of many frames as one Arrow record batch, nothing done per message."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from struct import unpack_from
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rt.errors import FrameError
from rt.frame import KEYS_COLUMN
from rt.spark.options import Keys
from rt.spark.pieces import Piece

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_BIGINT: Final = pa.int64()


class Group:
    """Pieces that become one record batch; each column is made when it is asked for."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.counts = [piece.last - piece.first for piece in pieces]
        self.messages = sum(self.counts)

    @cached_property
    def position(self) -> Any:
        """Positions, bigint."""
        return self._consecutive([piece.position + piece.first for piece in self.pieces])

    @cached_property
    def seq(self) -> Any:
        """Sequence numbers, bigint."""
        return self._consecutive([piece.header.sequence + piece.first for piece in self.pieces])

    @cached_property
    def number(self) -> Any:
        """Message numbers, bigint."""
        return self._consecutive([piece.number for piece in self.pieces])

    @cached_property
    def time_ns(self) -> Any:
        """Publish times, ns, bigint."""
        return _fixed(self._times, _BIGINT)

    @cached_property
    def time(self) -> Any:
        """Publish times, timestamp."""
        return _fixed(self._times // 1000, _TIMESTAMP)

    @cached_property
    def merge_time(self) -> Any:
        """Merge times, timestamp; null in a session."""
        times = [piece.merge_time_ns for piece in self.pieces]
        if None in times:
            return _nulls(_TIMESTAMP, self.messages)
        return _fixed(np.repeat(np.array(times, "i8") // 1000, self.counts), _TIMESTAMP)

    @cached_property
    def session(self) -> Any:
        """Sessions, string."""
        names = [piece.session for piece in self.pieces]
        if names.count(names[0]) == len(names):
            return _repeated(names[0], self.messages)
        texts = [name.encode() for name in names]
        ends = np.zeros(self.messages + 1, "i4")
        np.cumsum(np.repeat([*map(len, texts)], self.counts), dtype="i4", out=ends[1:])
        data = b"".join([text * count for text, count in zip(texts, self.counts, strict=True)])
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.string(), self.messages, buffers)

    @cached_property
    def payload(self) -> Any:
        """Payloads, binary."""
        starts = map(_columns_end, self.pieces)
        return _binary(self._payload_offsets, self.pieces, list(starts))

    @cached_property
    def payload_size(self) -> Any:
        """Lengths of the payloads, int."""
        return _fixed(self._payload_offsets.lengths, pa.int32())

    @cached_property
    def key(self) -> Any:
        """Keys, binary; null where a message has none."""
        keyed = [piece for piece in self.pieces if piece.header.columns & KEYS_COLUMN]
        if not keyed:
            return _nulls(pa.binary(), self.messages)
        if len(keyed) < len(self.pieces):
            return pa.concat_arrays([Group([piece]).key for piece in self.pieces])
        offsets = _Offsets(keyed, _key_offsets_begin)
        array = _binary(offsets, keyed, [_keys_begin(piece) for piece in keyed])
        empty = offsets.lengths == 0
        return pc.if_else(pa.array(~empty), array, None) if empty.any() else array

    def mask(self, keys: Keys) -> Any:
        """Which messages have a wanted key."""
        wanted = pc.is_in(self.key, value_set=pa.array(keys.exact, pa.binary()))
        for prefix in keys.prefixes:
            begins = pc.starts_with(self.key, prefix)
            wanted = pc.or_(wanted, pc.fill_null(begins, fill_value=False))
        return wanted

    def check(self) -> None:
        """Raise `FrameError` if the columns of a piece do not add up to its body."""
        for piece in self.pieces:
            _check_ends(piece)

    @cached_property
    def _times(self) -> Any:
        parts = [piece.raw[8 * piece.first : 8 * piece.last] for piece in self.pieces]
        return np.frombuffer(_joined(parts), "<i8")

    @cached_property
    def _payload_offsets(self) -> "_Offsets":
        return _Offsets(self.pieces, _payload_offsets_begin)

    def _consecutive(self, firsts: list[int]) -> Any:
        runs: list[list[int]] = []  # where they begin, and how many follow one another from there
        for first, count in zip(firsts, self.counts, strict=True):
            if runs and sum(runs[-1]) == first:
                runs[-1][1] += count
            else:
                runs.append([first, count])
        values, at, ramp = np.empty(self.messages, "i8"), 0, _ramp(self.messages)
        for first, count in runs:
            np.add(ramp[:count], first, out=values[at : at + count])
            at += count
        return _fixed(values, _BIGINT)


class _Offsets:
    """One offsets column of many pieces: checked, and made to go on from piece to piece."""

    def __init__(self, pieces: Sequence[Piece], begin: Callable[[Piece], int]) -> None:
        self.ends = np.zeros(sum(map(len, pieces)) + 1, "i4")
        self.cuts: list[tuple[int, int]] = []  # where the bytes of each piece begin and end
        at = total = 0
        for piece in pieces:
            count = len(piece)
            column = np.frombuffer(piece.raw, "<i4", count + 1, begin(piece) + 4 * piece.first)
            first, last = int(column[0]), int(column[count])
            if not 0 <= first <= last:
                raise FrameError("the offsets of the messages go back")
            np.add(column[1:], total - first, out=self.ends[at + 1 : at + count + 1])
            self.cuts.append((first, last))
            total += last - first
            at += count
        # from 0 to the end without a step back: none of them points elsewhere
        if (self.ends[1:] < self.ends[:-1]).any():
            raise FrameError("the offsets of the messages go back")

    @property
    def lengths(self) -> Any:
        """The bytes of each message."""
        return self.ends[1:] - self.ends[:-1]


# What does not depend on the log is made once, as long as it may be needed, and sliced.


@lru_cache(maxsize=4)
def _ramp_up_to(count: int) -> Any:
    return np.arange(count, dtype="i8")


@lru_cache(maxsize=4)
def _repeated_up_to(text: str, count: int) -> Any:
    return pa.repeat(pa.scalar(text, pa.string()), count)


@lru_cache(maxsize=4)
def _nulls_up_to(kind: Any, count: int) -> Any:
    return pa.nulls(count, kind)


def _ramp(count: int) -> Any:
    """At least so many whole numbers from 0 on."""
    return _ramp_up_to(_rounded(count))


def _repeated(text: str, count: int) -> Any:
    return _repeated_up_to(text, _rounded(count))[:count]


def _nulls(kind: Any, count: int) -> Any:
    return _nulls_up_to(kind, _rounded(count))[:count]


def _rounded(count: int) -> int:
    return 1 << max(12, count.bit_length())


def _binary(offsets: _Offsets, pieces: Sequence[Piece], starts: list[int]) -> Any:
    parts = [
        memoryview(piece.raw)[start + first : start + last]
        for piece, start, (first, last) in zip(pieces, starts, offsets.cuts, strict=True)
    ]
    data = _joined(parts)
    if len(data) != offsets.ends[-1]:
        raise FrameError("the offsets of the messages lead out of the body")
    buffers = [None, pa.py_buffer(offsets.ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets.ends) - 1, buffers)


def _fixed(values: Any, kind: Any) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _joined(parts: Sequence[bytes | memoryview]) -> bytes | memoryview:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _payload_offsets_begin(piece: Piece) -> int:
    return 8 * piece.header.messages


def _key_offsets_begin(piece: Piece) -> int:
    return 12 * piece.header.messages + 4


def _columns_end(piece: Piece) -> int:
    count = piece.header.messages
    with_keys = 4 * (count + 1) if piece.header.columns & KEYS_COLUMN else 0
    return 12 * count + 4 + with_keys


def _keys_begin(piece: Piece) -> int:
    payload_bytes: int = unpack_from("<I", piece.raw, 12 * piece.header.messages)[0]
    return _columns_end(piece) + payload_bytes


def _check_ends(piece: Piece) -> None:
    """The first offset is 0 and the last ones reach the end of the body: all else lies between."""
    raw, count, total = piece.raw, piece.header.messages, _columns_end(piece)
    if total > len(raw):
        raise FrameError("the columns are longer than the body")
    columns = [_payload_offsets_begin(piece)]
    if piece.header.columns & KEYS_COLUMN:
        columns.append(_key_offsets_begin(piece))
    for at in columns:
        if unpack_from("<I", raw, at)[0]:
            raise FrameError("the offsets of the messages go back")
        total += unpack_from("<I", raw, at + 4 * count)[0]
    if total != len(raw):
        raise FrameError("the columns do not add up to the body")
