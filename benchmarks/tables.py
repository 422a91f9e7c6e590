"""A log, its table, both, plain Parquet, and DuckDB over `read_arrow`: five questions, in turn.

The table ends 0.5 % before the log, as one that is followed does; the union reads both. What counts
are ratios within one run: narrow questions to the union take at most 1.2 times what Parquet takes.
Those two are asked more often than the others, and their processor time counts too: others may load
the machine.
"""

import importlib.util
import os
import statistics
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any, Final, NamedTuple

from benchmarks.log import directory
from benchmarks.report import Row, seconds
from benchmarks.spark import MERGE_NS, merged
from rt import read_arrow
from rt.log.read.start import AtTime
from rt.position import Position
from rt.spark import read
from rt.spark.launch import session
from rt.spark.reading.plan import LogView
from rt.tables.export import Export, ExportSettings, parquet_opener

ROUNDS: Final = 9  # after one that is not counted
FEW: Final = 2  # of them, for what is not compared
PARTITIONS: Final = (1, 4, 64)
TAIL: Final = 0.005  # of the log, that the table lacks
UNION_MAX: Final = 1.2
# What is asked, of which columns, and of which part; all but payloads are narrow.
QUESTIONS: Final = {
    "count": ("count(number)", "number", ""),
    "narrow columns": ("sum(payload_size), max(seq)", "payload_size, seq", ""),
    "1 % by time": ("sum(payload_size)", "payload_size, merge_time", "time"),
    "one session": ("count(seq)", "seq, session", "session"),
    "payloads": ("sum(octet_length(payload))", "payload", ""),
}
NARROW: Final = ("count", "narrow columns", "1 % by time", "one session")


class Paths(NamedTuple):
    """A log, the table that ends before it, and one of all of it."""

    log: str
    table: str
    whole: str


class Used(NamedTuple):
    """What a question took."""

    time_s: float
    processor_s: float


def rows(quick: bool) -> list[Row]:
    """The time of each question, and beside it Parquet's; `quick` asks for 4 partitions only."""
    found: list[Row] = []
    with warnings.catch_warnings(), directory() as root:
        warnings.simplefilter("ignore")
        spark = session(
            "benchmark", "local[2]", spark__ui__enabled=False,
            spark__ui__showConsoleProgress=False, spark__sql__shuffle__partitions=2,
            spark__sql__files__openCostInBytes=0,
        )  # fmt: skip
        spark.sparkContext.setLogLevel("OFF")
        log = merged(os.path.join(root, "log"), 100, 1000)
        table, whole = os.path.join(root, "table"), os.path.join(root, "whole")
        export(log, table, TAIL)
        export(log, whole, 0.0)
        for partitions in (4,) if quick else PARTITIONS:
            for question in QUESTIONS:
                found += asked(spark, Paths(log, table, whole), question, partitions)
        spark.stop()
    return found


def export(log: str, out: str, tail: float) -> None:
    """Export the log but for its tail."""
    with closing(LogView(log)) as view, ExitStack() as undo:
        view.refresh()
        settings = ExportSettings(include_active=True)
        ended = _Ended(view, parquet_opener(out, settings), settings, undo)
        files = list(view.files())
        file, end = files[-1]
        ended.stop = Position(file + max(0, end - int(tail * sum(size for _, size in files))))
        while ended.step():
            pass
        ended.join(seal=True)


class _Ended(Export):
    """An export that goes no further than a position."""

    stop: Position

    def end(self) -> Position:
        """Where it ends."""
        return self.stop


def asked(spark: Any, paths: Paths, question: str, partitions: int) -> list[Row]:
    """One question, to each in turn."""
    log, table, whole = paths
    what, columns, part = QUESTIONS[question]
    size = sum(os.path.getsize(os.path.join(log, name)) for name in os.listdir(log))
    parquet = sum(os.path.getsize(os.path.join(p, n)) for p, _, ns in os.walk(whole) for n in ns)
    spark.conf.set("spark.sql.files.maxPartitionBytes", parquet // partitions + 1)
    first_ns, last_ns = window(log)
    wanted = {
        "": "true",
        "time": f"merge_time >= timestamp_micros({first_ns // 1000}) and "
        f"merge_time < timestamp_micros({last_ns // 1000})",
        "session": "session = 'one'",
    }[part]
    split = {"partitionBytes": size // partitions + 1, "minPartitions": partitions}
    loading = read(log).schema(columns).option(**split)
    narrow = loading.option(startingTimestamp=first_ns, endingTimestamp=last_ns)
    narrow = {"": loading, "time": narrow, "session": loading.sessions("one")}[part]
    frames = {
        "log": narrow.load(spark),
        "table": read(log).schema(columns).table(whole, spark=spark).where(wanted),
        "union": read(log).schema(columns).table(table, spark=spark).where(wanted),
        "Parquet": spark.read.parquet(whole).where(wanted),
    }
    works: dict[str, Callable[[], object]] = {
        name: partial(lambda frame: frame.selectExpr(*what.split(", ")).collect(), frame)
        for name, frame in frames.items()
    }
    if partitions == PARTITIONS[1] and importlib.util.find_spec("duckdb"):  # it has no partitions
        works["DuckDB"] = lambda: duck(log, what, columns, part, (first_ns, last_ns))
    took = interleaved(works)
    label, beside = f"{question}, {partitions} partitions", took["Parquet"]
    found = []
    for name, used in took.items():
        bound = UNION_MAX if name == "union" and question in NARROW else 0
        what_took = f"{label}: {name}"
        found += [
            Row(what_took, used.time_s, "s", bound, beside.time_s, at_most=True, is_ratio=True),
            Row(f"{what_took}, processor", used.processor_s, "s", 0, beside.processor_s),
        ]
    return found


def window(log: str) -> tuple[int, int]:
    """One percent of the merge times, from the middle on."""
    last_ns = read(log).summary().merge_time_ns_max or MERGE_NS + 1
    start = MERGE_NS + (last_ns - MERGE_NS) // 2
    return start, start + max((last_ns - MERGE_NS) // 100, 1_000_000)


def duck(log: str, what: str, columns: str, part: str, edges: tuple[int, int]) -> object:
    """The same question to DuckDB, over batches of Arrow."""
    import duckdb  # noqa: PLC0415 - optional

    cut: dict[str, Any] = {}
    if part == "time":
        cut = {"start": AtTime(edges[0]), "end": AtTime(edges[1])}
    sessions = ["one"] if part == "session" else None
    reader = read_arrow(log, columns=columns.split(", "), sessions=sessions, **cut)
    return duckdb.from_arrow(reader).aggregate(what).fetchall()


def interleaved(works: dict[str, Callable[[], object]]) -> dict[str, Used]:
    """Run all in turn, after a round that is not counted; the median of each."""
    for work in works.values():
        work()
    found: dict[str, list[Used]] = {name: [] for name in works}
    for number in range(ROUNDS):
        names = list(works) if number < FEW else ["Parquet", "union"]
        for name in names[:: -1 if number % 2 else 1]:  # what ran before may help, or hinder
            began_s = processor_s()
            found[name].append(Used(seconds(works[name]), processor_s() - began_s))
    return {
        name: Used(*(statistics.median(each) for each in zip(*rounds, strict=True)))
        for name, rounds in found.items()
    }


def processor_s() -> float:
    """The processor time so far of this process and all that it started, in seconds."""
    children: dict[str, list[str]] = {}
    ticks = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
            children.setdefault(fields[1], []).append(pid)
            ticks[pid] = sum(map(int, fields[11:15]))  # its own, and those of ended children
    total, left = 0, [str(os.getpid())]
    while left:
        total += ticks.get(pid := left.pop(), 0)
        left += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")
