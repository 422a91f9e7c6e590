"""Export: brings a table up to date with a log, each message exactly once."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from rt.errors import CorruptLog, GapError
from rt.limits import MIB
from rt.position import START, Position
from rt.spark.reading.options import ReadOptions
from rt.spark.reading.plan import LogSnapshot, LogView, between, open_log
from rt.spark.reading.steps import after_bytes, bytes_between, unread
from rt.spark.reading.task import read_here
from rt.tables.dataset import SCHEMA, DataFile, Dataset, Divide
from rt.tables.parquet_table import DEAD_SUFFIX, ParquetTable
from rt.tables.payloads import NO_COLUMNS, JsonColumns
from rt.tables.table_state import (
    FEW_FILES,
    Change,
    Gaps,
    LogName,
    OvertakenError,
    Table,
    due_runs,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

TARGET_BYTES: Final = 128 * MIB
KEEP_S: Final = 3600.0
# A commit adds this many target sizes of the log, so that most of it is in files of full size.
_COMMIT_TARGETS: Final = 4
_ENDLESS: Final = 1 << 62


@dataclass(slots=True)
class Exported:
    """The result of one run of an export."""

    files: int = 0  # log files added, including the active one
    messages: int = 0  # messages added, including dead letters
    dead: int = 0  # messages whose payloads do not parse
    bytes: int = 0  # bytes of the log that were added
    left: int = 0  # files that had been exported before
    waiting: int = 0  # messages of the active file that were not exported
    gaps: list[str] = field(default_factory=list)  # files archived before they were exported


Progress = Callable[[Exported, int], None]


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """What to export, and into which files.

    Attributes:
        partition: `none`, `day`, `month`, `stream` or `session`; "" for the table's own. A new
            Parquet dataset has `day`, or `none` for a session, whose publish times may span
            decades; a new Iceberg table has none. Fixed by the first run.
        include_active: whether to export the active file too, as far as it is written.
        allow_gaps: whether to skip files that were archived before they were exported.
        start: messages before this position are not exported.
        target_bytes: the target size of a Parquet file.
        columns: JSON fields of the payloads that become columns; by default the table's own.
        keep_s: how long to keep replaced files for readers.
    """

    partition: str = ""
    include_active: bool = False
    allow_gaps: bool = False
    start: Position = START
    target_bytes: int = TARGET_BYTES
    columns: JsonColumns = NO_COLUMNS
    keep_s: float = KEEP_S


class ArchivedBeforeExport(GapError):  # noqa: N818 - it is a gap
    """A file was archived before it was exported; the message names the ways to continue."""

    def __str__(self) -> str:
        return (
            f"{self.gap}; --allow-gaps (allow_gaps=True) exports what is left, and "
            f"--from (start) begins after it: --from {self.gap.end}"
        )


# Opens the table of a log, or with True the table of its dead letters.
Opener = Callable[[LogView, bool], Table]


def parquet_opener(out: str, settings: ExportSettings) -> Opener:
    """Return a function that opens the Parquet dataset in the directory `out`."""

    def opened(view: LogView, is_dead: bool) -> Table:
        if is_dead:
            return ParquetTable(out.rstrip("/") + DEAD_SUFFIX, _name(view), "", "none", None)
        usual = "day" if view.log.merged else "none"
        return ParquetTable(out, _name(view), settings.partition, usual, settings.columns)

    return opened


def iceberg_opener(
    table: str, catalog: Callable[[], "Catalog"], settings: ExportSettings
) -> Opener:
    """Return a function that opens an Iceberg table in the catalog returned by `catalog`."""
    from rt.tables.iceberg import DEAD_SUFFIX as DEAD_TABLE  # noqa: PLC0415 - optional
    from rt.tables.iceberg import IcebergTable  # noqa: PLC0415

    def opened(view: LogView, is_dead: bool) -> Table:
        if is_dead:
            name = table + DEAD_TABLE
            return IcebergTable(catalog(), name, _name(view), "", None)
        return IcebergTable(catalog(), table, _name(view), settings.partition, settings.columns)

    return opened


def to_parquet(
    path: str,
    out: str,
    settings: ExportSettings = ExportSettings(),
    *,
    progress: Progress | None = None,
) -> Exported:
    """Bring a Parquet dataset up to date with a log.

    Args:
        path: the log, or its URI.
        out: a local directory; created if it does not exist. The manifest next to it,
            OUT.rt-export.json, says up to where the dataset is complete.
        settings: what to export, and how.
        progress: called as rows are written, with the bytes done and the bytes in total.

    Raises:
        Misuse: there is no log, `out` holds the export of another one or has other partitions, or
            another run writes there.
        GapError: a file was archived before it was exported.
        CorruptLog: a file is damaged; everything before its commit has been exported.
    """
    return _run(path, parquet_opener(out, settings), settings, progress)


def to_iceberg(
    path: str,
    table: str,
    catalog: "Catalog",
    settings: ExportSettings = ExportSettings(),
    *,
    progress: Progress | None = None,
) -> Exported:
    """Bring an Iceberg table up to date with a log.

    The position reached is a property of the table, `rt.LOG_ID.position`, and changes in the same
    commit as the rows. So a killed run has added all of a commit or none of it. Of two simultaneous
    runs, the later one finds the commit of the other, and continues after that.

    Args:
        path: the log, or its URI.
        table: its name in the catalog, `namespace.name`; created if it does not exist. An existing
            table gets the columns that it lacks, and keeps its partitions.
        catalog: a pyiceberg catalog.
        settings: what to export.
        progress: called as rows are written, with the bytes done and the bytes in total.

    Raises:
        Misuse: there is no log, or the table's name has no namespace.
        GapError: a file was archived before it was exported.
        CorruptLog: a file is damaged; everything before its commit has been exported.
    """
    return _run(path, iceberg_opener(table, lambda: catalog, settings), settings, progress)


def _run(
    path: str, opener: Opener, settings: ExportSettings, progress: Progress | None
) -> Exported:
    with open_log(path) as view, ExitStack() as undo:
        export = Export(view, opener, settings, undo, progress)
        while export.step():
            pass
        export.join(seal=True)
        with suppress(CorruptLog):  # the file's export will report it
            export.done.waiting, _ = unread(view, export.position, view.end())
        return export.done


def _name(view: LogView) -> LogName:
    rolled = view.log.manifest.rolled
    ends = {file.file_name: file + line.end for file, line in rolled.items()}
    return LogName(view.place.log_id, view.place.stream, ends)


class Export:
    """Brings a table up to date with a log, one commit at a time.

    After an `OSError` make another `Export`, which starts from the table's own position.
    """

    def __init__(
        self,
        view: LogView,
        opener: Opener,
        settings: ExportSettings,
        undo: ExitStack,
        progress: Progress | None = None,
    ) -> None:
        """Open the table and, if payloads are parsed, one for dead letters; `undo` closes both."""
        self.done = Exported()
        self.stream = view.place.stream
        self._view = view
        self._settings = settings
        self._progress = progress
        self.table = undo.enter_context(closing(opener(view, False)))
        self._dead: Table | None = None
        if self.table.columns.fields:
            self._dead = undo.enter_context(closing(opener(view, True)))
        self._unjoined = FEW_FILES  # commits since small files were last joined
        rolled = view.log.manifest.rolled
        self.done.left = sum(file + line.end <= self.position for file, line in rolled.items())

    @property
    def position(self) -> Position:
        """Return the position before which the table has all messages from `settings.start` on."""
        return max(self._settings.start, self.table.position)

    def end(self) -> Position:
        """Return where the messages to export end now."""
        if self._settings.include_active:
            return self._view.end()
        order, rolled = self._view.log.manifest.order, self._view.log.manifest.rolled
        return Position(order[-1] + rolled[order[-1]].end) if order else START

    def bytes_left(self) -> int:
        """Return how many bytes of the log are not in the table yet."""
        return bytes_between(self._view, self.position, self.end())

    def unread(self) -> tuple[int, int | None]:
        """Return how many messages are not in the table yet, and when the first was merged."""
        return unread(self._view, self.position, self.end())

    def step(self) -> bool:
        """Add the next messages in one commit; return False if there are no more messages.

        Raises:
            ArchivedBeforeExport: the messages were archived, and gaps are not allowed.
            CorruptLog: the messages are damaged.
            OSError: the disk or the catalog failed; see the class.
        """
        begin, end = self.position, self.end()
        if begin >= end:
            return False
        stop = after_bytes(self._view, begin, _COMMIT_TARGETS * self._settings.target_bytes, end)
        snapshot = between(self._view, begin, stop)
        if not self._settings.allow_gaps:
            for gap in snapshot.gaps:
                raise ArchivedBeforeExport(gap)
        if not snapshot.gaps and not bytes_between(self._view, begin, stop):
            return False
        with suppress(OvertakenError):  # the next step continues where the other process ended
            self._add(snapshot)
        return True

    def join(self, *, seal: bool = False) -> None:
        """Replace small files by larger ones, if there may be enough of them or `seal` is set."""
        if self._unjoined < FEW_FILES and not seal:
            return
        self._unjoined = 0
        for table in (self.table, *([self._dead] if self._dead else [])):
            runs = due_runs(
                table.state(), self._settings.target_bytes, by_time=table.is_by_time,
                finishes=table.finishes, seal=seal,
            )  # fmt: skip
            with suppress(OvertakenError):
                for files, is_finished in list(runs):
                    self._join(table, files, is_finished=is_finished)
            table.sweep(self._settings.keep_s)

    def _join(self, table: Table, files: list[DataFile], *, is_finished: bool) -> None:
        place = files[0].place
        rows = self._dataset(table, lambda batch: iter([(place, batch)]), _ENDLESS)
        try:
            for batch in chain.from_iterable(map(table.read, files)):
                rows.write(batch)
            added = rows.finish()
        except BaseException:
            rows.discard()
            raise
        table.commit(Change(added, files, table.position, (), lambda _file: is_finished))

    def _add(self, snapshot: LogSnapshot) -> None:
        total = self.done.bytes + bytes_between(self._view, snapshot.start, self.end())
        target = self._settings.target_bytes
        rows = self._dataset(self.table, self.table.divide, target)
        dead = self._dataset(self._dead, self._dead.divide, target) if self._dead else None
        counted = Exported()
        try:
            for batch in self._batches(snapshot):
                alive, unfit = self.table.columns.split(batch)
                rows.write(alive)
                counted.messages += batch.num_rows
                if unfit is not None and dead is not None and self._dead is not None:
                    counted.dead += unfit.num_rows
                    is_new = pc.greater_equal(unfit.column("position"), int(self._dead.position))
                    dead.write(unfit.filter(is_new))
                if self._progress is not None:
                    self.done.messages += batch.num_rows
                    self._progress(self.done, total)
                    self.done.messages -= batch.num_rows
            unfit_files, files = dead.finish() if dead else [], rows.finish()
        except BaseException:
            rows.discard()
            if dead:
                dead.discard()
            raise
        gaps: Gaps = tuple((gap.begin, gap.end) for gap in snapshot.gaps)
        if snapshot.start > self.table.position:  # skipped by the setting `start`
            gaps = ((self.table.position, snapshot.start), *gaps)
        self._commit(snapshot.stop, files, unfit_files, gaps)
        self._count(snapshot, counted)

    def _commit(
        self, stop: Position, files: list[DataFile], unfit: list[DataFile], gaps: Gaps
    ) -> None:
        """Commit the new files, the dead letters before the rows.

        If a run is killed between the two, the next run skips the dead letters already added.
        """
        if self._dead is not None and stop > self._dead.position:
            self._dead.commit(Change(unfit, (), stop, gaps, self._is_whole))
        self.table.commit(Change(files, (), stop, gaps, self._is_whole))
        self._unjoined += 1

    def _is_whole(self, file: DataFile) -> bool:
        return file.bytes >= self._settings.target_bytes

    def _count(self, snapshot: LogSnapshot, counted: Exported) -> None:
        done = self.done
        done.messages += counted.messages
        done.dead += counted.dead
        done.bytes += bytes_between(self._view, snapshot.start, snapshot.stop)
        rolled = self._view.log.manifest.rolled
        # a file that the next commit continues is not counted yet
        done.files += sum(
            end > 0 and (file not in rolled or end == rolled[file].end)
            for file, end in snapshot.files
        )
        for gap in snapshot.gaps:
            done.gaps += [name for name in gap.files if name not in done.gaps]

    def _batches(self, snapshot: LogSnapshot) -> Iterator[Any]:
        try:
            yield from read_here((snapshot,), ReadOptions((self._view.path,)), SCHEMA)
        except GapError as error:
            raise ArchivedBeforeExport(error.gap) from None

    def _dataset(self, table: Table, divide: Divide, target_bytes: int) -> Dataset:
        return Dataset(table.schema, divide, table.create, table.remove, target_bytes)
