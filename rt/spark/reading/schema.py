"""Schema: the available columns, and the ones that a user's schema selects."""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from rt.errors import Misuse
from rt.spark.reading.options import PERMISSIVE, ReadOptions

CORRUPT: Final = "_corrupt"
COLUMNS: Final = {
    "position": "bigint",
    "time": "timestamp",
    "time_ns": "bigint",
    "merge_time": "timestamp",
    "session": "string",
    "seq": "bigint",
    "number": "bigint",
    "key": "binary",
    "payload": "binary",
    "payload_size": "int",
}
# Columns that a load has only if its schema names them.
ON_REQUEST: Final = {
    "stream": "string",
    "file": "string",
    "headers": "map<string,binary>",
    CORRUPT: "string",
}
KINDS: Final = {**COLUMNS, **ON_REQUEST}
_ARROW: Final = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,binary>": pa.map_(pa.string(), pa.binary()),
}


def arrow_schema(columns: Sequence[str] = ()) -> Any:
    """Return the Arrow schema of the columns, or of the default ones; `Misuse` for a wrong name."""
    names = columns or tuple(COLUMNS)
    known = [name for name in KINDS if name != CORRUPT]
    for name in names:
        if name not in known:
            raise Misuse(f"there is no column {str(name)[:40]!r}; choose from {', '.join(known)}")
    if len(set(names)) < len(names):
        raise Misuse(f"a column is named twice: {', '.join(names)}")
    return pa.schema([(name, _ARROW[KINDS[name]]) for name in names])


def default_schema(options: ReadOptions) -> str:
    """Return the schema, as DDL, for a load that gives none; `Misuse` if an option is wrong."""
    extra = {CORRUPT: "string"} if options.mode == PERMISSIVE else {}
    return to_ddl(dict(map(_column, options.columns)) or {**COLUMNS, **extra})


def to_ddl(columns: dict[str, str]) -> str:
    """Return columns and their types as DDL that does not depend on `spark.sql.timestampType`."""
    kinds = {"timestamp": "timestamp_ltz"}
    return ", ".join(f"`{name}` {kinds.get(kind, kind)}" for name, kind in columns.items())


def check_schema(schema: Any, options: ReadOptions) -> Any:
    """Check the schema of a load, a `StructType`, and return it as an Arrow schema.

    Raises:
        Misuse: the schema names an unknown column, gives a column another type, or contradicts the
            option `columns`.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - slow to import

    named = {_column(text)[0] for text in options.columns}
    if named and named != set(schema.names):
        raise Misuse("the option columns and .schema(...) contradict each other; give one")
    for field in schema.fields:
        if not field.nullable:
            raise Misuse(f"column {field.name} cannot be NOT NULL: a damaged frame has no values")
        _check_type(field.name, field.dataType.simpleString())
    return to_arrow_schema(schema, timezone="UTC")


def _column(text: str) -> tuple[str, str]:
    """Parse a column such as `session` or `session string`; return its name and its type."""
    name, _, kind = text.partition(" ")
    return name, _check_type(name, kind.replace(" ", "").lower())


def _check_type(name: str, kind: str) -> str:
    expected = KINDS.get(name.lower())
    if expected is None:
        listed = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())
        raise Misuse(f"there is no column {name!r}; the columns are {listed}")
    if kind == "timestamp_ntz":
        raise Misuse(f"column {name} is of type timestamp_ltz, not timestamp_ntz")
    if kind and kind not in (expected, f"{expected}_ltz"):
        raise Misuse(f"column {name} is of type {expected}, not {kind}")
    return expected
