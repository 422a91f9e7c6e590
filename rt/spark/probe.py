"""Probe: tests whether this Spark returns right rows if a Python source accepts filters.

Spark 4.1 to 4.3 apply the last filters that a source accepted to all other uses of the same load:
a count after a filtered count counts the filtered rows. Vendors patch their versions, so three
small queries decide rather than a version number.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    Filter,
    GreaterThanOrEqual,
    InputPartition,
)

PUSH_DOWN: Final = "spark.sql.python.filterPushdown.enabled"
_ROWS: Final = 100


class ProbeSource(DataSource):
    """A hundred numbers; accepts a filter for a lower bound."""

    @classmethod
    def name(cls) -> str:
        """The name for `format()`."""
        return "rt-probe"

    def schema(self) -> str:
        """One column."""
        return "a bigint"

    def reader(self, schema: Any) -> "ProbeReader":  # noqa: ARG002 - Spark's
        """Plan one query."""
        return ProbeReader()


class ProbeReader(DataSourceReader):
    """Reads the numbers from the lower bound on."""

    def __init__(self) -> None:
        self._first = 0

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's
        """Skip numbers below the bound; Spark applies all filters again."""
        for each in filters:
            if isinstance(each, GreaterThanOrEqual):
                self._first = max(self._first, each.value)
        return filters

    def partitions(self) -> list[InputPartition]:
        """One."""
        return [InputPartition(self._first)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The numbers; runs in a worker."""
        numbers = pa.array(range(partition.value, _ROWS), pa.int64())
        yield pa.RecordBatch.from_arrays([numbers], names=["a"])


def gives_right_rows(spark: Any, source: type[DataSource] = ProbeSource) -> bool:
    """Use one load with a filter, without one, and with two of them, and count.

    Args:
        spark: a `SparkSession`; afterwards it knows one more format, `rt-probe`.
        source: the format that takes the filters.
    """
    spark.dataSource.register(source)
    with pushing(spark):
        frame = spark.read.format(source.name()).load()
        few = frame.filter("a >= 90")
        found = few.count(), frame.count(), few.union(frame.filter("a >= 99")).count()
    return found == (10, _ROWS, 11)


@contextmanager
def pushing(spark: Any) -> Iterator[None]:
    """Let sources accept filters inside the block."""
    before = spark.conf.get(PUSH_DOWN)
    spark.conf.set(PUSH_DOWN, "true")
    try:
        yield
    finally:
        spark.conf.set(PUSH_DOWN, before)
