"""Sink: `df.write.format("rt")`: each task publishes the rows of its partition as a session.

Retried tasks and replayed micro-batches publish no row twice: a partition of a query has one
session, its rows have the numbers `batch << 32 | row`, and rows whose numbers the session already
holds are compared with it and not published again. Where the executors do not share the root
directory, each host has a session of its own and those of one partition are a group: the sequencer
then merges each number once.
"""

import os
import re
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rt.config.kinds import parse_seconds
from rt.errors import Misuse
from rt.format.checksum import crc32
from rt.log.confirmations import Level
from rt.names import parse_session, parse_stream, session_directory
from rt.publisher import Publisher
from rt.spark.replay import Published, exclusive

ROW_BITS: Final = 32
BATCH_END: Final = 1 << 31
_HOST_LENGTH_MAX: Final = 24

_NAMES: Final = {
    name.lower(): name
    for name in ("path", "stream", "session", "batch", "sharedRoot", "flush", "flushTimeout")
}
_SPARKS: Final = frozenset({"checkpointlocation", "queryname"})
_COLUMNS: Final = {
    "payload": ("binary", "string"),
    "key": ("binary", "string"),
    "time": ("timestamp",),
    "time_ns": ("bigint",),
}
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where rows are published, and what is promised of them.

    Attributes:
        root: directory under which streams live; `rt push` ships from there.
        stream: name of the stream.
        session: what the names of the sessions begin with; "" for one made of the query's id.
        batch: number of this write among those of `session`; None outside `foreachBatch`.
        shared_root: whether all executors see the same `root`.
        flush: what each task waits for before it is done.
        timeout_s: and how long.
    """

    root: str
    stream: str
    session: str = ""
    batch: int | None = None
    shared_root: bool = True
    flush: Level = Level.SYNCED
    timeout_s: float = 60.0


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of a write; `Misuse` names the one that is unknown or contradicts."""
    given = {name.lower(): str(value) for name, value in options.items()}
    for name in given:
        if name not in _NAMES and name not in _SPARKS:
            known = ", ".join(_NAMES.values())
            raise Misuse(f"the rt sink has no option {name!r}; it has {known}")
    if not given.get("path") or not given.get("stream"):
        raise Misuse('the rt sink needs a root and a stream: .option("stream", "s").save("/data")')
    shared = given.get("sharedroot", "true").lower()
    if shared not in ("true", "false"):
        raise Misuse(f"sharedRoot is {shared!r}: give true or false")
    made = SinkOptions(
        root=given["path"],
        stream=parse_stream(given["stream"]),
        session=parse_session(given["session"]) if "session" in given else "",
        batch=_batch(given["batch"]) if "batch" in given else None,
        shared_root=shared == "true",
        flush=_told(given, "flush", Level.parse, "synced" if shared == "true" else "merged"),
        timeout_s=_told(given, "flushtimeout", parse_seconds, "60s"),
    )
    if made.batch is not None and not made.session:
        raise Misuse("batch numbers the writes of one session; give the option session too")
    if not made.shared_root and made.flush is not Level.MERGED:
        raise Misuse(
            "sharedRoot=false needs flush=merged: only then can the next batch, which may run on "
            "another host, not overtake this one"
        )
    return made


def _told(given: Mapping[str, str], name: str, parse: Callable[[str], Any], default: str) -> Any:
    text = given.get(name, default)
    try:
        return parse(text)
    except ValueError as error:
        raise Misuse(f"{_NAMES[name]} is {text[:60]!r}: {error}") from None


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> "RtBatchWriter":
    """Return the writer of one `df.write`."""
    return RtBatchWriter(_checked(options, schema, overwrite=overwrite), uuid.uuid4().hex)


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> "RtStreamWriter":
    """Return the writer of one streaming query."""
    made = _checked(options, schema, overwrite=overwrite)
    if made.batch is not None:
        raise Misuse("the batches of a streaming query have numbers; the option batch is for write")
    return RtStreamWriter(made)


class RtBatchWriter(DataSourceArrowWriter):
    """Publishes a batch query's rows; every attempt of a task under the same numbers."""

    def __init__(self, options: SinkOptions, job: str) -> None:
        self._options = options
        self._job = job

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish one partition; runs in a worker."""
        options = self._options
        prefix = options.session or f"spark-{self._job[:16]}"
        if options.session and options.batch is None:
            prefix = f"{options.session}-{self._job[:16]}"
        return publish_partition(options, prefix, options.batch or 0, iterator)


class RtStreamWriter(DataSourceStreamArrowWriter):
    """Publishes a streaming query's rows; every replay of a micro-batch under the same numbers."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish one partition of one micro-batch; runs in a worker."""
        context = _task()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise Misuse("this Spark does not tell a task its query and batch; rt cannot number")
        prefix = self._options.session or f"spark-{query.replace('-', '')[:16]}"
        return publish_partition(self._options, prefix, _batch(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is left to do: what a task published, it flushed."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing can be undone: the replay of the batch completes it."""


def _checked(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise Misuse("a log is only appended to; use mode('append') or outputMode('append')")
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if kind not in _COLUMNS.get(field.name, ()):
            known = ", ".join(f"{name} {' or '.join(kinds)}" for name, kinds in _COLUMNS.items())
            raise Misuse(f"the rt sink takes no column {field.name} {kind}; it takes {known}")
    names = set(schema.names)
    if "payload" not in names or {"time", "time_ns"} <= names:
        raise Misuse("the rt sink needs a column payload, and one of time and time_ns at most")
    return sink_options(options)


def publish_partition(
    options: SinkOptions, prefix: str, batch: int, rows: Iterator[Any]
) -> WriterCommitMessage:
    """Publish the rows of this task's partition under their numbers; runs in a worker.

    Raises:
        Misuse: what the session already holds differs from these rows.
        FlushTimeout: they are published, but the level to wait for was not reached in time.
    """
    partition = _task().partitionId()
    session = f"{prefix}-{partition}" if options.shared_root else f"{prefix}-{partition}-{_host()}"
    group = "" if options.shared_root else f"{prefix}-{partition}"
    base = batch << ROW_BITS
    directory = session_directory(options.root, options.stream, session)
    with (
        exclusive(directory, options.timeout_s),
        Publisher(options.root, stream=options.stream, session=session, group=group) as publisher,
    ):
        numbered = _Numbered(publisher, directory, base)
        for each in rows:
            numbered.publish(each)
        numbered.finish()
        publisher.flush(options.flush, options.timeout_s)
    return WriterCommitMessage()


class _Numbered:
    """Publishes rows under numbers from `base` on, and compares those that are already there."""

    def __init__(self, publisher: Publisher, directory: str, base: int) -> None:
        self._publisher = publisher
        self._next = base
        self._there = publisher.next_sequence
        if self._there > base + (1 << ROW_BITS):
            raise Misuse(
                f"{directory} holds batch {self._there >> ROW_BITS} already, and only the last can "
                f"be repeated: what batch {base >> ROW_BITS} lacks would have to come before it"
            )
        self._published = Published(directory, base) if self._there > base else None
        if self._there <= base:
            publisher.skip_to(base)

    def publish(self, batch: Any) -> None:
        """Publish the rows of a record batch, or find them published."""
        count, known = batch.num_rows, max(0, self._there - self._next)
        if self._published is not None and known:
            self._published.compare(self._next, batch.slice(0, min(known, count)))
        self._next += count
        if count > known:
            _publish_batch(self._publisher, batch.slice(known))

    def finish(self) -> None:
        """The rows have ended; there must not be more of them in the session."""
        if self._published is not None:
            self._published.close()
            if self._next < self._there:
                self._published.differs(self._next)


def _publish_batch(publisher: Publisher, batch: Any) -> None:
    columns = {name: batch.column(name) for name in batch.schema.names}
    payloads = columns["payload"]
    if payloads.null_count:
        raise Misuse("a payload is null; filter such rows out, or give them one")
    keys = columns["key"].cast(pa.binary()).fill_null(b"").to_pylist() if "key" in columns else None
    publisher.publish_many(payloads.cast(pa.binary()).to_pylist(), keys, times_of(columns))


def times_of(columns: MutableMapping[str, Any]) -> Any:
    """The publish times of rows in ns, or None where they name none."""
    if "time" in columns:
        times = columns["time"].cast(pa.timestamp("ns", tz="UTC")).view(pa.int64())
    elif "time_ns" in columns:
        times = columns["time_ns"]
    else:
        return None
    if times.null_count:
        raise Misuse("a time is null; leave the column out to publish at the time it is now")
    return times.to_pylist()


def _batch(text: str) -> int:
    if not text.isdecimal() or int(text) >= BATCH_END:
        raise Misuse(f"batch is {text[:20]!r}: give a whole number below {BATCH_END}")
    return int(text)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise Misuse("the rt sink writes inside Spark tasks only")
    return context


def _host() -> str:
    """A name for this machine's root directory, as part of a session's name."""
    name = re.sub(r"[^a-z0-9]+", "-", os.environ.get("RT_HOST", socket.gethostname()).lower())
    name = name.strip("-") or "host"
    if len(name) <= _HOST_LENGTH_MAX:
        return name
    mark = f"-{crc32(name.encode()):08x}"  # those of pods differ at their ends
    return name[: _HOST_LENGTH_MAX - len(mark)].rstrip("-") + mark
