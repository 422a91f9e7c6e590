"""Dataset: writes a log's rows to Parquet files of about one size, each with one partition."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rt.errors import Misuse
from rt.limits import KIB, MIB
from rt.spark.reading.schema import COLUMNS, arrow_schema

PARTITIONS: Final = ("none", "day", "month", "stream", "session")
_ROW_GROUP_BYTES: Final = 64 * MIB
_PIECE_BYTES: Final = 64 * KIB  # a batch is not divided below this, however small files should be
_HELD_BYTES_MAX: Final = 256 * MIB  # rows held in memory, over all partitions
SCHEMA: Final = arrow_schema(("stream", *COLUMNS, "headers"))

Divide = Callable[[Any], Iterator[tuple[str, Any]]]


def check_partition(name: str) -> None:
    """Refuse an unknown partitioning; "" is the default one."""
    if name and name not in PARTITIONS:
        raise Misuse(f"partition is {name[:40]!r}; choose one of {', '.join(PARTITIONS)}")


def divider(partition: str) -> Divide:
    """Return a function that divides a batch among a partitioning's directories."""
    if partition == "none":
        return lambda batch: iter([("", batch)])
    if partition in ("stream", "session"):
        # Readers derive a column from a directory's name. Files already have a column `session`, so
        # the column of the directories has another name.
        name = partition if partition == "stream" else f"by_{partition}"
        return lambda batch: divided(batch, batch.column(partition), f"{name}={{}}".format)
    layout = "date=%Y-%m-%d" if partition == "day" else "month=%Y-%m"
    return lambda batch: divided(batch, pc.strftime(_merged_at(batch), layout), str)


def divided(batch: Any, values: Any, name: Callable[[Any], str]) -> Iterator[tuple[str, Any]]:
    """Yield the rows of each value, with the directory name for that value."""
    found = pc.unique(values)
    for value in found:
        wanted = pc.equal(values, value) if value.is_valid else pc.is_null(values)
        yield name(value.as_py()), batch if len(found) == 1 else batch.filter(wanted)


def _merged_at(batch: Any) -> Any:
    """Return when rows were merged; in a session's log, when they were published."""
    merged = batch.column("merge_time")
    if not merged.null_count:
        return merged
    return batch.column("time_ns").cast(pa.timestamp("ns", tz="UTC"))


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table."""

    path: str  # the path by which its table names it
    place: str  # its partition; "" if there are none
    rows: int  # how many rows it has
    bytes: int  # the size of the file
    first: int  # position of its first message


@dataclass(slots=True)
class _Open:
    path: str
    sink: Any
    writer: Any
    rows: int = 0
    first: int = 0


class Dataset:
    """Writes batches to Parquet files; call `finish`, or `discard` after an error."""

    def __init__(
        self,
        schema: Any,
        divide: Divide,
        create: Callable[[str], tuple[str, Any]],
        remove: Callable[[str], None],
        target_bytes: int,
    ) -> None:
        """Write to files made by `create`.

        `create` makes a file in a partition, and returns its path and where to write. `remove`
        removes a file that `create` made. When a file has reached the target size, another follows.
        """
        self._schema = schema
        self._divide = divide
        self._create = create
        self._remove = remove
        self._target = target_bytes
        self._held: dict[str, list[Any]] = {}
        self._sizes: dict[str, int] = {}
        self._open: dict[str, _Open] = {}
        self._done: list[DataFile] = []

    def write(self, batch: Any) -> None:
        """Add rows, each to a file of its partition."""
        for place, rows in self._divide(batch) if batch.num_rows else ():
            # a batch may be larger than the target size
            size = max(self._target, _PIECE_BYTES)
            count = rows.num_rows * size // max(1, rows.nbytes) + 2
            for first in range(0, rows.num_rows, count):
                self._hold(place, rows.slice(first, count))
        while sum(self._sizes.values()) > _HELD_BYTES_MAX:
            self._flush(max(self._sizes, key=lambda place: self._sizes[place]))

    def _hold(self, place: str, rows: Any) -> None:
        self._held.setdefault(place, []).append(rows)
        self._sizes[place] = self._sizes.get(place, 0) + rows.nbytes
        if self._sizes[place] >= min(self._target, _ROW_GROUP_BYTES):
            self._flush(place)

    def finish(self) -> list[DataFile]:
        """Write the rows still in memory; return the files, which are synced if they are local."""
        for place in [*self._open, *(each for each in self._held if each not in self._open)]:
            self._flush(place)  # one at a time: there may be thousands
            self._end(place)
        return self._done

    def discard(self) -> None:
        """Remove all files."""
        for each in self._open.values():
            with suppress(OSError):
                each.writer.close()
            with suppress(OSError):
                each.sink.close()
        paths = [each.path for each in self._open.values()]
        for path in (*paths, *(each.path for each in self._done)):
            self._remove(path)

    def _flush(self, place: str) -> None:
        held, self._held[place], self._sizes[place] = self._held.get(place, []), [], 0
        if not held:
            return
        # joined files may be older than a column
        parts = (_conformed(pa.Table.from_batches([each]), self._schema) for each in held)
        table = pa.concat_tables(parts)
        file = self._open.get(place)
        if file is None:
            path, sink = self._create(place)
            writer = pq.ParquetWriter(sink, self._schema, compression="zstd")
            file = self._open[place] = _Open(path, sink, writer)
            file.first = table.column("position")[0].as_py()
        file.writer.write_table(table, row_group_size=max(1, table.num_rows))
        file.rows += table.num_rows
        if file.sink.tell() >= self._target:
            self._end(place)

    def _end(self, place: str) -> None:
        file = self._open.get(place)
        if file is None:
            return
        file.writer.close()
        size = file.sink.tell()
        file.sink.close()
        self._done.append(DataFile(file.path, place, file.rows, size, file.first))
        del self._open[place]


def _conformed(table: Any, schema: Any) -> Any:
    """Return a table with the columns of a schema; columns that it lacks are null."""
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(schema.names).cast(schema)
