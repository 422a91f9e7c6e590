"""Table: an exported table, and the log from where the table ends, as one DataFrame."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from rt.errors import Misuse
from rt.position import Position
from rt.spark.reading.options import read_options, split_columns
from rt.spark.reading.plan import open_log, take_snapshots
from rt.spark.reading.schema import COLUMNS, KINDS, to_ddl
from rt.spark.reading.steps import unread
from rt.tables.parquet_table import read_state as read_dataset
from rt.tables.payloads import JsonColumns, parsed
from rt.tables.table_state import LogName, TableState

_KINDS: Final = {name: KINDS[name] for name in (*COLUMNS, "stream", "headers")}
# Options that select no messages, and so need not apply to the table as well.
_FOR_BOTH: Final = frozenset((
    "columns", "minpartitions", "partitionbytes", "checkbodies",
    "copies", "leasenodes", "leasecerts", "leaseidentity", "leasetime", "leasebytes",
))  # fmt: skip


def read_table(path: str, table: str, catalog: Any = None) -> TableState:
    """Read the current state of a table of the log at `path`.

    The state has the table's files, and the position up to which they follow the log. `table` and
    `catalog` are as for `Loading.table`.

    Raises:
        Misuse: there is no log or no table, or the table belongs to another log.
    """
    with open_log(path) as view:
        log = LogName(view.place.log_id, view.place.stream)
    if catalog is not None:
        from rt.tables.iceberg import read_state  # noqa: PLC0415 - optional

        return read_state(catalog, table, log)
    state = read_dataset(table)
    if state.log.id != log.id:
        raise Misuse(f"{table} is the table of another log than {path}; name the log it follows")
    return state


def lag_of(path: str, position: Position) -> tuple[int, int | None]:
    """Return how many messages a log has from `position` on, and when the first was merged, ns."""
    with open_log(path) as view:
        return unread(view, position, view.end())


def table_frame(path: str, options: Mapping[str, str], table: str, catalog: Any, spark: Any) -> Any:
    """Return a DataFrame of the rows of a table, and of the log from the table's position on.

    The table's state is read before the end of the log. So messages that a follower adds to the
    table in between are read from the log, and not twice.

    Raises:
        Misuse: as for `read_table`, or the options of the load select messages.
        GapError: messages after the table's position were archived.
    """
    unfit = [name for name in options if name.lower() not in _FOR_BOTH]
    if unfit:
        raise Misuse(f"table() reads all messages: leave out {unfit[0]}, and use where")
    state = read_table(path, table, catalog)
    names = _names(options, state.columns)
    frame = _files(spark, state, names)
    with open_log(path) as view:
        has_more = state.position < view.end()  # even if what follows was archived
    if frame is None or has_more:
        rest = _rest(path, options, state, names, spark)
        # first, so that Spark reads files while Python starts
        frame = rest if frame is None else rest.unionAll(frame)
    return frame


def _names(options: Mapping[str, str], columns: JsonColumns) -> list[str]:
    given = split_columns(options.get("columns", ""))
    names = [each.split()[0] for each in given if each] or [*COLUMNS, *columns.fields]
    known = dict.fromkeys(each.lower() for each in (*_KINDS, *columns.fields))
    for name in names:
        if name.lower() not in known:
            raise Misuse(f"the table has no column {name[:40]!r}; choose from {', '.join(known)}")
    return names


def _files(spark: Any, state: TableState, names: list[str]) -> Any:
    """Return the rows of a table's files as a DataFrame; None if the table has no files."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - optional, and heavy

    if not state.files:
        return None
    schema = to_ddl({**_KINDS, **state.columns.fields})
    found = spark.read.schema(schema).parquet(*(each.path for each in state.files))
    # the stream may be named only by the files' directories
    stream = f.coalesce("stream", f.lit(state.log.stream))
    # older files have no headers
    headers = f.coalesce("headers", f.create_map().cast(_KINDS["headers"]))
    return found.withColumns({"stream": stream, "headers": headers}).select(*names)


def _rest(
    path: str, given: Mapping[str, str], state: TableState, names: list[str], spark: Any
) -> Any:
    """Return a DataFrame of the log from the table's position on, with the columns `names`.

    Payloads are parsed into the same columns of JSON fields as the table has.
    """
    options = dict(given)
    if state.position:
        options["startingPosition"] = str(state.position)
    fields = {name.lower(): name for name in state.columns.fields}
    needed = [name for name in names if name.lower() not in fields]
    if fields and "payload" not in {each.lower() for each in needed}:
        needed.append("payload")
    options["columns"] = ",".join(needed)
    # raises now what Spark would raise late
    take_snapshots(read_options({**options, "path": path}))
    frame = spark.read.format("rt").options(**options).load(path)
    if fields:
        schema = f"{to_ddl({each: _KINDS[each.lower()] for each in needed})}, {state.columns.text}"
        frame = frame.mapInArrow(partial(parsed, state.columns.text), schema)
    return frame.select(*names)
