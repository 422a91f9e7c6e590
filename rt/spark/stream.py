"""Stream: `spark.readStream.format("rt")`: offsets are positions, batches have a bound."""

import time
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
from rt.spark.one_line import one_line_errors
from rt.spark.options import FAILFAST, ReadOptions
from rt.spark.pieces import Part
from rt.spark.places import LogPlace, is_glob
from rt.spark.plan import LogView, between, check_not_all_archived, edge
from rt.spark.schema import check_schema
from rt.spark.splits import splits
from rt.spark.steps import after_bytes, after_records, bytes_between, unread
from rt.spark.task import Task

_VERSION: Final = 1
_INITIAL: Final = "initial"  # marks the offset at which a query begins
_BEGIN: Final = "begin"  # in the end of the first micro-batch: where it began


class StreamParts(InputPartition):
    """What one task of a micro-batch reads; all that it may use."""

    def __init__(self, place: LogPlace, parts: tuple[Part, ...]) -> None:
        super().__init__((place, parts))


class RtStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query. An offset is a position, and the id of the log it is one of."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.edges.end != "latest" or options.edges.end_ns is not None:
            raise Misuse("a stream has no end: endingPosition and endingTimestamp are for read")
        if options.lease is not None:
            raise Misuse(
                "leases are for read: a stream would go on holding what it has already read"
            )
        if len(options.paths) > 1 or is_glob(options.path):
            raise Misuse("a stream reads one log; start one query for each")
        self._options = options
        self._wanted = check_schema(schema, options)
        self._target: Position | None = None
        self._planned: Position | None = None  # the end of the last micro-batch
        self._planned_at = time.monotonic()
        self._view: LogView | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Where a new query begins; one that resumes begins at its checkpoint.

        Spark asks this again where the first micro-batch is replayed, when the answer may have
        changed. So the offset is marked, and the end of that batch says where it began.
        """
        options, view = self._options, self._refreshed()
        edges = options.edges
        if not view.log.is_there:
            if edges.start_ns is not None or edges.start == "latest":
                raise Misuse(
                    f"{options.path} holds no log yet: begin at earliest, or at a position"
                )
            begin = edges.start if isinstance(edges.start, Position) else START
            return {**_offset("", begin), _INITIAL: True}
        if options.fail_on_data_loss:
            check_not_all_archived(view, options)
        begin = edge(view, edges.start, edges.start_ns)
        return {**_offset(self._log_id if begin or view.end() else "", begin), _INITIAL: True}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """The limit passed to `latestOffset`; if there are two limits, both apply."""
        options = self._options
        if options.limits.records is not None:
            return ReadMaxRows(options.limits.records)
        if options.limits.bytes is not None:
            return ReadMaxBytes(options.limits.bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends. Called often; costs two file sizes if nothing grew.

        Raises:
            Misuse: the checkpoint is of another log.
            CorruptLog: the log ends before the checkpoint.
        """
        view, begin = self._refreshed(), _position(start)
        if not view.log.is_there:
            return start
        self._check_log(start)
        if _INITIAL in start and not start["log"] and self._options.edges.start == "earliest":
            # the log was missing or empty when the query began, and its beginning may be archived
            begin = edge(view, "earliest", None)
        there = self._demand(view, begin)
        end = there if self._target is None else max(begin, min(there, self._target))
        if not isinstance(limit, ReadAllAvailable):
            end = self._limited(view, begin, end)
        if self._waits(view, begin, end):
            end = begin
        self._planned = end
        if end == begin:
            return start
        self._planned_at = time.monotonic()
        first = {_BEGIN: int(begin)} if _INITIAL in start else {}
        return {**_offset(self._log_id, end), **first}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Fix the end of the query at the current end of the log."""
        view = self._refreshed()
        self._target = view.end() if view.log.is_there else START

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        """The end of the log, for the query's progress, and how far the query lags.

        `rows_behind` counts the messages of all sessions, by number. `seconds_behind` is how long
        ago the first of them was merged (in a session: published).
        """
        view = self._refreshed()
        if not view.log.is_there:
            return None
        end = view.end()
        planned = end if self._planned is None else self._planned
        rows, first_ns = unread(view, planned, end)
        seconds = 0.0 if first_ns is None else max(0.0, (time.time_ns() - first_ns) / 1e9)
        return {
            **_offset(self._log_id, end),
            "bytes_behind": bytes_between(view, planned, end),
            "rows_behind": rows,
            "seconds_behind": round(seconds, 3),
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a micro-batch into splits; the same for the same offsets.

        A query that resumes inside a micro-batch calls this first. The offsets are then those of
        the checkpoint, and a new copy of the log may not reach that far yet, or no longer begin
        that early.

        Raises:
            GapError: some of it was archived, and failOnDataLoss holds.
            Misuse: the checkpoint is of another log.
            CorruptLog: the log ends before the micro-batch.
        """
        view, begin, stop = self._refreshed(), _position(start), _position(end)
        if begin < stop:
            self._check_log(end)
            self._demand(view, stop)
        if _INITIAL in start and start != end:
            begin = self._first_begin(begin, stop, end)
        snapshot = between(view, begin, stop)
        if snapshot.gaps and self._options.fail_on_data_loss:
            raise GapError(snapshot.gaps[0])
        parts = splits((snapshot,), self._options)
        return [StreamParts(snapshot.place, each) for each in parts or [()]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one split; runs in a worker."""
        place, parts = partition.value
        with one_line_errors():
            yield from Task((place,), self._options, self._wanted).read(parts)

    def stop(self) -> None:
        """Release the files."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to a worker: no open file."""
        return {**self.__dict__, "_view": None}

    @property
    def _log_id(self) -> str:
        identity = self._view.log.manifest.identity if self._view else None
        return "" if identity is None else identity.id

    def _check_log(self, offset: dict[str, Any]) -> None:
        if self._log_id and offset["log"] not in ("", self._log_id):
            raise Misuse(f"the checkpoint is of another log than {self._options.path} is now")

    def _first_begin(self, begin: Position, stop: Position, end: dict[str, Any]) -> Position:
        """Where the first micro-batch began, which the end of one of an older rt does not say."""
        if _BEGIN in end:
            return Position(end[_BEGIN])
        if self._options.edges.start == "earliest" and self._options.edges.start_ns is None:
            return START
        if begin > stop and self._options.fail_on_data_loss:
            raise Misuse(
                f"the first micro-batch ended at {stop}, before the start {begin} that the options "
                "name now: give startingPosition where it began, or failOnDataLoss=false"
            )
        return min(begin, stop)

    def _waits(self, view: LogView, begin: Position, end: Position) -> bool:
        """Whether there are too few messages yet for a micro-batch, and it may still wait."""
        wanted = self._options.limits
        if wanted.records_min is None or self._target is not None or begin == end:
            return False
        if time.monotonic() - self._planned_at >= wanted.delay_s:
            return False
        return unread(view, begin, view.end())[0] < wanted.records_min

    def _demand(self, view: LogView, place: Position) -> Position:
        """Return the end of the log, which must not be before a position of the checkpoint."""
        there = view.end()
        if place > there:
            reason = "the log ends before the position where the query continues"
            raise CorruptLog(view.path, there, reason)
        return there

    def _refreshed(self) -> LogView:
        if self._view is None:
            self._view = LogView(self._options.path, strict=self._options.mode == FAILFAST)
        self._view.refresh()
        return self._view

    def _limited(self, view: LogView, begin: Position, end: Position) -> Position:
        options = self._options
        records = options.limits.records
        if records is not None:
            end = after_records(view, begin, records, end, options.selection)
        if options.limits.bytes is not None:
            end = after_bytes(view, begin, options.limits.bytes, end)
        return end


def _offset(log_id: str, position: Position) -> dict[str, Any]:
    return {"v": _VERSION, "log": log_id, "position": int(position)}


def _position(offset: dict[str, Any]) -> Position:
    if offset.get("v") != _VERSION:
        raise Misuse("the checkpoint was written by another version of rt; use that one")
    return Position(offset["position"])
