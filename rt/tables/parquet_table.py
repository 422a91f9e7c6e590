"""ParquetTable: a directory of Parquet files, with a manifest that is replaced atomically.

The directory has only finished files, which never change, so any program may read it: at any time
each message is in it at most once. Newer rows are in small files next to the directory until there
are enough of them; the manifest names both, and the position up to which they are complete.
"""

import io
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rt.errors import Misuse
from rt.limits import MIB
from rt.log.files.disk import OsDisk, make_private_directory, sync_directory
from rt.log.files.lock import take_lock
from rt.names import shown
from rt.offload.private import create_private, replace_private
from rt.position import START, Position, file_position
from rt.tables.dataset import SCHEMA, DataFile, check_partition, divider
from rt.tables.payloads import DEAD_SCHEMA, NO_COLUMNS, JsonColumns
from rt.tables.table_state import Change, LogName, TableState

# Next to the dataset, not in it: polars refuses a directory with files other than Parquet.
STATE_SUFFIX: Final = ".rt-export.json"
LOCK_SUFFIX: Final = ".rt-export.lock"
TAIL_SUFFIX: Final = ".rt-export.tail"
DEAD_SUFFIX: Final = ".dead"
_OLD_LOCK_NAME: Final = "_rt_export.lock"  # left in the dataset by earlier versions
_STATE_BYTES_MAX: Final = 64 * MIB  # a quarter of a million Parquet files
_VERSION: Final = 2
_TAIL: Final = "tail/"  # prefix of small files' names in the manifest
_OURS: Final = re.compile(r"\d+\.(tmp|parquet)")
_NS: Final = 10**9


class ParquetTable:
    """A dataset that one process at a time adds to (`rt.tables.table_state.Table`)."""

    finishes = True

    def __init__(
        self, out: str, log: LogName, partition: str, usual: str, columns: JsonColumns | None
    ) -> None:
        """Open or create the dataset; remove what a killed run left.

        A new dataset has the partitions `usual` by default. `columns` is None for a dataset of dead
        letters.

        Raises:
            Misuse: the dataset belongs to another log, has other partitions, or another process
                adds to it.
        """
        check_partition(partition)
        self.name = out = _checked(out)
        self._log = log
        self._undo = ExitStack()
        make_private_directory(out)
        try:
            _lock(out, self._undo)
            self._manifest = self._opened(partition, usual)
            make_private_directory(out + TAIL_SUFFIX)
            self._remove_leftovers()
        except BaseException:
            self.close()
            raise
        self._divide = divider(self._manifest["partition"])
        self.is_by_time = self._manifest["partition"] in ("day", "month")
        is_stream = self._manifest["partition"] == "stream"
        self.columns, self.schema = NO_COLUMNS, DEAD_SCHEMA
        if columns is not None:
            self.columns = columns.after(JsonColumns(self._manifest["fields"]), out)
            self.schema = pa.schema([*SCHEMA, *self.columns.schema])
        self._manifest["fields"] = self.columns.fields
        if is_stream:  # readers would see the column twice
            self.schema = self.schema.remove(0)
        self.schema = self.schema.with_metadata({"rt.log": log.id})

    @property
    def position(self) -> Position:
        """Return the position before which the dataset has all messages."""
        return Position(self._manifest["position"])

    def state(self) -> TableState:
        """Return the current state."""
        return _state(self._manifest, self.name)

    def divide(self, batch: Any, /) -> Iterator[tuple[str, Any]]:
        """Divide a batch among the directories."""
        return self._divide(batch)

    def create(self, _place: str) -> tuple[str, Any]:
        """Create a file under a temporary name; `commit` gives it its final name."""
        self._manifest["next"] += 1
        path = os.path.join(self.name + TAIL_SUFFIX, f"{self._manifest['next']}.tmp")
        return path, _Synced(create_private(path).detach())  # type: ignore[attr-defined]

    def remove(self, path: str) -> None:
        """Remove a file that `create` made."""
        with suppress(FileNotFoundError):
            os.unlink(path)

    def read(self, file: DataFile) -> Iterator[Any]:
        """Yield the rows of a file."""
        with pq.ParquetFile(file.path) as opened:
            yield from opened.iter_batches()

    def commit(self, change: Change) -> None:
        """Apply a change: first record it as pending, then give the files their names."""
        manifest = self._manifest
        names = [self._named(each, change.is_finished(each)) for each in change.added]
        self._write({**manifest, "pending": names})
        for name, each in zip(names, change.added, strict=True):
            make_private_directory(os.path.dirname(self._path(name)))
            os.replace(each.path, self._path(name))
        for folder in {os.path.dirname(self._path(name)) for name in names}:
            sync_directory(folder)
            sync_directory(os.path.dirname(folder))
        at, gone = time.time_ns(), {each.path for each in change.removed}
        gone_names = [f["name"] for f in manifest["files"] if self._path(f["name"]) in gone]
        files = [f for f in manifest["files"] if f["name"] not in gone_names]
        files += [
            {"name": name, "place": f.place, "rows": f.rows, "bytes": f.bytes, "first": f.first}
            for name, f in zip(names, change.added, strict=True)
        ]
        self._manifest = {
            **manifest, "pending": [], "files": files, "position": int(change.position),
            "gaps": [*manifest["gaps"], *change.gaps], "changed_ns": at,
            "replaced": [*manifest["replaced"], *([name, at] for name in gone_names)],
        }  # fmt: skip
        self._write(self._manifest)

    def sweep(self, keep_s: float) -> None:
        """Remove files that were replaced so long ago that no reader needs them."""
        before = time.time_ns() - int(keep_s * _NS)
        manifest = self._manifest
        due = [name for name, at in manifest["replaced"] if at <= before]
        if due:
            for name in due:
                self.remove(self._path(name))
            left = [each for each in manifest["replaced"] if each[1] > before]
            self._manifest = {**manifest, "replaced": left}
            self._write(self._manifest)

    def close(self) -> None:
        """Release the lock, so that others can add to the dataset."""
        self._undo.close()

    def _named(self, file: DataFile, is_finished: bool) -> str:
        if not is_finished:
            return _TAIL + os.path.basename(file.path).replace(".tmp", ".parquet")
        first = Position(file.first)
        return os.path.join(file.place, f"{first.file.file_name}-{first.offset}.parquet")

    def _path(self, name: str) -> str:
        return _path_of(self.name, name)

    def _opened(self, partition: str, usual: str) -> dict[str, Any]:
        manifest = _manifest(self.name)
        if manifest is None:
            if any(n.endswith(".parquet") for _, _, names in os.walk(self.name) for n in names):
                raise Misuse(
                    f"{self.name} holds Parquet files, and {self.name + STATE_SUFFIX}, which says "
                    "of what, is missing; put it there, or choose another directory"
                )
            return {
                "version": _VERSION, "log": self._log.id, "stream": self._log.stream,
                "partition": partition or usual, "position": 0, "next": 0,
                "fields": {}, "gaps": [], "files": [], "pending": [], "replaced": [],
            }  # fmt: skip
        if manifest["log"] != self._log.id:
            raise Misuse(f"{self.name} holds the export of another log; choose another directory")
        if partition not in ("", manifest["partition"]):
            raise Misuse(
                f"{self.name} is partitioned by {manifest['partition']}, not by {partition}"
            )
        return manifest

    def _remove_leftovers(self) -> None:
        for name in self._manifest["pending"]:
            self.remove(self._path(name))
        if "version" not in self._manifest:
            self._manifest = _of_earlier_version(self._manifest, self.name, self._log)
            self._write(self._manifest)
        known = {each["name"] for each in self._manifest["files"]}
        known |= {name for name, _ in self._manifest["replaced"]}
        for name in os.listdir(self.name + TAIL_SUFFIX):
            if _OURS.fullmatch(name) and _TAIL + name not in known:
                self.remove(self._path(_TAIL + name))

    def _write(self, manifest: dict[str, Any]) -> None:
        data = json.dumps(manifest, separators=(",", ":")).encode()
        replace_private(self.name + STATE_SUFFIX, data)


class _Synced(io.BufferedWriter):
    """A file that is synced before it is closed."""

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
        super().close()


def read_state(out: str) -> TableState:
    """Return what a dataset holds now; a file that is replaced later is kept for a while.

    Raises:
        Misuse: there is no dataset, or an earlier version wrote it.
    """
    out = _checked(out)
    manifest = _manifest(out)
    if manifest is None:
        raise Misuse(f"there is no table at {out}: {out + STATE_SUFFIX} is missing")
    if "version" not in manifest:
        raise Misuse(f"{out} was written by an earlier version; run rt export parquet once")
    return _state(manifest, out)


def _state(manifest: dict[str, Any], out: str) -> TableState:
    files = {
        f["name"]: DataFile(_path_of(out, f["name"]), f["place"], f["rows"], f["bytes"], f["first"])
        for f in manifest["files"]
    }
    return TableState(
        LogName(manifest["log"], manifest["stream"]), Position(manifest["position"]),
        tuple(files.values()), tuple(f for name, f in files.items() if name.startswith(_TAIL)),
        tuple((Position(a), Position(b)) for a, b in manifest["gaps"]),
        JsonColumns(manifest["fields"]),
    )  # fmt: skip


def _path_of(out: str, name: str) -> str:
    if name.startswith(_TAIL):
        return os.path.join(out + TAIL_SUFFIX, name.removeprefix(_TAIL))
    return os.path.join(out, name)


def _checked(out: str) -> str:
    try:
        out.encode()
    except UnicodeEncodeError:
        raise Misuse(f"{shown(out)} is not UTF-8, as Arrow needs; choose another name") from None
    return out.rstrip("/") or "/"


def _lock(out: str, undo: ExitStack) -> None:
    """Hold the lock against other exports until `undo` ends; remove an earlier version's lock."""
    words = f"another export writes to {out}; wait for it to end"
    parent, name = os.path.split(os.path.abspath(out))
    undo.callback(os.close, take_lock(parent, words, name + LOCK_SUFFIX))
    if os.path.lexists(os.path.join(out, _OLD_LOCK_NAME)):
        undo.callback(os.close, take_lock(out, words, _OLD_LOCK_NAME))
        os.unlink(os.path.join(out, _OLD_LOCK_NAME))


def _manifest(out: str) -> dict[str, Any] | None:
    path = out + STATE_SUFFIX
    try:
        with closing(OsDisk().open_read(path)) as file:
            if (size := file.size()) > _STATE_BYTES_MAX:
                words = f"it has {size} bytes, and {_STATE_BYTES_MAX} are the most"
                raise Misuse(f"{path} was not written by rt: {words}; move it away")
            found: dict[str, Any] = json.loads(file.pread(size, 0))
    except FileNotFoundError:
        return None
    except ValueError:
        raise Misuse(f"{path} is not the manifest of a table; restore it from a backup") from None
    if found.get("version", _VERSION) != _VERSION:
        raise Misuse(f"{path} has version {found['version']}; this rt knows {_VERSION}")
    return found


def _of_earlier_version(old: dict[str, Any], out: str, log: LogName) -> dict[str, Any]:
    """Turn an earlier version's record, which named files of the log, into a manifest."""
    ends = [Position(log.ends[name]) for name in old["files"] if name in log.ends]
    for name, end in old["active"].items():
        if (file := file_position(name)) is not None:
            ends.append(Position(file + end))
    files = []
    for folder, _, names in sorted(os.walk(out)):
        for name in sorted(each for each in names if each.endswith(".parquet")):
            path = os.path.join(folder, name)
            place = os.path.relpath(folder, out).removeprefix(".")
            files.append({
                "name": os.path.relpath(path, out), "place": place, "first": 0,
                "rows": pq.read_metadata(path).num_rows, "bytes": os.path.getsize(path),
            })  # fmt: skip
    return {
        "version": _VERSION, "log": log.id, "stream": log.stream, "partition": old["partition"],
        "position": max(ends, default=START), "next": 0, "fields": {}, "gaps": [],
        "files": files, "pending": [], "replaced": [],
    }  # fmt: skip
