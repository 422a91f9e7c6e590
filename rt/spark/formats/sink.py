"""Sink: `df.write.format("rt")`: the rows of each partition become messages of a session.

The tasks of a batch write their rows to files (`staging`). When all tasks are done, the driver
publishes the rows with the sequence numbers `batch << 32 | row`, continuing where an earlier
attempt ended. If the executors do not share the root directory, tasks publish their rows
themselves, on each host in a session of its own. The sessions of one partition are a group, in
which the cluster merges each sequence number once.
"""

import os
import re
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rt.errors import Misuse
from rt.format.checksum import crc32
from rt.format.headers import encode_headers
from rt.log.notify.confirmations import Level
from rt.names import parse_session, parse_stream
from rt.publisher import Publisher
from rt.spark.formats.errors import one_line_errors
from rt.spark.formats.staging import Record, Staged, StagingArea
from rt.spark.reading.options import Table, parse_duration, parse_truth, parsed_options

ROW_BITS: Final = 32
BATCH_END: Final = 1 << 31
_HOST_LENGTH_MAX: Final = 24

_COLUMNS: Final = {
    "payload": ("binary", "string"),
    "key": ("binary", "string"),
    "time": ("timestamp",),
    "time_ns": ("bigint",),
    "stream": ("string",),
    "headers": ("map<string,binary>",),
}
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where rows are published, and which confirmation a batch waits for."""

    root: str  # directory that holds the streams; `rt push` ships from there
    stream: str  # name of the stream; "" if each row names its own
    session: str = ""  # prefix of the sessions' names; "" to derive it from the query's id
    # number of this write among those of `session`; None outside `foreachBatch`
    batch: int | None = None
    shared_root: bool = True  # whether all executors see the same `root`
    flush: Level = Level.SYNCED  # the level that a batch waits for before it is done
    timeout_s: float = 60.0  # how long it waits at most


def _batch(text: str) -> int:
    if not text.isdecimal() or int(text) >= BATCH_END:
        raise Misuse(f"give a whole number below {BATCH_END} as the batch, not {text[:20]!r}")
    return int(text)


_OPTIONS: Final[Table] = {
    "path": ("root", str),
    "stream": ("stream", parse_stream),
    "session": ("session", parse_session),
    "batch": ("batch", _batch),
    "sharedRoot": ("shared_root", parse_truth),
    "flush": ("flush", Level.parse),
    "flushTimeout": ("timeout_s", parse_duration),
}


def checked(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    """Read the options of a write; `Misuse` if they or the rows' schema do not fit the sink."""
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
    return sink_options(options, by_row="stream" in names)


def sink_options(options: Mapping[str, str], *, by_row: bool = False) -> SinkOptions:
    """Read the options of a write; `Misuse` if wrong. With `by_row`, each row names its stream."""
    found = parsed_options("sink", options, _OPTIONS)
    if not found.get("path") or not ("stream" in found or by_row):
        raise Misuse('the rt sink needs a root and a stream: .option("stream", "s").save("/data")')
    if not found.get("sharedRoot", True):
        found.setdefault("flush", Level.MERGED)
    made = SinkOptions(**{"stream": "", **{_OPTIONS[name][0]: v for name, v in found.items()}})
    if made.batch is not None and not made.session:
        raise Misuse("batch numbers the writes of one session; give the option session too")
    if by_row and not made.shared_root:
        raise Misuse("sharedRoot=false takes no column stream; give the option stream")
    if not made.shared_root and made.flush is not Level.MERGED:
        raise Misuse(
            "sharedRoot=false needs flush=merged: only then can the next batch, which may run on "
            "another host, not overtake this one"
        )
    return made


@dataclass
class Written(WriterCommitMessage):
    """A task's report to the driver."""

    part: Staged | None  # the file it wrote; None if it published its rows itself
    prefix: str  # prefix of the sessions' names
    owner: str = ""  # the query


class RtBatchWriter(DataSourceArrowWriter):
    """Publishes the rows of a batch query; with the option `batch`, a repeated write adds none."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._prefix = options.session
        if options.batch is None:
            self._prefix = f"{options.session or 'spark'}-{uuid.uuid4().hex[:16]}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one partition's rows to a file, to be published later; runs in a worker."""
        with one_line_errors():
            batch = self._options.batch or 0
            return write_partition(self._options, self._prefix, batch, _partition(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows of all tasks; runs on the driver."""
        batch = self._options.batch
        with one_line_errors():
            commit(self._options, batch or 0, messages, is_job=True)
        if batch is None:
            _area(self._options, self._prefix).remove()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the files of this batch, except those that a repeated job can still publish."""
        if self._options.batch is None:
            _area(self._options, self._prefix).remove()
        else:
            abort(self._options, self._options.batch, messages)


class RtStreamWriter(DataSourceStreamArrowWriter):
    """Publishes a streaming query's rows; each micro-batch once, however often it is replayed."""

    def __init__(self, options: SinkOptions) -> None:
        if options.batch is not None:
            raise Misuse(
                "the batches of a streaming query have numbers; the option batch is for write"
            )
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of one partition of a micro-batch to a file; runs in a worker."""
        context: Any = TaskContext.get()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        prefix = self._options.session or f"spark-{query.replace('-', '')[:16]}"
        with one_line_errors():
            rows, place = iterator, _partition()
            return write_partition(self._options, prefix, _batch(batch), place, rows, owner=query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the rows of all tasks; runs on the driver."""
        with one_line_errors():
            commit(self._options, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove the files of this micro-batch, except those recorded for publishing."""
        abort(self._options, batchId, messages)


def write_partition(
    options: SinkOptions,
    prefix: str,
    batch: int,
    partition: int,
    rows: Iterator[Any],
    *,
    owner: str = "",
) -> Written:
    """Write the rows of one partition to a file; if hosts share no root directory, publish them.

    Raises:
        Misuse: a row cannot be published, or the session has more rows of this batch than `rows`.
        FlushTimeout: the rows were published, but not confirmed in time.
    """
    rows = (_checked_rows(each, options) for each in rows)
    if options.shared_root:
        return Written(_area(options, prefix).stage(batch, partition, rows), prefix, owner)
    group = f"{prefix}-{partition}"
    with closing(_Publishing(options, batch, f"{group}-{host_name()}", group)) as publishing:
        for each in rows:
            publishing.publish(each)
        publishing.finish()
    return Written(None, prefix, owner)


def commit(
    options: SinkOptions,
    batch: int,
    messages: Sequence[WriterCommitMessage | None],
    *,
    is_job: bool = False,
) -> None:
    """Publish the files that the tasks of a batch reported, after those of an interrupted attempt.

    With `is_job`, the user chose the batch's number, perhaps by mistake that of an earlier batch.

    Raises:
        Misuse: a later batch was published already, or other rows with this number.
        FlushTimeout: all rows were published, but not confirmed in time.
    """
    written = [each for each in messages if isinstance(each, Written) and each.part is not None]
    if not written:
        return
    area = _area(options, prefix := written[0].prefix)
    found = Record(written[0].owner, batch, False, [each.part for each in written if each.part])
    with area.locked(options.timeout_s):
        record = area.record()
        if record is not None:
            _check_turn(found, record, prefix, is_job=is_job)
            if not record.done:
                _publish(area, options, prefix, record)
        if record is None or record.batch < batch:
            area.save(found)
            _publish(area, options, prefix, found)
        area.discard(batch, None)


def abort(options: SinkOptions, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Remove the files that the tasks of a batch have written, except those to be published."""
    for each in messages:
        if isinstance(each, Written) and each.part is not None:
            area = _area(options, each.prefix)
            with area.locked(options.timeout_s):
                area.discard(batch, area.record())
            return


def _check_turn(found: Record, record: Record, prefix: str, *, is_job: bool) -> None:
    if record.owner != found.owner:
        raise Misuse(
            f"the session {prefix} belongs to another query: give each query with a new checkpoint "
            "a session of its own"
        )
    if record.batch > found.batch:
        raise Misuse(
            f"{prefix} holds batch {record.batch} already, and only the last can be repeated: "
            f"batch {found.batch} would have to come before it"
        )
    if is_job and record.batch == found.batch and record.size != found.size:
        raise Misuse(
            f"{prefix} holds batch {found.batch} with {record.size[0]} rows of {record.size[1]} "
            f"bytes, and {found.size[0]} of {found.size[1]} come now: give new rows a new number"
        )


def _publish(area: StagingArea, options: SinkOptions, prefix: str, record: Record) -> None:
    """Publish the files of a record, starting where an earlier attempt ended; then mark it done."""
    with ExitStack() as stack:
        sessions: dict[tuple[str, int], _Publishing] = {}
        for part in record.parts:
            for rows in area.rows(part) if part.name else ():
                for stream, its_rows in _by_stream(rows, options.stream):
                    session = stream, part.partition
                    if session not in sessions:
                        its = replace(options, stream=stream)
                        made = _Publishing(its, record.batch, f"{prefix}-{part.partition}")
                        sessions[session] = stack.enter_context(closing(made))
                    sessions[session].publish(its_rows)
        for publishing in sessions.values():
            publishing.finish()
    record.done = True
    area.save(record)


def _by_stream(rows: Any, stream: str) -> Iterator[tuple[str, Any]]:
    if "stream" not in rows.schema.names:
        yield stream, rows
        return
    names = rows.column("stream")
    for name in pc.unique(names).to_pylist():
        yield name, rows.filter(pc.equal(names, name)).drop_columns(["stream"])


class _Publishing:
    """Publishes a batch's rows in one session, skipping rows that the session already has."""

    def __init__(self, options: SinkOptions, batch: int, session: str, group: str = "") -> None:
        base = batch << ROW_BITS
        self._options = options
        self._publisher = Publisher(
            options.root, stream=options.stream, session=session, group=group
        )
        self._known = self._publisher.next_sequence - base  # rows that an earlier attempt published
        try:
            if self._known > 1 << ROW_BITS:
                raise Misuse(
                    f"session {session} holds batch {self._publisher.next_sequence >> ROW_BITS} "
                    f"already, and only the last can be repeated: what batch {batch} lacks would "
                    "have to come before it"
                )
            if self._known <= 0:
                self._publisher.skip_to(base)
        except BaseException:
            self.close()
            raise

    def publish(self, rows: Any) -> None:
        """Publish the rows of a record batch that an earlier attempt has not published."""
        known = max(0, self._known)
        self._known = known - rows.num_rows
        if known < rows.num_rows:
            _publish_batch(self._publisher, rows.slice(known))

    def finish(self) -> None:
        """Wait until the rows are confirmed; `Misuse` if an earlier attempt published more rows."""
        if self._known > 0:
            raise Misuse(
                f"session {self._publisher.name} holds {self._known} more rows of this batch than "
                "this replay brings: it differs from the attempt before"
            )
        self._publisher.flush(self._options.flush, self._options.timeout_s)

    def close(self) -> None:
        """Release the session."""
        self._publisher.close()


def _area(options: SinkOptions, prefix: str) -> StagingArea:
    return StagingArea(options.root, options.stream, prefix)


def _checked_rows(rows: Any, options: SinkOptions) -> Any:
    """Check all rows before any is published; `Misuse` if one cannot be published."""
    names = rows.schema.names
    if rows.column("payload").null_count:
        raise Misuse("a payload is null; filter such rows out, or give them one")
    for name in {"time", "time_ns"}.intersection(names):
        if rows.column(name).null_count:
            raise Misuse("a time is null; leave the column out to publish at the time it is now")
    if "headers" in names:
        for cell in rows.column("headers").to_pylist():
            encode_headers(dict(cell or ()))
    if "stream" in names:
        for name in pc.unique(rows.column("stream")).to_pylist():
            if parse_stream(name) and options.stream not in ("", name):
                raise Misuse(
                    f"a row names the stream {name}, but the option stream is {options.stream}"
                )
    return rows


def _publish_batch(publisher: Publisher, batch: Any) -> None:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    payloads = columns["payload"].cast(pa.binary()).to_pylist()
    keys, times, headers = (columns.get(name) for name in ("key", "time_ns", "headers"))
    if "time" in columns:
        times = columns["time"].cast(pa.timestamp("ns", tz="UTC")).view(pa.int64())
    publisher.publish_many(
        payloads,
        None if keys is None else keys.cast(pa.binary()).fill_null(b"").to_pylist(),
        None if times is None else times.to_pylist(),
        headers=None if headers is None else map(dict, headers.fill_null([]).to_pylist()),
    )


def _partition() -> int:
    context: Any = TaskContext.get()
    return int(context.partitionId())


def host_name() -> str:
    """Return a short name for this machine, from RT_HOST or the host name, for a session's name."""
    name = re.sub(r"[^a-z0-9]+", "-", os.environ.get("RT_HOST", socket.gethostname()).lower())
    name = name.strip("-") or "host"
    if len(name) <= _HOST_LENGTH_MAX:
        return name
    mark = f"-{crc32(name.encode()):08x}"  # names of pods differ at their ends
    return name[: _HOST_LENGTH_MAX - len(mark)].rstrip("-") + mark
