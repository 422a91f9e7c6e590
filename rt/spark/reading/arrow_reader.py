"""ArrowReader: a load as one stream of record batches in this process."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from rt.errors import Misuse
from rt.spark.reading.options import ReadOptions
from rt.spark.reading.plan import LogSnapshot, take_snapshots
from rt.spark.reading.schema import COLUMNS, Wanted
from rt.spark.reading.splits import splits
from rt.spark.reading.task import Task

_TYPES: Final = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,binary>": pa.map_(pa.string(), pa.binary()),
}
_KINDS: Final = {**COLUMNS, "stream": "string", "file": "string", "headers": "map<string,binary>"}


def open_reader(options: ReadOptions, columns: Sequence[str]) -> Any:
    """Fix what a load reads, and return a `pyarrow.RecordBatchReader` for it.

    Args:
        options: what to read.
        columns: names, in order; Spark's default columns if there are none.

    Raises:
        Misuse: a column does not exist, or there is no log.
        GapError: part of it was archived.
    """
    schema = arrow_schema(columns)
    batches = _batches(take_snapshots(options), options, Wanted(schema))
    return pa.RecordBatchReader.from_batches(schema, batches)


def arrow_schema(columns: Sequence[str] = ()) -> Any:
    """Return the Arrow schema of these columns, in order; of the default columns if none is named.

    Raises:
        Misuse: a name is not a column, or is given twice.
    """
    names = columns or tuple(COLUMNS)
    for name in names:
        if name not in _KINDS:
            raise Misuse(f"there is no column {str(name)[:40]!r}; choose from {', '.join(_KINDS)}")
    if len(set(names)) < len(names):
        raise Misuse(f"a column is named twice: {', '.join(names)}")
    return pa.schema([(name, _TYPES[_KINDS[name]]) for name in names])


def _batches(
    snapshots: tuple[LogSnapshot, ...], options: ReadOptions, wanted: Wanted
) -> Iterator[Any]:
    task = Task(tuple(each.place for each in snapshots), options, wanted)
    for parts in splits(snapshots, options):
        yield from task.batches(parts)
