"""Stream: `spark.readStream.format("rt")`: offsets are log positions, micro-batches are limited."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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

from rt.errors import CorruptLog, GapError, Misuse, RtError
from rt.log.files.absent import AbsentLog
from rt.position import START, Position
from rt.spark.formats.errors import one_line_errors
from rt.spark.reading.log_paths import log_paths
from rt.spark.reading.options import FAILFAST, ReadOptions
from rt.spark.reading.plan import (
    LogSnapshot,
    LogView,
    between,
    check_no_copies,
    check_not_all_archived,
    check_one_has_copies,
    edge,
    is_selected,
)
from rt.spark.reading.schema import check_schema
from rt.spark.reading.splits import splits
from rt.spark.reading.steps import after_bytes, after_records, bytes_between, unread
from rt.spark.reading.task import Task

_ONE_LOG: Final = 1  # version of an offset whose load names one log
_SEVERAL: Final = 2
_INITIAL: Final = "initial"  # marks the offset at which a query begins
_BEGIN: Final = "begin"  # in the end offset of a log's first micro-batch: where that began
_LOOK_EVERY_S: Final = 5.0  # between two searches for new logs below a parent directory


@dataclass(slots=True)
class Offset:
    """An offset of a streaming query: a position in each of its logs."""

    # the position in each log, by the log's id
    positions: dict[str, Position] = field(default_factory=dict)
    # for each log whose first micro-batch ends here: where that micro-batch began
    begins: dict[str, Position] = field(default_factory=dict)
    is_initial: bool = False  # whether the query begins here
    # where to begin in a log that does not exist yet, or is empty; None if not needed
    unnamed: Position | None = None

    def encode(self, *, several: bool) -> dict[str, Any]:
        """Return the offset as a checkpoint stores it; set `several` if a load names many logs."""
        mark = {_INITIAL: True} if self.is_initial else {}
        logs = {each: self._fields(each) for each in self.positions}
        if several and logs:
            return {"v": _SEVERAL, "logs": logs, **mark}
        for log_id, fields in logs.items():
            return {"v": _ONE_LOG, "log": log_id, **fields, **mark}
        return {"v": _ONE_LOG, "log": "", "position": int(self.unnamed or START), **mark}

    def _fields(self, log_id: str) -> dict[str, int]:
        begin = {_BEGIN: int(self.begins[log_id])} if log_id in self.begins else {}
        return {"position": int(self.positions[log_id]), **begin}


def decoded(offset: Mapping[str, Any]) -> Offset:
    """Read an offset of a checkpoint; `Misuse` if another version of rt wrote it."""
    if offset.get("v") not in (_ONE_LOG, _SEVERAL):
        raise Misuse("the checkpoint was written by another version of rt; use that one")
    if offset["v"] == _ONE_LOG and not offset["log"]:
        return Offset(is_initial=_INITIAL in offset, unnamed=Position(offset["position"]))
    found = offset["logs"] if offset["v"] == _SEVERAL else {offset["log"]: offset}
    positions = {each: Position(fields["position"]) for each, fields in found.items()}
    begins = {each: Position(f[_BEGIN]) for each, f in found.items() if _BEGIN in f}
    return Offset(positions, begins, _INITIAL in offset)


class RtStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs for one streaming query, whose offsets are positions in each log, by log id."""

    def __init__(
        self, options: ReadOptions, schema: StructType, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if options.edges.end != "latest" or options.edges.end_ns is not None:
            raise Misuse("a stream has no end: endingPosition and endingTimestamp are for read")
        if options.lease is not None:
            raise Misuse("leases are for read: a stream would go on holding what it has read")
        self._options = options
        self._schema = check_schema(schema, options)
        self._views: dict[str, LogView] = {}  # by path
        self._looked_at: float | None = None  # when logs were last searched for
        self._targets: dict[str, Position] | None = None  # where Trigger.AvailableNow ends
        self._planned: dict[str, Position] | None = None  # the end of the last micro-batch
        self._planned_at = time.monotonic()
        self._path = options.paths[0]  # for messages
        self._absent = AbsentLog(self._path, clock)  # reports now and then that it waits

    @one_line_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return where a new query begins; a resumed query begins at its checkpoint instead.

        If Spark replays the first micro-batch, it calls this again, and the result may differ. So
        the result is marked as initial, and the end offset of the first micro-batch also records
        where the micro-batch began.
        """
        options, logs, made = self._options, self._logs(), Offset(is_initial=True)
        edges = options.edges
        if not logs:
            if edges.start_ns is not None or edges.start == "latest":
                raise Misuse(f"{self._path} holds no log yet: begin at earliest, or at a position")
            made.unnamed = edges.start if isinstance(edges.start, Position) else START
        for log_id, view in logs.items():
            if options.fail_on_data_loss:
                check_not_all_archived(view, options)
            begin = edge(view, edges.start, edges.start_ns)
            if begin or view.end():
                made.positions[log_id] = begin
        return made.encode(several=self._names_several)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return a limit for Spark to pass to `latestOffset`, which applies all limits itself."""
        options = self._options
        if options.limits.records is not None:
            return ReadMaxRows(options.limits.records)
        if options.limits.bytes is not None:
            return ReadMaxBytes(options.limits.bytes)
        return ReadAllAvailable()

    @one_line_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next micro-batch ends; `start` if there is nothing to read yet.

        Raises:
            Misuse: the checkpoint is of another log.
            CorruptLog: a log ends before the checkpoint.
        """
        given, logs = decoded(start), self._logs()
        self._check_all_there(given, logs)
        if not logs:
            self._absent.met(follow=True)
            return start
        begins = {each: self._begin(each, view, given) for each, view in logs.items()}
        ends = {each: self._end(view, begins[each], each) for each, view in logs.items()}
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limited(logs, begins, ends)
        if ends != begins and self._waits(logs, begins):
            ends = begins
        self._planned = ends
        if ends == begins:
            return start
        self._planned_at = time.monotonic()
        # a log that contributed nothing yet stays among the unread ones
        moved = {e: end for e, end in ends.items() if e in given.positions or end > begins[e]}
        first = {e: begins[e] for e in moved if given.is_initial or e not in given.positions}
        made = Offset({**given.positions, **moved}, first)
        return made.encode(several=self._names_several)

    @one_line_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Fix the end of the query at the current end of each log."""
        self._targets = {each: view.end() for each, view in self._logs().items()}

    @one_line_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        """Return the end of each log and how far the query lags, for the query's progress report.

        Returns None if there is no log yet.

        `rows_behind` is how many messages of all sessions are unread. `seconds_behind` is how long
        ago the first unread message was merged (in a session: published). The names that end in
        `OffsetsBehindLatest` are those of Spark's Kafka source, with logs in place of partitions.
        """
        logs, planned = self._logs(), self._planned
        if not logs:
            return None
        ends = {each: view.end() for each, view in logs.items()}
        begins = ends if planned is None else {each: planned.get(each, START) for each in logs}
        rows, first_ns = zip(
            *(unread(view, begins[each], ends[each]) for each, view in logs.items()), strict=True
        )
        oldest_ns = min((ns for ns in first_ns if ns is not None), default=time.time_ns())
        return {
            **Offset(ends).encode(several=self._names_several),
            "bytes_behind": sum(bytes_between(v, begins[e], ends[e]) for e, v in logs.items()),
            "rows_behind": sum(rows),
            "seconds_behind": round(max(0.0, (time.time_ns() - oldest_ns) / 1e9), 3),
            "minOffsetsBehindLatest": min(rows),
            "maxOffsetsBehindLatest": max(rows),
            "avgOffsetsBehindLatest": sum(rows) / len(rows),
        }

    @one_line_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a micro-batch into splits, always the same for the same offsets.

        When a query resumes within a micro-batch, Spark calls this first, with the checkpoint's
        offsets. A log that was copied again since may end before `end`, or begin after `start`.

        Raises:
            GapError: part of the micro-batch was archived, and failOnDataLoss is set.
            Misuse: the checkpoint is of another log.
            CorruptLog: the log ends before the end of the micro-batch.
        """
        snapshots = () if start == end else tuple(self._read_between(decoded(start), decoded(end)))
        for snapshot in snapshots:
            if snapshot.gaps and self._options.fail_on_data_loss:
                raise GapError(snapshot.gaps[0])
        places = tuple(each.place for each in snapshots)
        found = splits(snapshots, self._options) or [()]
        return [InputPartition((places, parts)) for parts in found]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one split; runs in a worker."""
        places, parts = partition.value
        with one_line_errors():
            yield from Task(places, self._options, self._schema).read(parts)

    def stop(self) -> None:
        """Release the files."""
        for view in self._views.values():
            view.close()
        self._views, self._looked_at = {}, None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that is pickled for a worker, without open files."""
        return {**self.__dict__, "_views": {}, "_looked_at": None}

    def _logs(self, *, look: bool = False) -> dict[str, LogView]:
        """Return the selected logs that exist now, by id; with `look`, search for new ones."""
        now, is_first = time.monotonic(), self._looked_at is None
        is_found = not self._names_several and any(v.log.is_there for v in self._views.values())
        if is_first or look or not (is_found or now < (self._looked_at or 0) + _LOOK_EVERY_S):
            self._looked_at = now
            self._look()
        for view in self._views.values():
            view.refresh()
        return {view.place.log_id: view for view in self._views.values() if self._is_wanted(view)}

    def _is_wanted(self, view: LogView) -> bool:
        return view.log.is_there and is_selected(view, self._options.selection)

    def _look(self) -> None:
        """Find the logs that the load's paths name now; open new ones, and close others."""
        options, paths = self._options, log_paths(self._options.paths)
        if paths == tuple(self._views):
            return
        known, strict = self._views, options.mode == FAILFAST
        self._views = {
            each: known.get(each) or LogView(each, strict=strict, copies=options.copies)
            for each in paths
        }
        for path in known.keys() - self._views:
            known[path].close()
        for view in self._views.values():
            view.refresh()
        wanted = [view for view in self._views.values() if self._is_wanted(view)]
        if len(wanted) > 1 and isinstance(options.edges.start, Position):
            raise Misuse(f"a position belongs to one log, and the load names {len(wanted)}")
        check_no_copies(wanted)
        check_one_has_copies(wanted, options)

    @property
    def _names_several(self) -> bool:
        """Whether the load names a list, a glob or a parent directory, rather than one log."""
        return tuple(self._views) != self._options.paths or len(self._views) > 1

    def _check_all_there(self, offset: Offset, logs: dict[str, LogView]) -> None:
        """Raise `Misuse` if the load lacks a log of the offset; it would be awaited for ever."""
        missing = offset.positions.keys() - logs
        if missing and logs and not self._names_several:
            raise Misuse(f"the checkpoint is of another log than {self._path} is now")
        if missing and self._options.fail_on_data_loss:
            raise Misuse(
                f"the checkpoint is at {offset.positions[min(missing)]} in the log {min(missing)}, "
                "which is not among those of this load; name it, or give failOnDataLoss=false"
            )

    def _begin(self, log_id: str, view: LogView, start: Offset) -> Position:
        """Return where the next micro-batch begins in a log, even if the log is not in `start`."""
        if log_id in start.positions:
            return start.positions[log_id]
        is_earliest = start.is_initial and self._options.edges.start == "earliest"
        if start.unnamed is None or is_earliest or self._names_several:
            return edge(view, "earliest", None)
        return start.unnamed

    def _end(self, view: LogView, begin: Position, log_id: str) -> Position:
        there = _demand(view, begin)
        if self._targets is None:
            return there
        return max(begin, min(there, self._targets.get(log_id, START)))

    def _read_between(self, start: Offset, end: Offset) -> Iterator[LogSnapshot]:
        logs = self._logs(look=True)
        if logs or self._names_several:
            self._check_all_there(end, logs)
        for log_id, stop in end.positions.items():
            begin = start.positions.get(log_id, start.unnamed or START)
            if start.is_initial or log_id not in start.positions:
                begin = self._first_begin(begin, stop, end.begins.get(log_id))
            if log_id in logs:
                if begin < stop:
                    _demand(logs[log_id], stop)
                yield between(logs[log_id], begin, stop)
            elif begin < stop and not self._names_several:
                raise _too_short(self._path, START)

    def _first_begin(self, begin: Position, stop: Position, known: Position | None) -> Position:
        """Return where a log's first micro-batch, which ended at `stop`, began.

        It began at `known`. If an offset of an older version does not record that, `known` is None,
        and the micro-batch began where the options say, at `begin`.
        """
        if known is not None:
            return known
        if self._options.edges.are_from_earliest:
            return START
        if begin > stop and self._options.fail_on_data_loss:
            raise Misuse(
                f"the first micro-batch ended at {stop}, before the start {begin} that the options "
                "name now: give startingPosition where it began, or failOnDataLoss=false"
            )
        return min(begin, stop)

    def _waits(self, logs: dict[str, LogView], begins: dict[str, Position]) -> bool:
        """Whether the next micro-batch waits, because fewer messages are unread than it needs."""
        wanted = self._options.limits
        if wanted.records_min is None or self._targets is not None:
            return False
        if time.monotonic() - self._planned_at >= wanted.delay_s:
            return False
        found = (unread(view, begins[each], view.end())[0] for each, view in logs.items())
        return sum(found) < wanted.records_min

    def _limited(
        self, logs: dict[str, LogView], begins: dict[str, Position], ends: dict[str, Position]
    ) -> dict[str, Position]:
        """Return where a micro-batch ends in each log, by the limits on its messages and bytes.

        The limits are divided among the logs in proportion to their unread bytes; at least
        something is read from each log that has more.
        """
        options, limited = self._options, dict(ends)
        behind = {each: bytes_between(v, begins[each], ends[each]) for each, v in logs.items()}
        total = sum(behind.values()) or 1
        for each, view in logs.items():
            begin, end = begins[each], ends[each]
            if options.limits.records is not None and begin < end:
                count = max(1, options.limits.records * behind[each] // total)
                end = after_records(view, begin, count, end, options.selection)
            if options.limits.bytes is not None and begin < end:
                size = max(1, options.limits.bytes * behind[each] // total)
                end = after_bytes(view, begin, size, end)
            limited[each] = end
        return limited


class RefusingReader(DataSourceStreamReader):
    """A reader that raises an error when Spark first calls it; Spark hides earlier errors."""

    def __init__(self, error: RtError) -> None:
        self._error = error

    @one_line_errors()
    def _refuse(self, *_: Any) -> Any:
        raise self._error

    _any_call: Any = _refuse
    initialOffset = latestOffset = partitions = read = _any_call  # noqa: N815 - Spark's


def _demand(view: LogView, place: Position) -> Position:
    """Return the log's end; `CorruptLog` if the log ends before the checkpoint's `place`."""
    there = view.end()
    if place > there:
        raise _too_short(view.path, there)
    return there


def _too_short(path: str, end: Position) -> CorruptLog:
    return CorruptLog(path, end, "the log ends before the position where the query continues")
