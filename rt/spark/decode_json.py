"""Decode JSON: payloads as columns of the user's schema, with the results of `from_json`.

Arrow parses many payloads at once, and what it accepts here has one meaning only. Everything
else, from a number in a string column to a malformed payload, is read one payload at a time
by the rules of Spark's own parser (`json_values`), at about a hundredth of the speed.
"""

import secrets
from collections.abc import Callable, Iterator
from datetime import tzinfo
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as pa_json

from rt.spark.date_text import read_date, read_local_timestamp, read_timestamp
from rt.spark.json_tokens import DEPTH_MAX, NUMBER_LENGTH_MAX
from rt.spark.json_values import JsonRows

# A name no payload can know, on the lines between the payloads.
_MARK: Final = f"rt-{secrets.token_hex(16)}"
# When Arrow refuses this many payloads or fewer, halving them further costs more than reading each.
_FEW: Final = 32
_LONG: Final = min(DEPTH_MAX, NUMBER_LENGTH_MAX)  # shorter payloads cannot exceed either
_LONG_NUMBER: Final = "[0-9]{500}"


class Decoded(NamedTuple):
    """One array for each field, and which payloads are malformed: their places and why."""

    columns: list[Any]
    bad: list[int]
    reasons: list[str]


class _Chunk(NamedTuple):
    values: Any  # a struct array
    bad: list[int]
    reasons: list[str]


class JsonDecoder:
    """Decodes payloads for fields of these types."""

    def __init__(self, fields: list[Any], zone: tzinfo) -> None:
        """Prepare for the fields.

        Args:
            fields: Arrow fields, the names and types of the columns.
            zone: of timestamps that name none.
        """
        self._kind = pa.struct(fields)
        self._rows = JsonRows(fields, zone)
        self._texts = {f.name: _text_reader(f.type, zone) for f in fields if _is_moment(f.type)}
        parsed = [pa.field(f.name, pa.string() if _is_moment(f.type) else f.type) for f in fields]
        self._parsed = pa.schema([*parsed, (_MARK, pa.int64())])
        self._arrow_can = all(_arrow_can(field.type) for field in parsed)

    def decode(self, payloads: Any, *, first_only: bool) -> Decoded:
        """Read each payload as one JSON object.

        Args:
            payloads: a binary array without nulls.
            first_only: whether to stop at the first malformed payload.
        """
        values, bad, reasons = [], [], []
        place = 0
        for chunk in self._chunks(payloads):
            values.append(chunk.values)
            bad += [place + each for each in chunk.bad]
            reasons += chunk.reasons
            place += len(chunk.values)
            if bad and first_only:
                break
        joined = pa.concat_arrays([*values, pa.nulls(0, self._kind)])
        return Decoded(joined.flatten(), bad, reasons)

    def _chunks(self, payloads: Any) -> Iterator[_Chunk]:
        """Read the payloads in order, as many at once as Arrow takes."""
        count = len(payloads)
        if not count:
            return
        found = self._parse(payloads) if self._arrow_can else None
        if found is not None:
            yield _Chunk(found, [], [])
        elif count <= _FEW or not self._arrow_can:
            yield self._read_each(payloads)
        else:
            yield from self._chunks(payloads[: count // 2])
            yield from self._chunks(payloads[count // 2 :])

    def _read_each(self, payloads: Any) -> _Chunk:
        rows = [self._rows.read(each.as_py()) for each in payloads]
        arrays = [
            pa.array([row.values[place] for row in rows], self._kind.field(place).type)
            for place in range(self._kind.num_fields)
        ]
        fields = [self._kind.field(place) for place in range(self._kind.num_fields)]
        bad = [place for place, row in enumerate(rows) if row.error]
        return _Chunk(
            pa.StructArray.from_arrays(arrays, fields=fields),
            bad,
            [rows[each].error for each in bad],
        )

    def _parse(self, payloads: Any) -> Any:
        """Return the values, or None if one of the payloads might mean something else in Spark.

        Between the payloads lie marks, objects of their own with a number each. If there is
        exactly one object between every two of them, each payload is one complete object.
        """
        if _has_extremes(payloads):
            return None
        count = len(payloads)
        numbers = pa.array(np.arange(count)).cast(pa.string()).cast(pa.binary())
        mark = f'\n{{"{_MARK}":'.encode()
        lines = pc.binary_join_element_wise(payloads, mark, numbers, b"}\n", b"")
        try:
            table = self._read(lines.buffers()[2])
            marks = table.column(_MARK).combine_chunks()
            if len(marks) != 2 * count or marks.null_count != count:
                return None
            if (
                marks.take(pa.array(np.arange(1, 2 * count, 2))).to_numpy() != np.arange(count)
            ).any():
                return None
            return self._taken(table.select(self._parsed.names[:-1]), count)
        except (pa.ArrowInvalid, ValueError):
            return None

    def _read(self, data: Any) -> Any:
        return pa_json.read_json(
            pa.BufferReader(data),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=data.size + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=self._parsed, unexpected_field_behavior="ignore"
            ),
        )

    def _taken(self, table: Any, count: int) -> Any:
        """The rows of the payloads, without those of the marks."""
        places = pa.array(np.arange(0, 2 * count, 2))
        arrays = []
        for name in self._parsed.names[:-1]:
            array = _one_array(table.column(name)).take(places)
            array.validate(full=True)  # the parser takes a string that is not UTF-8
            if _has_negative_zero(array):
                raise ValueError("an integer -0 is 0.0 in Spark, and -0.0 in Arrow")
            if name in self._texts:
                array = _converted(array, self._texts[name], self._kind.field(name).type)
            arrays.append(array)
        fields = [self._kind.field(place) for place in range(self._kind.num_fields)]
        return pa.StructArray.from_arrays(arrays, fields=fields)


def _is_moment(kind: Any) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _text_reader(kind: Any, zone: tzinfo) -> Callable[[str], int]:
    if pa.types.is_date(kind):
        return read_date
    return read_local_timestamp if kind.tz is None else lambda text: read_timestamp(text, zone)


def _arrow_can(kind: Any) -> bool:
    """Whether Arrow parses this type as Spark does, or refuses."""
    types = pa.types
    if types.is_struct(kind):
        return all(_arrow_can(kind.field(place).type) for place in range(kind.num_fields))
    if types.is_list(kind):
        return _arrow_can(kind.value_type)
    simple = (types.is_string, types.is_boolean, types.is_integer, types.is_floating)
    return any(is_kind(kind) for is_kind in simple)


def _has_extremes(payloads: Any) -> bool:
    """Whether some payload could be nested too deep, or hold a number too long, for Jackson."""
    long = payloads.filter(pc.greater(pc.binary_length(payloads), _LONG))
    if not len(long):
        return False
    depths = pc.add(pc.count_substring(long, b"["), pc.count_substring(long, b"{"))
    if pc.max(depths).as_py() >= DEPTH_MAX:
        return True
    return bool(pc.any(pc.match_substring_regex(long, _LONG_NUMBER)).as_py())


def _has_negative_zero(array: Any) -> bool:
    kind = array.type
    if pa.types.is_struct(kind):
        return any(map(_has_negative_zero, array.flatten()))
    if pa.types.is_list(kind):
        return _has_negative_zero(array.flatten())
    if not pa.types.is_floating(kind):
        return False
    values = array.drop_null().to_numpy()
    return bool((np.signbit(values) & (values == 0)).any())


def _converted(array: Any, read: Callable[[str], int], kind: Any) -> Any:
    """Dates or timestamps from their texts; each text that occurs is read once."""
    encoded = array.dictionary_encode()
    values = pa.array([read(text) for text in encoded.dictionary.to_pylist()], kind)
    return values.take(encoded.indices)


def _one_array(column: Any) -> Any:
    array = column.combine_chunks()
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
