"""Arrays: makes one Arrow record batch of many frames, without work for each message."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from struct import unpack_from
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rt.errors import FrameError
from rt.format.frame import HEADERS_COLUMN, KEYS_COLUMN
from rt.format.headers import decode_headers
from rt.format.message import headers_to_arrow
from rt.spark.reading.bodies import headers_begin
from rt.spark.reading.options import Keys
from rt.spark.reading.pieces import Piece

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_BIGINT: Final = pa.int64()


class PieceGroup:
    """Pieces that become one record batch; each column is made when it is requested."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.counts = [piece.last - piece.first for piece in pieces]
        self.messages = sum(self.counts)

    @cached_property
    def position(self) -> Any:
        """Return the messages' positions as a bigint column."""
        return self._consecutive([piece.position + piece.first for piece in self.pieces])

    @cached_property
    def seq(self) -> Any:
        """Return the messages' sequence numbers as a bigint column."""
        return self._consecutive([piece.header.sequence + piece.first for piece in self.pieces])

    @cached_property
    def number(self) -> Any:
        """Return the messages' numbers in the log as a bigint column."""
        return self._consecutive([piece.number for piece in self.pieces])

    @cached_property
    def time_ns(self) -> Any:
        """Return the publish times in ns as a bigint column."""
        return _fixed(self._times, _BIGINT)

    @cached_property
    def time(self) -> Any:
        """Return the publish times as a timestamp column."""
        return _fixed(self._times // 1000, _TIMESTAMP)

    @cached_property
    def merge_time(self) -> Any:
        """Return the merge times as a timestamp column; null in a session's log."""
        times = [piece.merge_time_ns for piece in self.pieces]
        if None in times:
            return _nulls(_TIMESTAMP, self.messages)
        return _fixed(np.repeat(np.array(times, "i8") // 1000, self.counts), _TIMESTAMP)

    @cached_property
    def session(self) -> Any:
        """Return the messages' sessions as a string column."""
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
    def stream(self) -> Any:
        """Return the stream of all pieces as a string column; they come from one log."""
        log = self.pieces[0].log
        return _repeated(log.stream, self.messages) if log else self.corrupt

    @cached_property
    def file(self) -> Any:
        """Return the paths of the messages' log files as a string column."""
        log = self.pieces[0].log
        directory = "" if log is None else log.path + "/"
        names = [directory + piece.position.file_name for piece in self.pieces]
        if names.count(names[0]) == len(names):
            return _repeated(names[0], self.messages)
        return pa.array(names).take(pa.array(np.repeat(np.arange(len(names)), self.counts)))

    @property
    def corrupt(self) -> Any:
        """Return the string column for reasons of damage; all null, as these frames are whole."""
        return _nulls(pa.string(), self.messages)

    @cached_property
    def payload(self) -> Any:
        """Return the payloads as a binary column."""
        offsets = self._payload_offsets
        return _binary(offsets, _payloads(self.pieces, offsets.cuts))

    @cached_property
    def payload_size(self) -> Any:
        """Return the payloads' lengths as an int column."""
        return _fixed(self._payload_offsets.lengths, pa.int32())

    @cached_property
    def key(self) -> Any:
        """Return the keys as a binary column; null for a message without a key."""
        keyed = [piece for piece in self.pieces if piece.header.columns & KEYS_COLUMN]
        if not keyed:
            return _nulls(pa.binary(), self.messages)
        if len(keyed) < len(self.pieces):
            return pa.concat_arrays([PieceGroup([piece]).key for piece in self.pieces])
        offsets = _Offsets(keyed, _key_column)
        cuts = zip(keyed, offsets.cuts, strict=True)
        parts = [memoryview(piece.body.keys)[first:last] for piece, (first, last) in cuts]
        array = _binary(offsets, _joined(parts))
        empty = offsets.lengths == 0
        return pc.if_else(pa.array(~empty), array, None) if empty.any() else array

    @cached_property
    def headers(self) -> Any:
        """Return the headers as a column of maps; empty for a message without headers."""
        return pa.concat_arrays(list(map(_headers, self.pieces)))

    def mask(self, keys: Keys) -> Any:
        """Return a boolean column: whether each message has a wanted key."""
        wanted = pc.is_in(self.key, value_set=pa.array(keys.exact, pa.binary()))
        for prefix in keys.prefixes:
            begins = pc.starts_with(self.key, prefix)
            wanted = pc.or_(wanted, pc.fill_null(begins, fill_value=False))
        return wanted

    @cached_property
    def _times(self) -> Any:
        parts = [piece.body.columns[8 * piece.first : 8 * piece.last] for piece in self.pieces]
        return np.frombuffer(_joined(parts), "<i8")

    @cached_property
    def _payload_offsets(self) -> "_Offsets":
        return _Offsets(self.pieces, _payload_column)

    def _consecutive(self, firsts: list[int]) -> Any:
        if len(firsts) == 1:
            return _fixed(_ramp(self.messages) + firsts[0], _BIGINT)
        begins = np.array([0, *accumulate(self.counts[:-1])])
        values = np.repeat(np.array(firsts, "i8") - begins, self.counts)
        values += _ramp(self.messages)
        return _fixed(values, _BIGINT)


class _Offsets:
    """Where each message's bytes begin and end in a column that joins the bytes of several pieces.

    A frame's own offsets begin at 0; they are checked, and shifted to the frame's place.
    """

    def __init__(self, pieces: Sequence[Piece], place: Callable[[Piece], tuple[int, int]]) -> None:
        self.cuts: list[tuple[int, int]] = []  # where each piece's bytes begin and end
        counts, shifts, parts, total = [], [], [], 0
        for piece in pieces:
            begin, size = place(piece)
            columns, first, last = piece.body.columns, 0, size
            if piece.first:
                first = unpack_from("<I", columns, begin + 4 * piece.first)[0]
            if piece.last < piece.header.messages:
                last = unpack_from("<I", columns, begin + 4 * piece.last)[0]
            if not first <= last <= size:
                raise FrameError("the offsets of the messages lead out of the body, or go back")
            parts.append(columns[begin + 4 * piece.first + 4 : begin + 4 * piece.last + 4])
            self.cuts.append((first, last))
            counts.append(piece.last - piece.first)
            shifts.append(total - first)
            total += last - first
        self.ends = np.zeros(sum(counts) + 1, "i4")
        ends = np.frombuffer(_joined(parts), "<i4")
        np.add(ends, np.repeat(np.array(shifts, "i4"), counts), out=self.ends[1:])
        # offsets that start at 0, reach the end and never decrease all point inside
        if (self.ends[1:] < self.ends[:-1]).any():
            raise FrameError("the offsets of the messages go back")

    @property
    def lengths(self) -> Any:
        """Return how many bytes each message has."""
        return self.ends[1:] - self.ends[:-1]


# An array that does not depend on the log is made once, long enough for all uses, and sliced.

_made: Final = lru_cache(maxsize=12)(lambda make, *arguments: make(*arguments))


def _ramp(count: int) -> Any:
    """Return an array of the whole numbers from 0 up to `count`, exclusive."""
    return _made(np.arange, _rounded(count), None, None, "i8")[:count]


def _repeated(text: str, count: int) -> Any:
    return _made(pa.repeat, pa.scalar(text, pa.string()), _rounded(count))[:count]


def _nulls(kind: Any, count: int) -> Any:
    return _made(pa.nulls, _rounded(count), kind)[:count]


def _rounded(count: int) -> int:
    return 1 << max(12, count.bit_length())


def _binary(offsets: _Offsets, data: bytes | memoryview) -> Any:
    buffers = [None, pa.py_buffer(offsets.ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets.ends) - 1, buffers)


def _payloads(pieces: Sequence[Piece], cuts: list[tuple[int, int]]) -> bytes | memoryview:
    """Return the payloads of all pieces, cut by `cuts`: a slice if they are adjacent in a block."""
    block, begin = pieces[0].body.block, pieces[0].body.begin + cuts[0][0]
    end, parts = begin, []
    together = True
    for piece, (first, last) in zip(pieces, cuts, strict=True):
        body = piece.body
        together = together and body.block is block and body.begin + first == end
        end = body.begin + last
        parts.append(body.block[body.begin + first : end])
    return block[begin:end] if together else b"".join(parts)


def _fixed(values: Any, kind: Any) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _joined(parts: Sequence[bytes | memoryview]) -> bytes | memoryview:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _payload_column(piece: Piece) -> tuple[int, int]:
    """Return where a frame's payload offsets begin in its columns, and the payloads' length."""
    return 8 * piece.header.messages, piece.body.end - piece.body.begin


def _headers(piece: Piece) -> Any:
    if not piece.header.columns & HEADERS_COLUMN:
        return headers_to_arrow(None, 0, len(piece))
    offsets = _Offsets([piece], _header_column)
    [(begin, _)] = offsets.cuts
    ends = (offsets.ends + begin).tolist()
    cells = map(piece.body.headers.__getitem__, map(slice, ends, ends[1:]))
    return headers_to_arrow(list(map(decode_headers, cells)), 0, len(piece))


def _header_column(piece: Piece) -> tuple[int, int]:
    """Return where a frame's header offsets begin in its columns, and the headers' length."""
    return headers_begin(piece.header), len(piece.body.headers)


def _key_column(piece: Piece) -> tuple[int, int]:
    """Return where a frame's key offsets begin in its columns, and the keys' length."""
    return 12 * piece.header.messages + 4, len(piece.body.keys)
