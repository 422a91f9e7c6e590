"""Source: `spark.read.format("rt")`, for Spark's Python Data Source API."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark import __version__
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from rt.errors import Misuse, RtError
from rt.spark.formats.errors import check_version, one_line_errors
from rt.spark.reading.options import ReadOptions, TriggerLimits, read_options
from rt.spark.reading.plan import LogSnapshot, check_nothing_archived, take_snapshots
from rt.spark.reading.schema import check_schema, default_schema
from rt.spark.reading.splits import splits
from rt.spark.reading.task import Task


class RtSource(DataSource):
    """A log directory as a table.

    Spark creates an object for each `load()` or `save()`; if a load's schema is given, Spark
    creates the object only at the first action. The constructor fixes what a load reads, since no
    other method runs exactly once for a load.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        with one_line_errors():
            check_version(__version__)
        self._read_options: ReadOptions | None = None
        self._snapshots: tuple[LogSnapshot, ...] | None = None
        self._refusal = ""
        self._fixed_at_load = False  # given a schema, Spark makes this object at the first action
        try:
            self._read_options = read_options(options)
            self._snapshots = take_snapshots(self._read_options)
            self._take_leases(self._snapshots)
        except (RtError, OSError) as error:
            # only a batch read raises it: this may be a write, and a stream may start before its
            # log exists
            self._snapshots = None
            self._refusal = str(error)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "rt"

    def schema(self) -> str:
        """Return the schema, as DDL, of a load that gives Spark no schema."""
        self._fixed_at_load = True
        with one_line_errors():
            return default_schema(self._reading())

    def reader(self, schema: StructType) -> "RtReader":
        """Return the reader of a batch query."""
        with one_line_errors():
            options = self._reading()
            if self._snapshots is None:
                raise Misuse(self._refusal)
            if options.limits != TriggerLimits():
                raise Misuse("limits of a trigger, as maxRecordsPerTrigger, are for readStream")
            if options.edges.start == "latest":
                raise Misuse("startingPosition=latest is for readStream: a batch would be empty")
            if options.fail_on_data_loss and not self._fixed_at_load:
                check_nothing_archived(self._snapshots, options)
            self._take_leases(self._snapshots)  # the load may have been long ago
            return RtReader(options, schema, self._snapshots)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a streaming query, new or resumed."""
        from rt.spark.formats import stream  # noqa: PLC0415 - batches need none of it

        try:
            return stream.RtStreamReader(self._reading(), schema)
        except RtError as error:
            return stream.RefusingReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer that publishes the rows of a batch query."""
        from rt.spark.formats import sink  # noqa: PLC0415 - reads need none of it

        with one_line_errors():
            return sink.RtBatchWriter(sink.checked(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return a writer that publishes the rows of a streaming query."""
        from rt.spark.formats import sink  # noqa: PLC0415 - reads need none of it

        with one_line_errors():
            return sink.RtStreamWriter(sink.checked(self.options, schema, overwrite=overwrite))

    def _take_leases(self, snapshots: tuple[LogSnapshot, ...]) -> None:
        lease = self._reading().lease
        if lease is not None:
            from rt.spark.formats.lease import take_lease  # noqa: PLC0415 - most have none

            for snapshot in snapshots:
                take_lease(lease, snapshot.start, snapshot.place.stream)

    def _reading(self) -> ReadOptions:
        if self._read_options is None:
            raise Misuse(self._refusal)
        return self._read_options


class RtReader(DataSourceReader):
    """Reads a log for one batch query."""

    def __init__(
        self, options: ReadOptions, schema: StructType, snapshots: tuple[LogSnapshot, ...]
    ) -> None:
        self._options = options
        self._snapshots = snapshots
        places = tuple(each.place for each in snapshots)
        self._task = Task(places, options, check_schema(schema, options))

    def partitions(self) -> Sequence[InputPartition]:
        """Cut what the query reads into splits; if it reads nothing, return one empty split."""
        with one_line_errors():
            return [InputPartition(each) for each in splits(self._snapshots, self._options) or [()]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one split; runs in a worker."""
        with one_line_errors():
            yield from self._task.read(partition.value)
