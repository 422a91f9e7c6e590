"""Export: a log as a Parquet dataset, each message in it exactly once."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from rt.errors import CorruptLog, FrameError, GapError, Misuse
from rt.limits import MIB
from rt.log.files.absent import no_log
from rt.log.files.disk import File, OsDisk, make_private_directory, sync_directory
from rt.log.files.lock import take_lock
from rt.log.read.gaps import gaps_between
from rt.names import shown
from rt.offload.private import create_private
from rt.position import START, Position
from rt.spark.reading.options import ReadOptions
from rt.spark.reading.plan import LogView, between
from rt.spark.reading.schema import Wanted
from rt.spark.reading.splits import splits
from rt.spark.reading.task import Task
from rt.spark.tables.dataset import SCHEMA, SCHEMA_WITH_HEADERS, Dataset, check_partition

# Beside the dataset and not in it: polars refuses a directory with other files than Parquet.
STATE_SUFFIX: Final = ".rt-export.json"
LOCK_SUFFIX: Final = ".rt-export.lock"
_OLD_LOCK_NAME: Final = "_rt_export.lock"  # that earlier versions left in the dataset
_STATE_BYTES_MAX: Final = 64 * MIB  # half a million Parquet files
TARGET_BYTES: Final = 256 * MIB  # of the log, that become one Parquet file in each partition


@dataclass(slots=True)
class Exported:
    """The result of one run of an export."""

    files: int = 0  # of the log that were added, the active one included
    messages: int = 0
    bytes: int = 0  # of those files
    left: int = 0  # files that had been exported before
    waiting: int = 0  # messages of the active file that were not exported
    gaps: list[str] = field(default_factory=list)  # files archived before they were exported


Progress = Callable[[Exported, int], None]


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """What is exported, and into which files.

    Attributes:
        partition: `none`, `day`, `month` or `stream`; "" for `day`, or `none` for a session, whose
            publish times may span decades. Fixed by the first run.
        include_active: whether the active file is exported too, as far as it is written.
        allow_gaps: whether to skip files that were archived before they were exported.
        start: messages before this position are not exported.
        target_bytes: of the log, for one Parquet file in each partition.
    """

    partition: str = ""
    include_active: bool = False
    allow_gaps: bool = False
    start: Position = START
    target_bytes: int = TARGET_BYTES

    def __post_init__(self) -> None:
        check_partition(self.partition)


class ArchivedBeforeExport(GapError):  # noqa: N818 - it is a gap
    """A file was archived before it was exported; names the ways to continue."""

    def __str__(self) -> str:
        return (
            f"{self.gap}; --allow-gaps (allow_gaps=True) exports what is left, and "
            f"--from (start) begins after it: --from {self.gap.end}"
        )


def to_parquet(
    path: str,
    out: str,
    settings: ExportSettings = ExportSettings(),
    *,
    progress: Progress | None = None,
) -> Exported:
    """Add to a Parquet dataset whatever it lacks of a log.

    Log files become Parquet files under the name of the first of them. What is done is recorded
    beside the dataset, in OUT.rt-export.json: first the names of the files to come, then that they
    are complete. The next run removes what a killed one left, so no message is in the dataset
    twice at any time.

    Args:
        path: the log, or its URI.
        out: a local directory; it is created if it does not exist.
        settings: what is exported, and how.
        progress: called as rows are written, with what was done and the bytes to do in all.

    Raises:
        Misuse: there is no log, `out` holds the export of another one or was partitioned in
            another way, or another run writes there.
        GapError: a file was archived before it was exported.
        CorruptLog: a file is damaged; what precedes it has been exported.
    """
    try:
        out.encode()
    except UnicodeEncodeError:
        raise Misuse(f"{shown(out)} is not UTF-8, as Arrow needs; choose another name") from None
    out = out.rstrip("/") or "/"
    view = LogView(path)
    try:
        if not view.refresh():
            raise no_log(path)
        make_private_directory(out)
        with ExitStack() as undo:
            _lock(out, undo)
            return _Export(view, out, settings, progress).run()
    finally:
        view.close()


def _lock(out: str, undo: ExitStack) -> None:
    """Keep other exports away until `undo` ends; remove the lock that an earlier version left."""
    words = f"another export writes to {out}; wait for it to end"
    parent, name = os.path.split(os.path.abspath(out))
    undo.callback(os.close, take_lock(parent, words, name + LOCK_SUFFIX))
    if os.path.lexists(os.path.join(out, _OLD_LOCK_NAME)):
        undo.callback(os.close, take_lock(out, words, _OLD_LOCK_NAME))
        os.unlink(os.path.join(out, _OLD_LOCK_NAME))


def waiting_messages(view: LogView, begin: Callable[[Position], int]) -> int:
    """How many messages the active file has from an offset on, by the file's name.

    A frame there that is damaged is for the export of the file to report.
    """
    with suppress(CorruptLog, FrameError):
        for file, end in view.files():
            offset = begin(file)
            if file not in view.log.manifest.rolled and end > offset:
                first, following = view.numbered(file, offset)
                return max(0, following - first)
    return 0


@dataclass(frozen=True, slots=True)
class _Slice:
    """Bytes of one log file: those from `begin` up to `end` have not been exported."""

    file: Position
    begin: int
    end: int
    is_rolled: bool

    @property
    def name(self) -> str:
        return f"{self.file.file_name}-{self.begin}" if self.begin else self.file.file_name


class _Export:
    def __init__(
        self, view: LogView, out: str, settings: ExportSettings, progress: Progress | None
    ) -> None:
        self._view = view
        self._out = out
        self._settings = settings
        self._progress = progress
        self._done = Exported()
        self._total = 0
        identity = view.log.manifest.identity
        self._log_id = identity.id if identity else ""
        self._state = self._read_state()

    def run(self) -> Exported:
        self._remove_pending()
        slices = list(self._slices())
        self._total = sum(each.end - each.begin for each in slices)
        group: list[_Slice] = []
        for each in slices:
            size = sum(one.end - one.begin for one in group)
            if group and size + each.end - each.begin > self._settings.target_bytes:
                self._convert(group)
                group = []
            group.append(each)
        if group:
            self._convert(group)
        self._done.waiting = waiting_messages(self._view, self._begin)
        return self._done

    def _slices(self) -> Iterator[_Slice]:
        """What has not been exported, oldest first; archived files are recorded as gaps."""
        done, manifest, exported = self._done, self._view.log.manifest, self._state["files"]
        for file in manifest.order:
            end = manifest.rolled[file].end
            if file.file_name in exported:
                done.left += 1
            elif file + end > self._settings.start or not end:
                if self._is_gone(file, end):
                    done.gaps.append(file.file_name)
                    exported[file.file_name] = None
                else:
                    yield self._slice(file, end, is_rolled=True)
        if self._settings.include_active:
            for file, end in self._view.files():
                if file not in manifest.rolled and end > self._begin(file):
                    yield self._slice(file, end, is_rolled=False)

    def _slice(self, file: Position, end: int, *, is_rolled: bool) -> _Slice:
        return _Slice(file, min(end, self._begin(file)), end, is_rolled)

    def _begin(self, file: Position) -> int:
        exported: int = self._state["active"].get(file.file_name, 0)
        return max(exported, self._settings.start - file)

    def _is_gone(self, file: Position, end: int) -> bool:
        begin = max(file, self._settings.start)
        for gap in gaps_between(self._view.log, Position(begin), Position(file + end)):
            if self._settings.allow_gaps:
                return True
            raise ArchivedBeforeExport(gap)
        return False

    def _convert(self, group: list[_Slice]) -> None:
        dataset = Dataset(self._out, group[0].name, self._state["partition"], self._schema)
        before = self._done.messages
        try:
            for each in group:
                for batch in self._batches(each):
                    dataset.write(batch)
                    self._done.messages += batch.num_rows
                    if self._progress is not None:
                        self._progress(self._done, self._total)
            self._state["pending"] = dataset.finish()
            self._write_state()
            dataset.publish()
        except BaseException:
            dataset.discard()
            raise
        self._record(group, self._done.messages - before)

    def _batches(self, part: _Slice) -> Iterator[Any]:
        start, stop = Position(part.file + part.begin), Position(part.file + part.end)
        snapshot = between(self._view, start, stop)
        options = ReadOptions((self._view.path,))
        task = Task((snapshot.place,), options, Wanted(self._schema))
        for parts in splits((snapshot,), options) if part.end > part.begin else ():
            yield from task.read(parts)

    def _record(self, group: list[_Slice], messages: int) -> None:
        state = self._state
        for each in group:
            name = each.file.file_name
            if each.is_rolled:
                state["files"][name] = messages if each is group[0] else 0
                state["active"].pop(name, None)
            else:
                state["active"][name] = each.end
            self._done.files += 1
            self._done.bytes += each.end - each.begin
        state["pending"] = []
        self._write_state()

    @property
    def _schema(self) -> Any:
        return SCHEMA_WITH_HEADERS if self._state.get("headers") else SCHEMA

    @property
    def _state_path(self) -> str:
        return self._out + STATE_SUFFIX

    def _state_text(self, file: File) -> bytes:
        if (size := file.size()) > _STATE_BYTES_MAX:
            words = f"it has {size} bytes, and {_STATE_BYTES_MAX} are the most"
            raise Misuse(f"{self._state_path} was not written by rt: {words}; move it away")
        return file.pread(size, 0)

    def _read_state(self) -> dict[str, Any]:
        wanted = self._settings.partition
        try:
            with closing(OsDisk().open_read(self._state_path)) as file:
                state: dict[str, Any] = json.loads(self._state_text(file))
        except FileNotFoundError:
            if any(
                name.endswith(".parquet") for _, _, names in os.walk(self._out) for name in names
            ):
                raise Misuse(
                    f"{self._out} holds Parquet files, and {self._state_path}, which says of what, "
                    "is missing; put it there, or choose another directory"
                ) from None
            usual = "day" if self._view.log.merged else "none"
            return {
                "log": self._log_id, "partition": wanted or usual, "files": {}, "active": {},
                "pending": [], "headers": True,
            }  # fmt: skip
        if state["log"] != self._log_id:
            raise Misuse(f"{self._out} holds the export of another log; choose another directory")
        if wanted not in ("", state["partition"]):
            raise Misuse(f"{self._out} is partitioned by {state['partition']}, not by {wanted}")
        return state

    def _remove_pending(self) -> None:
        for path in self._state["pending"]:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self._out, path))

    def _write_state(self) -> None:
        path = self._state_path
        with create_private(path + ".tmp") as written:
            written.write(json.dumps(self._state, indent=0).encode())
            written.flush()
            os.fsync(written.fileno())
        os.replace(path + ".tmp", path)
        sync_directory(os.path.dirname(path) or ".")
