"""Iceberg: a log as an Iceberg table, each message in it exactly once."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

from rt.errors import Misuse
from rt.limits import MIB
from rt.log.files.absent import no_log
from rt.log.files.disk import make_private_directory
from rt.position import START, Position
from rt.spark.reading.options import ReadOptions
from rt.spark.reading.plan import LogSnapshot, LogView, between
from rt.spark.reading.schema import Wanted
from rt.spark.reading.splits import splits
from rt.spark.reading.task import Task
from rt.spark.tables.dataset import SCHEMA, SCHEMA_WITH_HEADERS
from rt.spark.tables.export import ArchivedBeforeExport, Exported, waiting_messages

COMMIT_BYTES: Final = 512 * MIB  # of the log, that one snapshot of the table adds
# A partitioned table takes no stream of batches, so what one snapshot adds is held in memory.
COMMIT_BYTES_PARTITIONED: Final = 64 * MIB
_ATTEMPTS: Final = 10  # to commit, while others commit to the same table
_RETRIES: Final = "commit.retry.num-retries"


@dataclass(frozen=True, slots=True)
class IcebergSettings:
    """What is exported.

    Attributes:
        include_active: whether the active file is exported too, as far as it is written.
        allow_gaps: whether to skip files that were archived before they were exported.
        start: messages before this position are not exported.
    """

    include_active: bool = False
    allow_gaps: bool = False
    start: Position = START


def local_catalog(warehouse: str) -> Catalog:
    """Return the catalog of a local warehouse directory, in `warehouse`/catalog.db (SQLite)."""
    warehouse = os.path.abspath(warehouse)
    make_private_directory(warehouse)
    return load_catalog(
        "rt", type="sql", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=f"file://{warehouse}"
    )


def to_iceberg(
    path: str,
    table: str,
    catalog: Catalog,
    settings: IcebergSettings = IcebergSettings(),
    *,
    progress: Callable[[Exported, int], None] | None = None,
) -> Exported:
    """Add to an Iceberg table whatever it lacks of a log.

    How far the log was added is a property of the table, `rt.LOG_ID.position`, and changes in the
    same commit as the rows. So a run that is killed has added all of a commit or none of it, and of
    two runs at once one finds that the other was first, and goes on after it.

    Args:
        path: the log, or its URI.
        table: its name in the catalog, `namespace.name`; it is created if it does not exist. One
            that exists needs the columns of a Parquet export, and keeps its partitions.
        catalog: of pyiceberg.
        settings: what is exported.
        progress: called as rows are written, with what was done and the bytes to do in all.

    Raises:
        Misuse: there is no log, or the table's name has no namespace.
        GapError: a file was archived before it was exported.
        CorruptLog: a file is damaged; what precedes its commit has been exported.
    """
    if "." not in table:
        raise Misuse(f"the table {table!r} needs a namespace: flights.{table}")
    with closing(LogView(path)) as view:
        if not view.refresh():
            raise no_log(path)
        export = _Export(view, _table_of(catalog, table), settings)
        for _ in export.commits():
            if progress is not None:
                progress(export.done, export.total)
        exported = max(settings.start, export.exported())
        export.done.waiting = waiting_messages(view, lambda file: max(0, exported - file))
        return export.done


def _table_of(catalog: Catalog, name: str) -> Any:
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(name.rsplit(".", 1)[0])
        return catalog.create_table_if_not_exists(name, SCHEMA_WITH_HEADERS)


@dataclass
class _Export:
    view: LogView
    table: Any
    settings: IcebergSettings
    done: Exported = field(default_factory=Exported)
    total: int = 0

    def commits(self) -> Iterator[None]:
        """Add to the table; yields after each commit."""
        order, rolled = self.view.log.manifest.order, self.view.log.manifest.rolled
        exported = self.exported()
        self.done.left = sum(file + rolled[file].end <= exported for file in order)
        while True:
            self.table.refresh()
            begin = max(self.settings.start, self.exported())
            snapshot = between(self.view, begin, max(begin, self._end()))
            self._check_gaps(snapshot)
            left = sum(end - max(0, begin - file) for file, end in snapshot.files)
            self.total = max(self.total, self.done.bytes + left)
            if not left:
                return
            self._commit(begin, self._chunk(snapshot, begin))
            yield

    def _commit(self, begin: Position, chunk: LogSnapshot) -> None:
        counted = _Counted(self._batches(chunk))
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._append(counted, chunk.stop)
            except CommitFailedException:
                if attempt == _ATTEMPTS:
                    raise
                self.table.refresh()
                if self.exported() > begin:
                    return  # another run was first
                counted = _Counted(self._batches(chunk))
            else:
                break
        self.done.messages += counted.rows
        self.done.files += len(chunk.files)
        self.done.bytes += sum(end - max(0, chunk.start - file) for file, end in chunk.files)

    def _append(self, batches: "_Counted", stop: Position) -> None:
        table = self.table
        # pyiceberg would repeat the rows of a commit that another run has made meanwhile
        once = {**table.metadata.properties, _RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        reader = pa.RecordBatchReader.from_batches(self._schema, batches)
        with table.transaction() as transaction:
            rows = reader if self._is_unpartitioned else reader.read_all()
            transaction.append(rows)
            transaction.set_properties({self._property: str(int(stop))})

    def _chunk(self, snapshot: LogSnapshot, begin: Position) -> LogSnapshot:
        """The files that one commit adds: at least one, and whole ones."""
        limit = COMMIT_BYTES if self._is_unpartitioned else COMMIT_BYTES_PARTITIONED
        size, stop = 0, begin
        for file, end in snapshot.files:
            length = end - max(0, begin - file)
            if size and size + length > limit:
                break
            size += length
            stop = Position(file + end)
        return between(self.view, begin, stop)

    def _batches(self, chunk: LogSnapshot) -> Iterator[Any]:
        options = ReadOptions((self.view.path,))
        task = Task((chunk.place,), options, Wanted(self._schema))
        return chain.from_iterable(task.read(parts) for parts in splits((chunk,), options))

    def _end(self) -> Position:
        if self.settings.include_active:
            return self.view.end()
        order, rolled = self.view.log.manifest.order, self.view.log.manifest.rolled
        return Position(order[-1] + rolled[order[-1]].end) if order else START

    def _check_gaps(self, snapshot: LogSnapshot) -> None:
        for gap in snapshot.gaps:
            if not self.settings.allow_gaps:
                raise ArchivedBeforeExport(gap)
            self.done.gaps += [name for name in gap.files if name not in self.done.gaps]

    @property
    def _schema(self) -> Any:
        has_headers = "headers" in self.table.schema().column_names
        return SCHEMA_WITH_HEADERS if has_headers else SCHEMA

    @property
    def _is_unpartitioned(self) -> bool:
        return not self.table.spec().fields

    @property
    def _property(self) -> str:
        identity = self.view.log.manifest.identity
        return f"rt.{identity.id if identity else ''}.position"

    def exported(self) -> Position:
        """Up to where the log was added."""
        return Position(int(self.table.properties.get(self._property, "0")))


class _Counted:
    """Batches that are counted as they are taken."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch
