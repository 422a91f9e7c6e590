"""Schema: the available columns, and the ones that a user's schema selects."""

from dataclasses import dataclass
from typing import Any, Final

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
# Columns that only a schema that names them selects.
ON_REQUEST: Final = {
    "stream": "string",
    "file": "string",
    "headers": "map<string,binary>",
    CORRUPT: "string",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns of a read, in order.

    Attributes:
        arrow: the Arrow schema that Spark expects, with the names the user gave.
    """

    arrow: Any

    @property
    def names(self) -> list[str]:
        """Return all columns in order, in lower case."""
        return [name.lower() for name in self.arrow.names]


def default_schema(options: ReadOptions) -> str:
    """Return the schema of a load that names none: the option `columns`, or the default columns.

    Raises:
        Misuse: a column does not exist, or has another type.
    """
    extra = {CORRUPT: "string"} if options.mode == PERMISSIVE else {}
    named = [_column(text) for text in options.columns]
    return to_ddl(dict(named) or {**COLUMNS, **extra})


def to_ddl(columns: dict[str, str]) -> str:
    """Return a schema as DDL that means the same whatever `spark.sql.timestampType` says."""
    kinds = {"timestamp": "timestamp_ltz"}
    return ", ".join(f"`{name}` {kinds.get(kind, kind)}" for name, kind in columns.items())


def check_schema(schema: Any, options: ReadOptions) -> Wanted:
    """Check the user's schema, a Spark `StructType`.

    Raises:
        Misuse: it names a column that does not exist, or gives one an impossible type.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - slow to import

    named = {_column(text)[0] for text in options.columns}
    if named and named != set(schema.names):
        raise Misuse("the option columns and .schema(...) contradict each other; give one")
    for field in schema.fields:
        if not field.nullable:
            raise Misuse(f"column {field.name} cannot be NOT NULL: a damaged frame has no values")
        _check_type(field.name, field.dataType.simpleString())
    return Wanted(to_arrow_schema(schema, timezone="UTC"))


def _column(text: str) -> tuple[str, str]:
    """Parse `session` or `session string`."""
    name, _, kind = text.partition(" ")
    return name, _check_type(name, kind.strip().lower())


def _check_type(name: str, kind: str) -> str:
    expected = {**COLUMNS, **ON_REQUEST}.get(name.lower())
    if expected is None:
        raise Misuse(f"there is no column {name!r}; the columns are {_listed()}")
    if kind == "timestamp_ntz":
        raise Misuse(f"column {name} is of type timestamp_ltz, not timestamp_ntz")
    if kind and kind not in (expected, f"{expected}_ltz"):
        raise Misuse(f"column {name} is of type {expected}, not {kind}")
    return expected


def _listed() -> str:
    return ", ".join(f"{name} {kind}" for name, kind in {**COLUMNS, **ON_REQUEST}.items())
