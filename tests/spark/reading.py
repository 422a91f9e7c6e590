"""A Spark query's steps without Spark: plan, travel to a worker, read."""

import pickle
from typing import Any

import pyarrow as pa

from rt.spark.reading.options import read_options
from rt.spark.reading.plan import take_snapshots
from rt.spark.reading.schema import COLUMNS, CORRUPT, arrow_schema
from rt.spark.reading.splits import splits
from rt.spark.reading.task import Task


def wanted(*names: str) -> pa.Schema:
    """Return the columns of those names, as Spark would request them."""
    schema = arrow_schema([name for name in names or COLUMNS if name != CORRUPT])
    return schema.append(pa.field(CORRUPT, pa.string())) if CORRUPT in names else schema


def bytes_read() -> int:
    """Return how many bytes this thread has read of files so far, according to the kernel."""
    with open("/proc/thread-self/io", encoding="utf-8") as file:
        return int(file.readline().removeprefix("rchar: "))


# Spark gives a stream's planning Python ten seconds to start, and no setting for more: on a busy or
# stalled machine a failure here says nothing about rt.
SLOW_START = "Python worker failed to connect back"


class Load:
    """One `load()`; making it fixes what it reads."""

    def __init__(self, path: str, **options: object) -> None:
        self.options = read_options({"path": path, **{k: str(v) for k, v in options.items()}})
        self.snapshots = take_snapshots(self.options)

    def splits(self) -> list[Any]:
        """Return the tasks' parts."""
        return splits(self.snapshots, self.options)

    def read(self, columns: pa.Schema | None = None, parts: list[Any] | None = None) -> pa.Table:
        """Run all tasks, each from its pickle, and return the rows in order."""
        columns = columns or wanted()
        task = pickle.dumps(
            Task(tuple(each.place for each in self.snapshots), self.options, columns)
        )
        batches = []
        for split in self.splits() if parts is None else parts:
            batches += pickle.loads(task).read(pickle.loads(pickle.dumps(split)))
        for batch in batches:
            batch.validate(full=True)
        return pa.Table.from_batches(batches, columns)
