"""Payloads: JSON payloads as columns of a table; a payload that does not parse is a dead letter."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn

import pyarrow as pa

from rt.errors import Misuse
from rt.limits import KIB
from rt.log.files.disk import read_small
from rt.tables.dataset import SCHEMA

REASON: Final = "reason"
DEAD_SCHEMA: Final = SCHEMA.append(pa.field(REASON, pa.string()))
_FILE_BYTES_MAX: Final = 64 * KIB  # a thousand fields of 64 bytes
_FIELD: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s+([a-z]+)")


class _UnfitError(Exception):
    """Why a payload has no row; the text contains nothing of the payload."""


# The JSON types that each column type accepts, and the conversion; Arrow checks the range.
_KINDS: Final[dict[str, tuple[Any, tuple[type, ...], Callable[[Any], Any]]]] = {
    "string": (pa.string(), (str,), str),
    "bigint": (pa.int64(), (int,), int),
    "int": (pa.int32(), (int,), int),
    "double": (pa.float64(), (int, float), float),
    "boolean": (pa.bool_(), (bool,), bool),
}


class JsonColumns:
    """Fields of JSON objects, as columns; a field that is null or missing is null."""

    def __init__(self, fields: dict[str, str]) -> None:
        """Take the fields with their types.

        Raises:
            Misuse: a type is unknown, or a field has the name of a column of the log.
        """
        for name, kind in fields.items():
            if kind not in _KINDS:
                raise Misuse(f"field {name} is of type {kind}; choose one of {', '.join(_KINDS)}")
            if name.lower() in (*SCHEMA.names, REASON, "file", "headers"):
                raise Misuse(f"the field {name} has the name of a column of the log; rename it")
        self.fields = fields
        self.schema = pa.schema([(name, _KINDS[kind][0]) for name, kind in fields.items()])

    @property
    def text(self) -> str:
        """Return the fields as text that `parse_columns` and Spark's schema parser read."""
        return ", ".join(f"{name} {kind}" for name, kind in self.fields.items())

    def after(self, known: "JsonColumns", name: str) -> "JsonColumns":
        """Return these columns, or those that a table already has (`known`) if none are given.

        Raises:
            Misuse: the table has columns other than those requested.
        """
        if self.fields and known.fields and self.fields != known.fields:
            raise Misuse(f"{name} has the JSON columns {known.text}; give these, or another table")
        return self if self.fields else known

    def split(self, batch: Any) -> tuple[Any, Any]:
        """Return the rows whose payloads parse, with their fields, and the others, with reasons."""
        if not self.fields:
            return batch, None
        rows: list[list[Any]] = []
        reasons: list[str | None] = []
        for payload in batch.column("payload").to_pylist():
            try:
                rows.append(self._row(payload))
                reasons.append(None)
            except _UnfitError as unfit:
                reasons.append(str(unfit))
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self.fields)
        is_dead = pa.array([reason is not None for reason in reasons])
        alive = batch.filter(pa.compute.invert(is_dead))
        for field, values in zip(self.schema, columns, strict=True):
            alive = alive.append_column(field, pa.array(values, field.type))
        if len(rows) == len(reasons):
            return alive, None
        dead = batch.filter(is_dead)
        words = pa.array([each for each in reasons if each is not None], pa.string())
        return alive, dead.append_column(REASON, words)

    def _row(self, payload: bytes) -> list[Any]:
        try:
            found = json.loads(payload, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise _UnfitError("not JSON") from None
        if not isinstance(found, dict):
            raise _UnfitError("not a JSON object")
        row = []
        for name, kind in self.fields.items():
            arrow, types, convert = _KINDS[kind]
            value = found.get(name)
            try:
                if value is not None and type(value) not in types:
                    raise TypeError
                row.append(None if value is None else pa.scalar(convert(value), arrow).as_py())
            except (TypeError, OverflowError, UnicodeError, pa.ArrowInvalid):
                raise _UnfitError(f"field {name} is not of type {kind}") from None
        return row


def read_columns(path: str) -> JsonColumns:
    """Read a file of fields and types, such as `carrier string, delay double`, or one per line.

    Raises:
        Misuse: the file has another format.
    """
    data = read_small(path, _FILE_BYTES_MAX + 1)
    if len(data) > _FILE_BYTES_MAX:
        raise Misuse(f"{path} is larger than {_FILE_BYTES_MAX} bytes; it is not a list of fields")
    try:
        columns = parse_columns(data.decode("utf-8", "replace"))
    except Misuse as error:
        raise Misuse(f"{path}: {error}") from None
    if not columns.fields:
        raise Misuse(f"{path} names no field; write for example: carrier string, delay double")
    return columns


def parse_columns(text: str) -> JsonColumns:
    """Parse text such as `carrier string, delay double`; errors as for `read_columns`."""
    fields: dict[str, str] = {}
    for part in filter(None, map(str.strip, re.split(r"[,\n]", text))):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise Misuse(f"{part[:40]!r} is not a field and its type, such as delay double")
        if match[1].lower() in map(str.lower, fields):
            raise Misuse(f"the field {match[1]} is named twice")
        fields[match[1]] = match[2]
    return JsonColumns(fields)


def parsed(columns: str, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows whose payloads parse, with these fields as columns."""
    fields = parse_columns(columns)
    for batch in batches:
        yield fields.split(batch)[0]


NO_COLUMNS: Final = JsonColumns({})


def _refuse(_name: str) -> NoReturn:
    raise ValueError
