"""Spark over a merged log: beside a source that decodes nothing, Parquet, and NumPy on one core.

Any Python source is bounded by Spark's path from Python to the JVM. A source that hands over the
same batches ready-made, of the same columns and as many rows, measures that path. Another that does
the same, and reads and checks every byte of the log meanwhile, measures what decoding adds to it.
"""

import os
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import rt.spark
from benchmarks.log import directory
from benchmarks.report import Row, seconds
from rt import Publisher
from rt.format.checksum import crc32
from rt.format.manifest import MERGED
from rt.format.scan import Scan
from rt.format.walk import Walk
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.files.identity import new_identity
from rt.log.read.start import end_of
from rt.spark.launch import session
from rt.spark.reading.options import read_options
from rt.spark.reading.plan import take_snapshots
from rt.spark.reading.schema import check_schema
from rt.spark.reading.splits import splits
from rt.spark.reading.task import BATCH_BYTES, Task
from sequencer.execution.executor import Executor
from sequencer.ledger.ledger import Ledger
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLogs

ROUNDS = 9
WARM_UP_ROUNDS = (
    3  # the JVM compiles what runs often; the first round of a query takes twice as long
)
PARTS = 8  # of 1 GB, the splits that a load makes by default
MERGE_NS = 1_357_017_420_000_000_000
QUERIES = {
    "count": ("position bigint", "count(position)"),
    "sum(length(payload))": ("payload binary", "sum(length(payload))"),
    "sum(payload_size)": ("payload_size int", "sum(payload_size)"),
    "by session": ("session string", "count(*) by session"),
    "all columns": ("", "sum(length(payload))"),
}
FROM_HEADERS = ("count", "by session")


class NullSource(DataSource):
    """Gives out one batch of the log again and again: as many rows, nothing read or decoded."""

    @classmethod
    def name(cls) -> str:
        """The name for `format()`."""
        return "rt-null"

    def reader(self, schema: Any) -> "NullReader":
        """Plan the splits of the real source."""
        return NullReader(self.options, schema)


class NullReader(DataSourceReader):
    """Reads one batch for each split, and repeats it."""

    def __init__(self, given: Mapping[str, str], schema: Any) -> None:
        options = read_options(given)
        self._snapshot = take_snapshots(options)[0]
        self._options = options
        self._task = Task((self._snapshot.place,), options, check_schema(schema, options))

    def partitions(self) -> list[InputPartition]:
        """The real splits, each with the rows it has."""
        counts = Task((self._snapshot.place,), self._options, self._task.schema)
        return [
            InputPartition((parts, sum(batch.num_rows for batch in counts.read(parts))))
            for parts in splits((self._snapshot,), self._options)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Decode one batch and give it out until the rows are done."""
        parts, left = partition.value
        batch = next(iter(self._task.read(parts)))
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


class ReadSource(NullSource):
    """Gives out one batch again and again, and reads the log beside it as the real source does."""

    @classmethod
    def name(cls) -> str:
        """The name for `format()`."""
        return "rt-read"

    def reader(self, schema: Any) -> "ReadReader":
        """Plan the splits of the real source."""
        return ReadReader(self.options, schema)


class ReadReader(NullReader):
    """For each batch it reads and checks as many bytes as the real source reads for one."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the split to its end, a batch for each read."""
        batches = super().read(partition)
        for part in partition.value[0]:
            with open(os.path.join(self._options.paths[0], part.file.file_name), "rb") as file:
                for offset in range(part.begin, part.end, BATCH_BYTES):
                    crc32(os.pread(file.fileno(), BATCH_BYTES, offset))
                    yield from islice(batches, 1)
        yield from batches


def rows(quick: bool) -> list[Row]:
    """All figures of the Spark source; `quick` is a fifth of the data in as many splits."""
    megabytes = 200 if quick else 1000
    found: list[Row] = []
    with warnings.catch_warnings(), directory() as root:
        warnings.simplefilter("ignore")
        spark = session(
            "benchmark", "local[2]", spark__ui__enabled=False,
            spark__ui__showConsoleProgress=False, spark__sql__shuffle__partitions=2,
        )  # fmt: skip
        spark.sparkContext.setLogLevel("OFF")
        spark.dataSource.register(NullSource)
        spark.dataSource.register(ReadSource)
        for size in (100, 1024):
            path = merged(os.path.join(root, str(size)), size, megabytes)
            found += [row for name in QUERIES for row in scans(spark, path, size, megabytes, name)]
            found += [_numpy(path, size, megabytes), window(spark, path, size)]
        small = merged(os.path.join(root, "small"), 100, 8)
        large = os.path.join(root, "100", "out")
        found += [tasks(spark, large, f"{megabytes} MB"), tasks(spark, small, "8 MB")]
        spark.stop()
    # with so little data, starting a job outweighs the scan
    return [replace(row, target=0, is_ratio=False) for row in found] if quick else found


def merged(root: str, size: int, megabytes: int) -> str:
    """Publish and merge so many messages, of two sessions in turn; return the merged log."""
    source, target = os.path.join(root, "bench"), os.path.join(root, "out")
    logs, ledger, disk = SessionLogs(OsDisk(), source), Ledger(), OsDisk()
    identity = new_identity(MERGED, "bench", "out", created_ns=1)
    executor, planner = Executor(disk, target, identity, ledger, logs), Planner(logs)
    publishers = [Publisher(root, stream="bench", session=name) for name in ("one", "two")]
    payloads = [os.urandom(size) for _ in range(4_000_000 // size)]
    for _ in range(megabytes // 8):
        for publisher in publishers:
            publisher.publish_many(payloads)
            publisher.flush("written")
        durable = {each.name: end_of(LogDirectory(f"{source}/{each.name}")) for each in publishers}
        while instruction := planner.plan(ledger, durable, MERGE_NS + ledger.index * 1_000_000):
            executor.execute(ledger.index + 1, 1, instruction)
    executor.appender.roll(MERGE_NS)
    executor.close()
    logs.close()
    for publisher in publishers:
        publisher.close()
    return target


def scans(spark: Any, path: str, size: int, megabytes: int, name: str) -> list[Row]:
    """One query, in turn by `rt`, by what bounds it, and over the same rows as Parquet."""
    from rt.spark import to_parquet  # noqa: PLC0415 - kept beside its only use

    parquet, (schema, what) = path + ".parquet", QUERIES[name]
    if not os.path.exists(parquet):
        to_parquet(path, parquet)
    split = {"partitionBytes": str(megabytes * 1_000_000 // PARTS)}
    kinds = ["rt", "rt-null"] + ["rt-read"] * (name not in FROM_HEADERS)
    works = {kind: _work(what, _load(spark, kind, path, schema, **split)) for kind in kinds}
    works["parquet"] = _work(what, spark.read.parquet(parquet))
    rate = {kind: megabytes / time for kind, time in _interleaved(works).items()}
    label = f"Spark, {size} B, {name}"
    found = [Row(label, rate["rt"], "MB/s", 0.9, rate["rt-null"], is_ratio=True)]
    if "rt-read" in rate:
        found.append(Row(f"{label}: beside reading", rate["rt"], "MB/s", 0, rate["rt-read"]))
    return [*found, Row(f"{label}: beside Parquet", rate["rt"], "MB/s", 0, rate["parquet"])]


def _numpy(path: str, size: int, megabytes: int) -> Row:
    took = _interleaved({"numpy": lambda: _scan_alone(path)})
    return Row(f"NumPy, {size} B, one core", megabytes / took["numpy"], "MB/s", 0)


def window(spark: Any, path: str, size: int) -> Row:
    """A window of 1 % of the merge times, against all of them."""
    schema = QUERIES["sum(length(payload))"][0]
    full = _load(spark, "rt", path, schema)
    times = full.sparkSession.read.format("rt-history").load(path).select("last_time").first()[0]
    last_ns = int(times.timestamp() * 1e6) * 1000
    start = last_ns - (last_ns - MERGE_NS) // 2
    end = start + max((last_ns - MERGE_NS) // 100, 1_000_000)
    limits = {"startingTimestamp": str(start), "endingTimestamp": str(end)}
    took = _interleaved({
        "full": _work("sum(length(payload))", full),
        "window": _work("sum(length(payload))", _load(spark, "rt", path, schema, **limits)),
    })  # fmt: skip
    value = took["full"] / took["window"]
    return Row(f"Spark, {size} B, 1 % time window, against all", value, "times faster", 8)


def tasks(spark: Any, path: str, size: str) -> Row:
    """What a task costs: 64 partitions against 4, which read headers only."""
    messages = rt.spark.read(path).summary().messages
    works = {}
    for count in (4, 64):
        split = {"maxRecordsPerPartition": str(-(-messages // count)), "partitionBytes": "1g"}
        works[str(count)] = _work(
            "count(position)", _load(spark, "rt", path, "position bigint", **split)
        )
    took = _interleaved(works)
    times = f"4 partitions ({took['4']:.2f} s) in the time of 64 ({took['64']:.2f} s)"
    return Row(f"Spark, {size}, {times}", took["4"] / took["64"], "of it", 0.25)


def _load(spark: Any, kind: str, path: str, schema: str, **options: str) -> Any:
    from rt.spark.reading.options import ReadOptions  # noqa: PLC0415 - kept beside its only use
    from rt.spark.reading.schema import default_schema  # noqa: PLC0415

    schema = schema or default_schema(ReadOptions((path,)))
    return spark.read.format(kind).schema(schema).options(**options).load(path)


def _work(what: str, frame: Any) -> Callable[[], object]:
    """A query on a frame that was loaded: what its plan costs is paid in the discarded rounds."""
    if what.endswith("by session"):
        return lambda: frame.groupBy("session").count().collect()
    return lambda: frame.selectExpr(what).collect()


def _interleaved(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Run all in turn, after rounds that are not counted; the median of each."""
    for work in list(works.values()) * WARM_UP_ROUNDS:
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: statistics.median(each) for name, each in times.items()}


def _scan_alone(path: str) -> int:
    """Check every frame and add up the sizes of all messages, on one core."""
    log = LogDirectory(path)
    log.refresh()
    total = 0
    for start in log.files():
        file = log.open_file(start)
        scan = Scan(file.pread, Walk(start, merged=True))
        while frame := scan.next(file.size()):
            if frame.header.kind == 0:
                count = frame.header.messages
                offsets = np.frombuffer(frame.body[8 * count : 12 * count + 4], "<u4")
                total += int((offsets[1:] - offsets[:-1]).sum())
        file.close()
    log.close()
    return total
