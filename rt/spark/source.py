"""Source: `spark.read.format("rt")`, as Spark's Python Data Source API wants it."""

from collections.abc import Iterator, Sequence
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
from rt.spark.plan import LogSnapshot, take_snapshot
from rt.spark.schema import check_schema, default_schema
from rt.spark.splits import splits
from rt.spark.task import Task


class RtSource(DataSource):
    """A log directory as a table.

    Spark makes one of these for each `load()` or `save()`. What a load reads is fixed here, since
    nothing else runs once for each load.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._read_options: ReadOptions | None = None
        self._snapshot: LogSnapshot | None = None
        self._refusal = ""
        if "stream" in options:  # only the sink is told a stream
            return
        self._read_options = read_options(options)
        try:
            self._snapshot = take_snapshot(self._read_options)
            self._hold(self._snapshot)
        except (RtError, OSError) as error:
            self._snapshot = None
            self._refusal = str(error)  # a stream may begin before its log does

    @classmethod
    def name(cls) -> str:
        """The word for `format()`."""
        return "rt"

    def schema(self) -> str:
        """The columns of a load that names none."""
        return default_schema(self._reading())

    def reader(self, schema: StructType) -> "RtReader":
        """Plan a batch query."""
        options = self._reading()
        if self._snapshot is None:
            raise Misuse(self._refusal)
        if options.max_records or options.max_bytes:
            raise Misuse("maxRecordsPerTrigger and maxBytesPerTrigger are for readStream")
        if options.start == "latest":
            raise Misuse("startingPosition=latest is for readStream: a batch would be empty")
        self._hold(self._snapshot)  # the load may be long ago
        made = self._reader_class(options)
        return made(options, schema, self._snapshot)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Begin or resume a streaming query."""
        from rt.spark.stream import RtStreamReader  # noqa: PLC0415 - batches need none of it

        return RtStreamReader(self._reading(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Publish the rows of a batch query."""
        from rt.spark.sink import batch_writer  # noqa: PLC0415 - reads need none of it

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        """Publish the rows of a streaming query."""
        from rt.spark.sink import stream_writer  # noqa: PLC0415 - reads need none of it

        return stream_writer(self.options, schema, overwrite=overwrite)

    def _hold(self, snapshot: LogSnapshot) -> None:
        lease = self._reading().lease
        if lease is not None:
            from rt.spark.lease import take_lease  # noqa: PLC0415 - most have none

            take_lease(lease, snapshot.start)

    def _reader_class(self, options: ReadOptions) -> "type[RtReader]":
        if options.push_filters:
            raise Misuse(
                "pushFilters=true needs a Spark that was tried: call rt.spark.push_filters(spark) "
                "first, which says whether this one gives right rows with it"
            )
        return RtReader

    def _reading(self) -> ReadOptions:
        if self._read_options is None:
            raise Misuse("the option stream is for writing; a load names the log's directory")
        return self._read_options


class RtPushingSource(RtSource):
    """The same, registered where Spark was seen to give right rows though a source takes filters.

    What the driver found out has no other way to the Python that plans a query.
    """

    def _reader_class(self, options: ReadOptions) -> "type[RtReader]":
        return RtPushingReader if options.push_filters else RtReader


class Parts(InputPartition):
    """What one task reads."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        super().__init__(parts)


def input_partitions(snapshot: LogSnapshot, options: ReadOptions) -> list[Parts]:
    """One partition for each split; one that is empty where there are none, for Spark needs one."""
    return [Parts(parts) for parts in splits(snapshot, options)] or [Parts(())]


class RtReader(DataSourceReader):
    """One batch query."""

    def __init__(self, options: ReadOptions, schema: StructType, snapshot: LogSnapshot) -> None:
        self._options = options
        self._snapshot = snapshot
        self._task = Task(snapshot.log_id, options, check_schema(schema, options))

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the snapshot into splits."""
        return input_partitions(self._snapshot, self._options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one split; runs in a worker."""
        return self._task.read(partition.value)


class RtPushingReader(RtReader):
    """One batch query that reads no more than its filters need.

    A class of its own: Spark refuses any query of a reader that could take filters while its
    setting is off.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's
        """Narrow what is read; all filters go back to Spark, which applies them to each row."""
        from rt.spark.push import narrowed  # noqa: PLC0415 - few need it

        options, self._snapshot = narrowed(filters, self._options, self._snapshot)
        self._options = options
        self._task = replace(self._task, options=options)
        return filters
