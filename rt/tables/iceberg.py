"""IcebergTable: a log as an Iceberg table, whose properties say how far it follows the log."""

import fcntl
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    RESTError,
    ValidationException,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.transforms import DayTransform, IdentityTransform, MonthTransform
from sqlalchemy.exc import SQLAlchemyError

from rt.errors import Misuse
from rt.log.files.disk import make_private_directory, open_small
from rt.position import Position
from rt.tables.dataset import SCHEMA, DataFile, check_partition, divided
from rt.tables.payloads import DEAD_SCHEMA, NO_COLUMNS, JsonColumns, parse_columns
from rt.tables.table_state import Change, LogName, OvertakenError, TableState

DEAD_SUFFIX: Final = "_dead"
_ATTEMPTS: Final = 10  # attempts to commit, while others commit to the same table
_FIELDS: Final = "rt.fields"
_OURS: Final = "rt-"  # prefix of our files' names
# pyiceberg derives a file's partition from the bounds of its columns.
_WHOLE_BOUNDS: Final = {f"write.metadata.metrics.column.{n}": "full" for n in ("session", "stream")}
_PROPERTIES: Final = {
    **_WHOLE_BOUNDS,
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_SOURCES: Final[dict[str, tuple[str, Any]]] = {
    "day": ("merge_time", DayTransform()),
    "month": ("merge_time", MonthTransform()),
    "stream": ("stream", IdentityTransform()),
    "session": ("session", IdentityTransform()),
}


def local_catalog(warehouse: str) -> Catalog:
    """Return the catalog of a local warehouse directory, in `warehouse`/catalog.db (SQLite)."""
    warehouse = os.path.abspath(warehouse)
    make_private_directory(warehouse)
    with _as_os_errors():
        return load_catalog(
            "rt", type="sql", uri=f"sqlite:///{warehouse}/catalog.db",
            warehouse=f"file://{warehouse}",
        )  # fmt: skip


class IcebergTable:
    """A table in a catalog (`rt.tables.table_state.Table`).

    `rt.LOG_ID.position` is a property of the table and of each snapshot, and changes in the same
    commit as the rows. If several processes add to the table at once, only the first commit
    succeeds.
    """

    finishes = False

    def __init__(
        self, catalog: Catalog, name: str, log: LogName, partition: str,
        columns: JsonColumns | None,
    ) -> None:  # fmt: skip
        """Open or create the table; in a local warehouse, remove what a killed run left.

        A new table has no partitions by default. JSON fields that the table lacks are added to it
        as columns. `columns` is None for a table of dead letters.

        Raises:
            Misuse: the name has no namespace, or the table belongs to another log or has other
                partitions.
        """
        check_partition(partition)
        if "." not in name:
            raise Misuse(f"the table {name!r} needs a namespace: flights.{name}")
        self.name = name
        self._log = log
        self._undo = ExitStack()
        with _as_os_errors():
            known = _fields_of(catalog, name)
            self.columns = NO_COLUMNS if columns is None else columns.after(known, name)
            fields = DEAD_SCHEMA if columns is None else [*SCHEMA, *self.columns.schema]
            self._table = _table_of(catalog, name, partition, pa.schema(fields))
            self._check_log()
            spec = self._table.spec()
            if not all(each.transform.preserves_order for each in spec.fields):
                raise Misuse(
                    f"{name} is partitioned by a hash; rt writes by day, session and others"
                )
            sources = [self._table.schema().find_column_name(f.source_id) for f in spec.fields]
            if partition and [
                (s, f.transform) for s, f in zip(sources, spec.fields, strict=True)
            ] != ([_SOURCES[partition]] if partition != "none" else []):
                raise Misuse(f"{name} has other partitions than {partition}; leave out --partition")
            self.is_by_time = sources == ["merge_time"]
            self.schema = schema_to_pyarrow(self._table.schema(), include_field_ids=True)
            self._remove_leftovers()

    @property
    def position(self) -> Position:
        """Return the position before which the table has all messages."""
        return Position(int(self._table.properties.get(self._property, "0")))

    def state(self) -> TableState:
        """Return the current state, from the manifests of the current snapshot."""
        with _as_os_errors():
            return _state(self._table, self._log)

    def create(self, place: str) -> tuple[str, Any]:
        """Create a file with the table's position in its name, so that leftovers are recognised."""
        name = f"{_OURS}{int(self.position)}-{uuid.uuid4().hex}.parquet"
        path = self._table.location_provider().new_data_location(
            f"{place}/{name}" if place else name
        )
        with _as_os_errors():
            return path, self._table.io.new_output(path).create()

    def remove(self, path: str) -> None:
        """Remove a file that is not in the table."""
        with _as_os_errors():
            self._table.io.delete(path)

    def read(self, file: DataFile) -> Iterator[Any]:
        """Yield the rows of a file."""
        with self._table.io.new_input(file.path).open() as source:
            yield from pq.ParquetFile(source).iter_batches()

    def divide(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """Divide a batch by the table's own partitions."""
        parts = [("", batch)]
        schema = self._table.schema()
        for field in self._table.spec().fields:
            source = schema.find_field(field.source_id)
            transform = field.transform.transform(source.field_type)
            parts = [
                (f"{place}/{name}".lstrip("/"), rows)
                for place, part in parts
                for name, rows in divided(
                    part,
                    _transformed(part.column(source.name), transform),
                    partial(_label, field.name),
                )
            ]
        yield from parts

    def commit(self, change: Change) -> None:
        """Apply a change in one commit of the catalog."""
        before = self.position
        with _as_os_errors():
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    self._commit(change)
                except (CommitFailedException, ValidationException) as error:
                    self._table.refresh()
                    if self.position == before and attempt < _ATTEMPTS and not change.removed:
                        continue
                    for each in change.added:
                        self.remove(each.path)
                    raise OvertakenError(str(error)) from None
                else:
                    return

    def sweep(self, keep_s: float) -> None:
        """Expire snapshots older than `keep_s`, and delete the files that only they refer to.

        A table with branches or tags is left alone, since these may need any snapshot.
        """
        table = self._table
        before = datetime.now(UTC) - timedelta(seconds=keep_s)
        old = [s for s in table.snapshots() if s.timestamp_ms < before.timestamp() * 1000]
        current = table.current_snapshot()
        old = [each for each in old if current is None or each.snapshot_id != current.snapshot_id]
        if not old or len(table.metadata.refs) > 1:
            return
        with _as_os_errors():
            gone = _refers_to(table, old)
            ids = {each.snapshot_id for each in old}
            gone -= _refers_to(table, [s for s in table.snapshots() if s.snapshot_id not in ids])
            table.maintenance.expire_snapshots().by_ids(sorted(ids)).commit()
            table.refresh()
            for path in sorted(gone):
                table.io.delete(path)

    def close(self) -> None:
        """Release the lock, so that others can remove leftovers."""
        self._undo.close()

    @property
    def _property(self) -> str:
        return f"rt.{self._log.id}.position"

    def _commit(self, change: Change) -> None:
        table = self._table
        # pyiceberg's retry would repeat rows that another run has committed meanwhile
        once = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        properties = {self._property: str(int(change.position)), **self._gaps(change)}
        properties[_FIELDS] = self.columns.text
        with table.transaction() as transaction:
            update = transaction.update_snapshot(snapshot_properties=properties)
            made = update.overwrite() if change.removed else update.merge_append()
            with made as snapshot:
                for each in change.added:
                    snapshot.append_data_file(
                        parquet_file_to_data_file(table.io, table.metadata, each.path)
                    )
                gone = {file.path for file in change.removed}
                for each in _live(table) if gone else ():
                    if each.file_path in gone:
                        snapshot.delete_data_file(each)
            transaction.set_properties(properties)

    def _gaps(self, change: Change) -> dict[str, str]:
        if not change.gaps:
            return {}
        name = self._property.replace(".position", ".gaps")
        texts = [self._table.properties.get(name, ""), *(f"{a}-{b}" for a, b in change.gaps)]
        return {name: " ".join(each for each in texts if each)}

    def _check_log(self) -> None:
        if (found := _logs_of(self._table)) and self._log.id not in found:
            raise Misuse(f"the table {self.name} holds another log; choose another table")

    def _remove_leftovers(self) -> None:
        """Remove the files that a killed run left, unless another process adds to the table.

        Every process that adds to the table holds a shared lock on the table's directory. A process
        that gets an exclusive lock knows that no other process is writing files.
        """
        folder = self._table.location().removeprefix("file://")
        if "://" in folder:
            return
        make_private_directory(folder)
        lock = open_small(f"{folder}/.rt-export.lock")
        self._undo.callback(os.close, lock)
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._remove_unreferenced(f"{folder}/data")
        fcntl.flock(lock, fcntl.LOCK_SH)

    def _remove_unreferenced(self, folder: str) -> None:
        self._table.refresh()
        found = {
            os.path.join(parent, name)
            for parent, _, names in os.walk(folder)
            for name in names
            if name.startswith(_OURS) and _begin_of(name) >= self.position
        }
        known = _refers_to(self._table, self._table.snapshots()) if found else set()
        for path in found - {each.removeprefix("file://") for each in known}:
            os.unlink(path)


def read_state(catalog: Catalog, name: str, log: LogName) -> TableState:
    """Read what a table holds of a log now.

    Raises:
        Misuse: there is no such table, or it also has rows of other logs.
    """
    with _as_os_errors():
        try:
            table = catalog.load_table(name)
        except NoSuchTableError:
            raise Misuse(f"there is no table {name}") from None
        if _logs_of(table) != [log.id]:
            raise Misuse(f"the table {name} does not hold this log, or not it alone")
        return _state(table, log)


def _logs_of(table: Any) -> list[str]:
    """Return the ids of the logs that a table follows."""
    found = (re.fullmatch(r"rt\.(.*)\.position", name) for name in table.properties)
    return [match[1] for match in found if match]


def _fields_of(catalog: Catalog, name: str) -> JsonColumns:
    try:
        return parse_columns(catalog.load_table(name).properties.get(_FIELDS, ""))
    except NoSuchTableError:
        return NO_COLUMNS


def _table_of(catalog: Catalog, name: str, partition: str, schema: Any) -> Any:
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(name.rsplit(".", 1)[0])
        table = catalog.create_table_if_not_exists(name, schema, properties=_PROPERTIES)
        if partition in _SOURCES and not table.spec().fields:
            source, transform = _SOURCES[partition]
            with table.update_spec() as update:
                update.add_field(source, transform, f"by_{partition}")
    if not {*table.schema().column_names}.issuperset(schema.names):
        with table.update_schema() as update:
            update.union_by_name(schema)
    if lacking := {k: v for k, v in _WHOLE_BOUNDS.items() if k not in table.properties}:
        with table.transaction() as transaction:
            transaction.set_properties(lacking)
    return catalog.load_table(name)


def _state(table: Any, log: LogName) -> TableState:
    files = tuple(_file(table, each) for each in _live(table))
    small = tuple(each for each in files if os.path.basename(each.path).startswith(_OURS))
    if _has_deletes(table):
        small = ()  # joining would bring deleted rows back
    position = Position(int(table.properties.get(f"rt.{log.id}.position", "0")))
    texts = table.properties.get(f"rt.{log.id}.gaps", "").split()
    gaps = tuple(
        (Position.parse(first), Position.parse(last))
        for first, last in (each.split("-") for each in texts)
    )
    columns = parse_columns(table.properties.get(_FIELDS, ""))
    return TableState(log, position, files, small, gaps, columns)


def _file(table: Any, file: Any) -> DataFile:
    lowest = (file.lower_bounds or {}).get(table.schema().find_field("position").field_id, b"")
    spec = table.specs()[file.spec_id]
    place = spec.partition_to_path(file.partition, table.schema()) if spec.fields else ""
    return DataFile(
        file.file_path, place, file.record_count, file.file_size_in_bytes,
        int.from_bytes(lowest, "little", signed=True),
    )  # fmt: skip


def _live(table: Any) -> Iterator[Any]:
    """Yield the data files of the current snapshot."""
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.content == DataFileContent.DATA:
                yield entry.data_file


def _has_deletes(table: Any) -> bool:
    """Whether another program has deleted rows, by delete files."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else ()
    return any(each.content == ManifestContent.DELETES for each in manifests)


def _refers_to(table: Any, snapshots: Any) -> set[str]:
    """Return the paths of all manifests and data files of some snapshots."""
    found: set[str] = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                found |= {entry.data_file.file_path for entry in entries}
    return found


def _transformed(column: Any, transform: Callable[[Any], Any]) -> Any:
    """Apply a partition's transform to each value of a column; pyiceberg needs a package for it."""
    found = column.dictionary_encode()
    values = found.dictionary
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())  # a transform takes microseconds
    return pa.array([transform(each) for each in values.to_pylist()]).take(found.indices)


def _label(name: str, value: Any) -> str:
    return f"{name}={quote(str(value), safe='')}"


def _begin_of(name: str) -> int:
    text = name.removeprefix(_OURS).partition("-")[0]
    return int(text) if text.isdecimal() else -1


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Turn a catalog's or database's errors into `OSError`, as for a failing disk."""
    try:
        yield
    except CommitFailedException:
        raise
    except (SQLAlchemyError, RESTError, CommitStateUnknownException) as error:
        raise OSError(f"the catalog failed: {' '.join(str(error).split())[:300]}") from error
