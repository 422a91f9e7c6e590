"""Schema: the available columns, and which of them a user's schema chooses."""

from dataclasses import dataclass
from typing import Any, Final

from rt.errors import Misuse
from rt.spark.options import PERMISSIVE, ReadOptions

CORRUPT: Final = "_corrupt"
RECORD: Final = "_corrupt_record"  # Spark's name for the text of a malformed record
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
ON_REQUEST: Final = {"stream": "string", "file": "string", CORRUPT: "string", RECORD: "string"}
_JSON_TYPES: Final = frozenset((
    "string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date",
    "timestamp", "timestamp_ntz", "binary",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns of a read, in order.

    Attributes:
        arrow: the Arrow schema that Spark expects, with the names the user gave.
        decoded: names of the columns that are fields of JSON payloads.
    """

    arrow: Any
    decoded: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """All columns in order: those of the log in lower case, fields as they are."""
        return [name if name in self.decoded else name.lower() for name in self.arrow.names]


def default_schema(options: ReadOptions) -> str:
    """Return the schema of a load that names none.

    Raises:
        Misuse: this load must name one.
    """
    if options.decode:
        raise Misuse(
            f"decode={options.decode} needs a schema that names the fields of the payloads and "
            'any other columns: .schema("position bigint, flight string")'
        )
    extra = {CORRUPT: "string"} if options.mode == PERMISSIVE else {}
    return ", ".join(f"{name} {kind}" for name, kind in {**COLUMNS, **extra}.items())


def check_schema(schema: Any, options: ReadOptions) -> Wanted:
    """Check the user's schema, a Spark `StructType`.

    Raises:
        Misuse: it names a column that does not exist, or one of a type that is not possible.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - slow to import

    decoded = []
    for field in schema.fields:
        kind, name = field.dataType.simpleString(), field.name.lower()
        if not field.nullable:
            raise Misuse(f"column {field.name} cannot be NOT NULL: a damaged frame has no values")
        if name in COLUMNS or name in ON_REQUEST:
            expected = COLUMNS.get(name) or ON_REQUEST[name]
            if kind != expected:
                raise Misuse(f"column {field.name} is of type {expected}, not {kind}")
            if name == RECORD and not options.decode:
                raise Misuse(f"column {RECORD} is for decode=json")
        elif not options.decode or name.startswith("_"):
            raise Misuse(f"there is no column {field.name!r}; the columns are {_listed()}")
        else:
            _check_json_type(field.name, field.dataType)
            decoded.append(field.name)
    return Wanted(to_arrow_schema(schema, timezone="UTC"), tuple(decoded))


def _listed() -> str:
    return ", ".join(f"{name} {kind}" for name, kind in {**COLUMNS, **ON_REQUEST}.items())


def _check_json_type(name: str, kind: Any) -> None:
    """Refuse types that JSON payloads are not decoded to, also inside of others."""
    text = kind.simpleString()
    if text.startswith("struct<"):
        for field in kind.fields:
            _check_nullable(f"{name}.{field.name}", nullable=field.nullable)
            _check_json_type(f"{name}.{field.name}", field.dataType)
    elif text.startswith("array<"):
        _check_nullable(f"the elements of {name}", nullable=kind.containsNull)
        _check_json_type(name, kind.elementType)
    elif text.startswith("map<"):
        _check_nullable(f"the values of {name}", nullable=kind.valueContainsNull)
        if kind.keyType.simpleString() != "string":
            raise Misuse(f"field {name}: the keys of a map in JSON are of type string")
        _check_json_type(name, kind.valueType)
    elif text not in _JSON_TYPES and not text.startswith("decimal("):
        known = ", ".join(sorted(_JSON_TYPES))
        raise Misuse(
            f"field {name} cannot be of type {text}; JSON is decoded to {known}, decimal, and "
            "arrays, structs and maps of these"
        )


def _check_nullable(what: str, *, nullable: bool) -> None:
    if not nullable:
        raise Misuse(f"{what} cannot be NOT NULL: JSON may lack any value")
