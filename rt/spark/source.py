"""Source: `spark.read.format("rt")`, for Spark's Python Data Source API."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from rt.errors import Misuse, RtError
from rt.spark.options import ReadOptions, read_options
from rt.spark.pieces import Part
from rt.spark.plan import LogSnapshot, take_snapshots
from rt.spark.schema import check_schema, default_schema
from rt.spark.splits import splits
from rt.spark.task import Task


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Have Spark report an error of rt as its message, without a Python traceback.

    The worker that reports it ends afterwards, so the setting reaches no other error.
    """
    try:
        yield
    except RtError:
        spec = sys.modules["__main__"].__spec__
        if spec is not None and spec.name.startswith(
            "pyspark."
        ):  # a driver's Spark would inherit it
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


class RtSource(DataSource):
    """A log directory as a table.

    Spark creates one for each `load()` or `save()`. What a load reads is fixed here, because
    nothing else runs exactly once for each load.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._read_options: ReadOptions | None = None
        self._snapshots: tuple[LogSnapshot, ...] | None = None
        self._refusal = ""
        if "stream" in options:  # an option of the sink only
            return
        with one_line_errors():
            self._read_options = read_options(options)
        try:
            self._snapshots = take_snapshots(self._read_options)
            self._hold(self._snapshots)
        except (RtError, OSError) as error:
            self._snapshots = None
            self._refusal = str(error)  # a stream may begin before its log does

    @classmethod
    def name(cls) -> str:
        """The name for `format()`."""
        return "rt"

    def schema(self) -> str:
        """The columns of a load that names none."""
        with one_line_errors():
            return default_schema(self._reading())

    def reader(self, schema: StructType) -> "RtReader":
        """Plan a batch query."""
        with one_line_errors():
            return self._reader(schema)

    def _reader(self, schema: StructType) -> "RtReader":
        options = self._reading()
        if self._snapshots is None:
            raise Misuse(self._refusal)
        if options.limits.records or options.limits.bytes:
            raise Misuse("maxRecordsPerTrigger and maxBytesPerTrigger are for readStream")
        if options.edges.start == "latest":
            raise Misuse("startingPosition=latest is for readStream: a batch would be empty")
        self._hold(self._snapshots)  # the load may be long ago
        made = self._reader_class(options)
        return made(options, schema, self._snapshots)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Begin or resume a streaming query."""
        from rt.spark.stream import RtStreamReader  # noqa: PLC0415 - batches need none of it

        # Spark's cleanup fails after an error here, and only the traceback has the first error
        return RtStreamReader(self._reading(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Publish the rows of a batch query."""
        from rt.spark.sink import batch_writer  # noqa: PLC0415 - reads need none of it

        with one_line_errors():
            return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        """Publish the rows of a streaming query."""
        from rt.spark.sink import stream_writer  # noqa: PLC0415 - reads need none of it

        with one_line_errors():
            return stream_writer(self.options, schema, overwrite=overwrite)

    def _hold(self, snapshots: tuple[LogSnapshot, ...]) -> None:
        lease = self._reading().lease
        if lease is not None:
            from rt.spark.lease import take_lease  # noqa: PLC0415 - most have none

            for snapshot in snapshots:
                take_lease(lease, snapshot.start, snapshot.stream)

    def _reader_class(self, options: ReadOptions) -> "type[RtReader]":
        if options.push_filters:
            raise Misuse(
                "pushFilters=true must be tested on this Spark first: call "
                "rt.spark.push_filters(spark), which tests whether it returns the right rows"
            )
        return RtReader

    def _reading(self) -> ReadOptions:
        if self._read_options is None:
            raise Misuse(
                "the option stream is for writing; to select streams of a load, use streams"
            )
        return self._read_options


class RtPushingSource(RtSource):
    """The same source, registered where Spark proved to return right rows with pushed filters.

    The driver has no other way to pass that result to the Python process that plans a query.
    """

    def _reader_class(self, options: ReadOptions) -> "type[RtReader]":
        return RtPushingReader if options.push_filters else RtReader


class Parts(InputPartition):
    """What one task reads."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        super().__init__(parts)


def input_partitions(snapshots: tuple[LogSnapshot, ...], options: ReadOptions) -> list[Parts]:
    """One partition for each split; if there are none, an empty one, because Spark needs one."""
    return [Parts(parts) for parts in splits(snapshots, options)] or [Parts(())]


class RtReader(DataSourceReader):
    """One batch query."""

    def __init__(
        self, options: ReadOptions, schema: StructType, snapshots: tuple[LogSnapshot, ...]
    ) -> None:
        self._options = options
        self._snapshots = snapshots
        places = tuple(each.place for each in snapshots)
        self._task = Task(places, options, check_schema(schema, options))

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the snapshot into splits."""
        with one_line_errors():
            return self._planned()

    def _planned(self) -> list[Parts]:
        return input_partitions(self._snapshots, self._options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one split; runs in a worker."""
        with one_line_errors():
            yield from self._task.read(partition.value)


class RtPushingReader(RtReader):
    """One batch query that reads no more than its filters need.

    A separate class, because Spark refuses every query of a reader that accepts filters while
    its setting is off.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's
        """Narrow what is read; Spark gets all filters back and applies them to each row."""
        from rt.spark.push import narrowed  # noqa: PLC0415 - few need it

        found = [narrowed(filters, self._options, each) for each in self._snapshots]
        self._snapshots = tuple(snapshot for _, snapshot in found)
        options = self._options = found[0][0] if found else self._options
        self._task = replace(self._task, options=options)
        return filters
