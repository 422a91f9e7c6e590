"""Schema: the columns there are, and what a user's schema chooses of them."""

from dataclasses import dataclass
from typing import Any, Final

from rt.errors import Misuse
from rt.spark.options import PERMISSIVE, ReadOptions

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
_JSON_TYPES: Final = frozenset(
    ("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date")
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns of a read, in order.

    Attributes:
        arrow: the Arrow schema that Spark expects.
        decoded: names of those that are fields of JSON payloads.
    """

    arrow: Any
    decoded: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """All names, in order."""
        return list(self.arrow.names)


def default_schema(options: ReadOptions) -> str:
    """Return what a load gives that names no schema; `Misuse` where it must name one."""
    if options.decode:
        raise Misuse(
            f"decode={options.decode} needs a schema: name the fields of the payloads in it, and "
            'what else is wanted: .schema("position bigint, flight string")'
        )
    extra = {CORRUPT: "string"} if options.mode == PERMISSIVE else {}
    return ", ".join(f"{name} {kind}" for name, kind in {**COLUMNS, **extra}.items())


def check_schema(schema: Any, options: ReadOptions) -> Wanted:
    """Take the user's schema, a Spark `StructType`; `Misuse` names what is wrong with it."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - Spark's, and heavy

    decoded = []
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name in COLUMNS or field.name == CORRUPT:
            expected = COLUMNS.get(field.name, "string")
            if kind != expected:
                raise Misuse(f"column {field.name} is of type {expected}, not {kind}")
        elif not options.decode:
            names = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            raise Misuse(f"there is no column {field.name!r}; there are {names}, {CORRUPT} string")
        elif not _json_can(kind):
            raise Misuse(f"field {field.name} of JSON payloads cannot be of type {kind}")
        else:
            decoded.append(field.name)
        if not field.nullable:
            raise Misuse(f"column {field.name} cannot be NOT NULL: a damaged frame has no values")
    return Wanted(to_arrow_schema(schema, timezone="UTC"), tuple(decoded))


def _json_can(kind: str) -> bool:
    words = kind
    for sign in ("array", "struct", "<", ">", ",", ":"):
        words = words.replace(sign, " ")
    nested = kind.startswith(("array<", "struct<"))
    return any(word in _JSON_TYPES for word in words.split()) if nested else kind in _JSON_TYPES
