"""Decode JSON: payloads that are JSON objects as columns of the user's schema, many at a time."""

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as pa_json

_NUMBER: Final = "#"
_VALUE: Final = "v"


class Decoded(NamedTuple):
    """One array for each field, null where a payload was malformed."""

    columns: list[Any]
    bad: list[int]  # places of the malformed payloads, in order
    reason: str  # why the first of them is


def decode_json(payloads: Any, fields: list[Any], *, first_only: bool) -> Decoded:
    """Read each payload as one JSON object.

    The payloads are parsed together, each as the value of a numbered line of its own; the numbers
    that come back must be those that went in. So a payload that holds two objects, or none, or
    what closes the line it stands in, moves no other payload to a wrong row: the halves are then
    parsed apart, down to the malformed one.

    Args:
        payloads: a binary array without nulls.
        fields: Arrow fields, the names and types of the columns.
        first_only: whether to stop at the first malformed payload.
    """
    bad: list[tuple[int, str]] = []
    parts = list(_parse(payloads, 0, pa.struct(fields), bad, first_only=first_only))
    values = pa.concat_arrays([*parts, pa.nulls(0, pa.struct(fields))])
    return Decoded(values.flatten(), [place for place, _ in bad], bad[0][1] if bad else "")


def _parse(
    payloads: Any, first: int, kind: Any, bad: list[tuple[int, str]], *, first_only: bool
) -> Any:
    if not len(payloads) or (bad and first_only):
        return
    try:
        values = _parse_all(payloads, kind)
    except pa.ArrowInvalid as error:
        values, reason = None, str(error).removeprefix("JSON parse error: ")
    else:
        reason = "not one JSON object"
    if values is not None:
        yield values
    elif len(payloads) == 1:
        bad.append((first, reason))
        yield pa.nulls(1, kind)
    else:
        half = len(payloads) // 2
        yield from _parse(payloads[:half], first, kind, bad, first_only=first_only)
        yield from _parse(payloads[half:], first + half, kind, bad, first_only=first_only)


def _parse_all(payloads: Any, kind: Any) -> Any:
    """Return the values, or None if some payload was not the one value of its line."""
    count = len(payloads)
    numbers = pa.array(np.arange(count)).cast(pa.string()).cast(pa.binary())
    lines = pc.binary_join_element_wise(b'{"#":', numbers, b',"v":', payloads, b"}\n", b"")
    data = lines.buffers()[2]
    table = pa_json.read_json(
        pa.BufferReader(data),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=pa_json.ParseOptions(
            explicit_schema=pa.schema([(_NUMBER, pa.int64()), (_VALUE, kind)]),
            unexpected_field_behavior="ignore",
        ),
    )
    found = table.column(_NUMBER).combine_chunks()
    if len(found) != count or found.null_count or (found.to_numpy() != np.arange(count)).any():
        return None
    values = table.column(_VALUE).combine_chunks()
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    values.validate(full=True)  # the parser takes a string that is no UTF-8
    return values
