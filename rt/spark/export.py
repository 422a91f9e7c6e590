"""Export: the rolled files of a log as a Parquet dataset, each message in it exactly once."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rt.errors import GapError, Misuse
from rt.limits import MIB
from rt.log.disk import sync_directory
from rt.log.gaps import gaps_between
from rt.log.lock import take_lock
from rt.names import shown
from rt.position import Position
from rt.spark.options import ReadOptions
from rt.spark.pieces import Part
from rt.spark.places import LogPlace
from rt.spark.plan import LogView
from rt.spark.schema import COLUMNS, Wanted
from rt.spark.task import Task

# Hidden from those who read the dataset, as all names are that begin so.
STATE_NAME: Final = "_rt_export.json"
LOCK_NAME: Final = "_rt_export.lock"
_ROW_GROUP_BYTES: Final = 64 * MIB
_DAY_NS: Final = 86_400 * 10**9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES: Final = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])


@dataclass(slots=True)
class Exported:
    """What one run of an export did."""

    files: int = 0  # of the log that were added
    messages: int = 0
    bytes: int = 0  # of those files
    left: int = 0  # files that were exported before
    gaps: list[str] = field(default_factory=list)  # files that were archived before they could be


Progress = Callable[[Exported, int], None]


def to_parquet(
    path: str, out: str, *, allow_gaps: bool = False, progress: Progress | None = None
) -> Exported:
    """Add the rolled files of a log to a Parquet dataset that were not added before.

    The dataset is partitioned by the day of the merge (in a session: of the publication), as
    `date=2013-01-01`. A log file becomes one file a day under its own name, and is on the list of
    those that are done when all of them are durable: so a run that is killed is repeated by the
    next, file over file, and no message is in the dataset twice.

    Args:
        path: of the log, or its URI.
        out: a local directory; it is made if it is not there.
        allow_gaps: whether to go on behind files that were archived before they were exported.
        progress: is called as rows are written, with what was done and the bytes there are to do.

    Raises:
        Misuse: there is no log, `out` holds the export of another, or another run writes there.
        GapError: a file was archived before it was exported.
        CorruptLog: a file is damaged; what came before it is exported.
    """
    try:
        out.encode()
    except UnicodeEncodeError:
        raise Misuse(f"{shown(out)} is not UTF-8, as Arrow wants it; name another") from None
    view = LogView(path)
    try:
        if not view.refresh():
            raise Misuse(f"{path} holds no log: there is no manifest")
        os.makedirs(out, exist_ok=True)
        lock = take_lock(out, f"another export writes to {out}; wait for its end", LOCK_NAME)
        try:
            return _Export(view, out, allow_gaps=allow_gaps, progress=progress).run()
        finally:
            os.close(lock)
    finally:
        view.close()


class _Export:
    def __init__(
        self, view: LogView, out: str, *, allow_gaps: bool, progress: Progress | None
    ) -> None:
        self._view = view
        self._out = out
        self._allow_gaps = allow_gaps
        self._progress = progress
        self._done = Exported()
        identity = view.log.manifest.identity
        self._log_id = identity.id if identity else ""
        self._place = LogPlace(view.path, self._log_id, identity.stream if identity else "")
        self._state = self._read_state()

    def run(self) -> Exported:
        done, manifest = self._done, self._view.log.manifest
        names = self._state["files"]
        files = [file for file in manifest.order if file.file_name not in names]
        done.left = len(manifest.order) - len(files)
        total = sum(manifest.rolled[f].end for f in files if f not in manifest.archived)
        for file in files:
            end = manifest.rolled[file].end
            if self._is_gone(file, end):
                done.gaps.append(file.file_name)
                self._record(file, None)
                continue
            messages = self._convert(file, end, total)
            self._record(file, messages)
            done.files += 1
            done.bytes += end
        return done

    def _is_gone(self, file: Position, end: int) -> bool:
        for gap in gaps_between(self._view.log, file, Position(file + end)):
            if self._allow_gaps:
                return True
            raise GapError(gap)
        return False

    def _convert(self, file: Position, end: int, total: int) -> int:
        before, days = self._done.messages, _Days(self._out, file.file_name)
        part = Part(file, 0, end, file, file.next_file())
        task = Task((self._place,), ReadOptions((self._view.path,)), Wanted(SCHEMA))
        try:
            for batch in task.read((part,) if end else ()):
                days.write(batch)
                self._done.messages += batch.num_rows
                if self._progress is not None:
                    self._progress(self._done, total)
            days.finish()
        except BaseException:
            days.give_up()
            raise
        return self._done.messages - before

    def _read_state(self) -> dict[str, Any]:
        try:
            with open(os.path.join(self._out, STATE_NAME), encoding="utf-8") as file:
                state: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return {"log": self._log_id, "files": {}}
        if state["log"] != self._log_id:
            raise Misuse(f"{self._out} holds the export of another log; choose another directory")
        return state

    def _record(self, file: Position, messages: int | None) -> None:
        self._state["files"][file.file_name] = messages
        path = os.path.join(self._out, STATE_NAME)
        with open(path + ".tmp", "w", encoding="utf-8") as written:
            json.dump(self._state, written, indent=0)
            written.flush()
            os.fsync(written.fileno())
        os.replace(path + ".tmp", path)
        sync_directory(self._out)


class _Days:
    """The Parquet files that one log file becomes: one a day, named when all are whole."""

    def __init__(self, out: str, name: str) -> None:
        self._out = out
        self._name = name
        self._writers: dict[int, pq.ParquetWriter] = {}
        self._held: dict[int, list[Any]] = {}
        self._sizes: dict[int, int] = {}

    def write(self, batch: Any) -> None:
        """Take rows, each into the file of its day."""
        for day, rows in _by_day(batch):
            self._held.setdefault(day, []).append(rows)
            self._sizes[day] = self._sizes.get(day, 0) + rows.nbytes
            if self._sizes[day] >= _ROW_GROUP_BYTES:
                self._flush(day)

    def finish(self) -> None:
        """Write what is held, sync all files and give them their names."""
        for day in list(self._held):  # one after the other: there may be thousands
            self._flush(day)
            self._writers[day].close()
            path = self._path(day, hidden=True)
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        for day in self._writers:
            os.replace(self._path(day, hidden=True), self._path(day))
            sync_directory(os.path.dirname(self._path(day)))
        if self._writers:
            sync_directory(self._out)

    def give_up(self) -> None:
        """Remove what has no name yet."""
        for day, writer in self._writers.items():
            writer.close()
            path = self._path(day, hidden=True)
            if os.path.exists(path):
                os.unlink(path)

    def _flush(self, day: int) -> None:
        held, self._held[day], self._sizes[day] = self._held[day], [], 0
        if not held:
            return
        if day not in self._writers:
            path = self._path(day, hidden=True)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._writers[day] = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        table = pa.Table.from_batches(held, SCHEMA)
        self._writers[day].write_table(table, row_group_size=max(1, table.num_rows))

    def _path(self, day: int, *, hidden: bool = False) -> str:
        date = (_EPOCH + timedelta(days=day)).date().isoformat()
        name = f".{self._name}.parquet.tmp" if hidden else f"{self._name}.parquet"
        return os.path.join(self._out, f"date={date}", name)


def _by_day(batch: Any) -> Iterator[tuple[int, Any]]:
    merged = batch.column("merge_time")
    if merged.null_count:
        days = batch.column("time_ns").to_numpy() // _DAY_NS
    else:
        days = merged.view(pa.int64()).to_numpy() // (_DAY_NS // 1000)
    for day in np.unique(days).tolist():
        yield day, batch if (days == day).all() else batch.filter(pa.array(days == day))
