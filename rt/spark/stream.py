"""Stream: `spark.readStream.format("rt")`: offsets are positions, batches have a bound."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rt.errors import CorruptLog, GapError, Misuse
from rt.position import START, Position
from rt.spark.options import FAILFAST, ReadOptions
from rt.spark.pieces import Part
from rt.spark.plan import LogView, between, edge
from rt.spark.schema import check_schema
from rt.spark.splits import splits
from rt.spark.steps import after_bytes, after_messages
from rt.spark.task import Task

_VERSION: Final = 1


class StreamParts(InputPartition):
    """What one task of a micro-batch reads; all that it may use."""

    def __init__(self, log_id: str, parts: tuple[Part, ...]) -> None:
        super().__init__((log_id, parts))


class RtStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query. An offset is a position, and the id of the log it is one of."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.end != "latest" or options.end_ns is not None:
            raise Misuse("a stream has no end: endingPosition and endingTimestamp are for read")
        if options.push_filters:
            raise Misuse("pushFilters is for read: Spark hands a stream no filters")
        if options.lease is not None:
            raise Misuse("leases are for read: a stream moves on and would hold what it has read")
        self._options = options
        self._wanted = check_schema(schema, options)
        self._target: Position | None = None
        self._view: LogView | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Where a new query begins; one that resumes begins where its checkpoint says."""
        options, view = self._options, self._refreshed()
        if not view.log.is_there:
            if options.start_ns is not None or options.start == "latest":
                raise Misuse(
                    f"{options.path} holds no log yet: begin at earliest, or at a position"
                )
            return _offset("", options.start if isinstance(options.start, Position) else START)
        begin = edge(view, options.start, options.start_ns)
        return _offset(self._log_id if begin or view.end() else "", begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """What is asked of `latestOffset`; where there are two limits, both hold."""
        options = self._options
        if options.max_records is not None:
            return ReadMaxRows(options.max_records)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends. Asked often: two looks at file sizes where nothing grew.

        Raises:
            Misuse: the checkpoint is of another log.
            CorruptLog: the log ends before the checkpoint.
        """
        view, begin = self._refreshed(), _position(start)
        if not view.log.is_there:
            return start
        self._check_log(start)
        there = self._demand(view, begin)
        end = there if self._target is None else max(begin, min(there, self._target))
        if not isinstance(limit, ReadAllAvailable):
            end = self._limited(view, begin, end)
        return start if end == begin else _offset(self._log_id, end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Fix the end: what is there now."""
        view = self._refreshed()
        self._target = view.end() if view.log.is_there else START

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        """How far the log reaches, for the progress report."""
        view = self._refreshed()
        return _offset(self._log_id, view.end()) if view.log.is_there else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a micro-batch into splits; the same for the same offsets.

        A query that resumes in the middle of one asks for this first: its ends are those of the
        checkpoint, and the copy of the log may be a new one, which does not reach there yet.

        Raises:
            GapError: some of it was archived, and failOnDataLoss holds.
            Misuse: the checkpoint is of another log.
            CorruptLog: the log ends before the micro-batch.
        """
        view, begin, stop = self._refreshed(), _position(start), _position(end)
        if begin < stop:
            self._check_log(end)
            self._demand(view, stop)
        if not start["log"] and self._options.start == "earliest":
            # it was not there, or empty, when the query began: a copy begins with what is gone
            begin = min(stop, edge(view, "earliest", None))
        snapshot = between(view, begin, stop)
        if snapshot.gaps and self._options.fail_on_data_loss:
            raise GapError(snapshot.gaps[0])
        parts = splits(snapshot, self._options)
        return [StreamParts(end["log"], each) for each in parts] or [StreamParts(end["log"], ())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one split; runs in a worker."""
        log_id, parts = partition.value
        return Task(log_id, self._options, self._wanted).read(parts)

    def stop(self) -> None:
        """Release the files."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def __getstate__(self) -> dict[str, Any]:
        """What travels to a worker: no open file."""
        return {**self.__dict__, "_view": None}

    @property
    def _log_id(self) -> str:
        identity = self._view.log.manifest.identity if self._view else None
        return "" if identity is None else identity.id

    def _check_log(self, offset: dict[str, Any]) -> None:
        if self._log_id and offset["log"] not in ("", self._log_id):
            raise Misuse(f"the checkpoint is of another log than {self._options.path} is now")

    def _demand(self, view: LogView, place: Position) -> Position:
        """Return where the log ends, which must not be before a place of the checkpoint."""
        there = view.end()
        if place > there:
            words = "the log ends before the place where the query goes on"
            raise CorruptLog(view.path, there, words)
        return there

    def _refreshed(self) -> LogView:
        if self._view is None:
            self._view = LogView(self._options.path, strict=self._options.mode == FAILFAST)
        self._view.refresh()
        return self._view

    def _limited(self, view: LogView, begin: Position, end: Position) -> Position:
        options = self._options
        if options.max_records is not None:
            end = after_messages(view, begin, options.max_records, end)
        if options.max_bytes is not None:
            end = after_bytes(view, begin, options.max_bytes, end)
        return end


def _offset(log_id: str, position: Position) -> dict[str, Any]:
    return {"v": _VERSION, "log": log_id, "position": int(position)}


def _position(offset: dict[str, Any]) -> Position:
    if offset.get("v") != _VERSION:
        raise Misuse("the checkpoint was written by another version of rt; use that one")
    return Position(offset["position"])
