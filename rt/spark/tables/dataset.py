"""Dataset: the Parquet files that some files of a log become, one in each partition."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rt.errors import Misuse
from rt.limits import MIB
from rt.log.files.disk import make_private_directory, sync_directory
from rt.offload.private import create_private
from rt.spark.reading.arrow_reader import arrow_schema
from rt.spark.reading.schema import COLUMNS

PARTITIONS: Final = ("none", "day", "month", "stream")
_ROW_GROUP_BYTES: Final = 64 * MIB
_DAY_NS: Final = 86_400 * 10**9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA: Final = arrow_schema(("stream", *COLUMNS))  # of what was begun by an rt without headers
SCHEMA_WITH_HEADERS: Final = arrow_schema(("stream", *COLUMNS, "headers"))


def check_partition(name: str) -> None:
    """Refuse what is not a partitioning; "" is the usual one."""
    if name and name not in PARTITIONS:
        raise Misuse(f"partition is {name[:40]!r}; choose one of {', '.join(PARTITIONS)}")


class Dataset:
    """Writes rows to hidden files, one in each partition, which are then named together."""

    def __init__(self, out: str, name: str, partition: str, schema: Any = SCHEMA) -> None:
        """Write nothing yet.

        Args:
            out: directory of the dataset.
            name: of the files, in each partition.
            partition: one of `PARTITIONS`.
            schema: of the rows.
        """
        self._schema = schema
        self._out = out
        self._name = name
        self._partition = partition
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._files: dict[str, BinaryIO] = {}  # that the writers write
        self._held: dict[str, list[Any]] = {}
        self._sizes: dict[str, int] = {}

    def write(self, batch: Any) -> None:
        """Add rows, each to the file of its partition."""
        for place, rows in self._split(batch):
            self._held.setdefault(place, []).append(rows)
            self._sizes[place] = self._sizes.get(place, 0) + rows.nbytes
            if self._sizes[place] >= _ROW_GROUP_BYTES:
                self._flush(place)

    def finish(self) -> list[str]:
        """Write what is held and sync the files; return the names they will have."""
        for place in list(self._held):  # one after the other: there may be thousands
            self._flush(place)
            self._writers[place].close()
            with self._files[place] as file:
                file.flush()
                os.fsync(file.fileno())
        return [os.path.relpath(self._path(place), self._out) for place in self._writers]

    def publish(self) -> None:
        """Give the finished files their names."""
        for place in self._writers:
            os.replace(self._path(place, hidden=True), self._path(place))
            sync_directory(os.path.dirname(self._path(place)))
        if self._writers:
            sync_directory(self._out)

    def discard(self) -> None:
        """Remove the files that have no names yet."""
        for place, writer in self._writers.items():
            writer.close()
            self._files[place].close()
            path = self._path(place, hidden=True)
            if os.path.exists(path):
                os.unlink(path)

    def _split(self, batch: Any) -> Iterator[tuple[str, Any]]:
        if self._partition == "none":
            yield "", batch
        elif self._partition == "stream":
            yield f"stream={batch.column('stream')[0]}", batch
        else:
            yield from self._by_time(batch)

    def _by_time(self, batch: Any) -> Iterator[tuple[str, Any]]:
        merged = batch.column("merge_time")
        if merged.null_count:
            days = batch.column("time_ns").to_numpy() // _DAY_NS
        else:
            days = merged.view(pa.int64()).to_numpy() // (_DAY_NS // 1000)
        values, places = np.unique(days, return_inverse=True)
        names = [self._time_name(int(day)) for day in values]
        for name in dict.fromkeys(names):
            wanted = np.array([each == name for each in names])[places]
            yield name, batch if wanted.all() else batch.filter(pa.array(wanted))

    def _time_name(self, day: int) -> str:
        date = (_EPOCH + timedelta(days=day)).date()
        return f"month={date:%Y-%m}" if self._partition == "month" else f"date={date.isoformat()}"

    def _flush(self, place: str) -> None:
        held, self._held[place], self._sizes[place] = self._held[place], [], 0
        if not held:
            return
        # Readers take a partition's column from its path, and would have it twice.
        schema = self._schema
        if self._partition == "stream":
            schema = schema.remove(0)
        if place not in self._writers:
            path = self._path(place, hidden=True)
            make_private_directory(os.path.dirname(path))
            file = self._files[place] = create_private(path)
            self._writers[place] = pq.ParquetWriter(file, schema, compression="zstd")
        table = pa.Table.from_batches(held, self._schema).select(schema.names)
        self._writers[place].write_table(table, row_group_size=max(1, table.num_rows))

    def _path(self, place: str, *, hidden: bool = False) -> str:
        name = f".{self._name}.parquet.tmp" if hidden else f"{self._name}.parquet"
        return os.path.join(self._out, place, name)
