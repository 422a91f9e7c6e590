"""JsonPayloads: JSON payloads as columns, parsed by Spark's own `from_json`."""

from typing import Any, Final

from rt.errors import Misuse
from rt.spark.reading.options import DROPMALFORMED, FAILFAST, PERMISSIVE

RECORD: Final = "_corrupt_record"  # Spark's name for the text of a malformed record
_PARSED: Final = "_rt_parsed"
_ADVICE: Final = (
    f'.json(schema, mode="PERMISSIVE") puts such texts into the column {RECORD}, and '
    'mode="DROPMALFORMED" leaves their rows out'
)


def json_frame(frame: Any, schema: Any, mode: str, beside: list[str]) -> Any:
    """Return the columns `beside` of a DataFrame, and the fields of its JSON payloads as columns.

    The DataFrame must also have position, session and payload. `schema` and `mode` are those of
    `Loading.json`.

    Raises:
        Misuse: the mode is unknown, or a field has the name of a column.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - optional, and heavy
    from pyspark.sql.types import StructType  # noqa: PLC0415

    if mode not in (FAILFAST, PERMISSIVE, DROPMALFORMED):
        raise Misuse(f"mode is {mode[:40]!r}; give one of FAILFAST, PERMISSIVE, DROPMALFORMED")
    given: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    fields = StructType([each for each in given.fields if each.name != RECORD])
    taken = {name.lower() for name in beside} & {each.lower() for each in fields.names}
    if taken:
        raise Misuse(
            f"the field {min(taken)} has the name of a column of the log: choose the log's columns "
            'by .schema("session string, position bigint") before .json(...)'
        )
    names = [f"{_PARSED}.`{each}`" for each in fields.names]
    # also keeps Spark from parsing only the fields that a query uses
    options = {"mode": PERMISSIVE, "columnNameOfCorruptRecord": RECORD}
    parsed = f.from_json(
        f.col("payload").cast("string"), StructType([*fields.fields]).add(RECORD, "string"), options
    )
    if mode == FAILFAST:
        where = f.concat(
            f.lit("the payload at position "), f.col("position"), f.lit(" of session "),
            f.col("session"), f.lit(" is malformed; " + _ADVICE),
        )  # fmt: skip
        parsed = f.when(parsed[RECORD].isNull(), parsed).otherwise(f.raise_error(where))
    found = frame.select(*beside, parsed.alias(_PARSED))
    if mode == DROPMALFORMED:
        found = found.where(f.col(f"{_PARSED}.{RECORD}").isNull())
    if mode == PERMISSIVE:
        names.append(f"{_PARSED}.{RECORD}")
    return found.select(*beside, *names)
