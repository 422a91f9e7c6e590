"""TableState: how far a table follows a log, and which files it consists of."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from rt.position import Position
from rt.tables.dataset import DataFile
from rt.tables.payloads import JsonColumns

FEW_FILES: Final = 16  # fewer small files of a partition are left unjoined
Gaps = tuple[tuple[Position, Position], ...]


@dataclass(frozen=True, slots=True)
class LogName:
    """The log that a table follows."""

    id: str  # the id of this copy of the log
    stream: str  # the stream whose messages it holds
    # the ends of its rolled files, by name
    ends: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table at one moment."""

    log: LogName  # the log that it follows
    position: Position  # it has all messages before this one, except the gaps
    files: tuple[DataFile, ...]  # the files with its rows
    small: tuple[DataFile, ...]  # those of the files that may still be joined
    gaps: Gaps  # what was archived before it could be added
    columns: JsonColumns  # JSON fields of the payloads

    @property
    def rows(self) -> int:
        """Return how many messages the table has."""
        return sum(each.rows for each in self.files)


class Change(NamedTuple):
    """A commit: files that are added and removed, and the position that it reaches."""

    added: Sequence[DataFile]
    removed: Sequence[DataFile]
    position: Position
    gaps: Gaps
    is_finished: Callable[[DataFile], bool]  # whether an added file is never joined with others


class OvertakenError(Exception):
    """Another process has changed the table; nothing was added."""


class Table(Protocol):
    """A table that an export adds to. After an `OSError` it is closed and opened again."""

    name: str
    schema: Any
    columns: JsonColumns
    is_by_time: bool  # whether a partition gets no more rows once a later one has some
    finishes: bool  # whether files that will not be joined any more are marked as such

    @property
    def position(self) -> Position:
        """Return the position before which the table has all messages."""

    def state(self) -> TableState:
        """Return the current state; may read many files."""

    def divide(self, batch: Any, /) -> Iterator[tuple[str, Any]]:
        """Yield the rows of a batch for each partition, with the partition's name."""

    def create(self, place: str) -> tuple[str, Any]:
        """Create a file for rows of a partition; return its path, and a sink to write to."""

    def remove(self, path: str) -> None:
        """Remove a file that `create` made and that is not in the table."""

    def read(self, file: DataFile) -> Iterator[Any]:
        """Yield the rows of a file as record batches."""

    def commit(self, change: Change) -> None:
        """Apply all of a change or nothing.

        Raises:
            OvertakenError: another process was first; the added files are removed.
            OSError: it is unknown whether the change was applied.
        """

    def sweep(self, keep_s: float) -> None:
        """Delete files that were removed from the table more than `keep_s` ago."""

    def close(self) -> None:
        """Release the table, so that others can add to it."""


def due_runs(
    state: TableState, target_bytes: int, *, by_time: bool, finishes: bool, seal: bool
) -> Iterator[tuple[list[DataFile], bool]]:
    """Yield the runs of small files to join, and whether the result is finished.

    Files of a partition are joined once they reach the target size together, or once there are
    `FEW_FILES` of them. The rest is joined when the partition gets no more rows: with `seal`, or if
    partitions are by time and a later one has rows. A single file is yielded only with `finishes`,
    for a table that keeps its unfinished files apart.
    """
    newest = max((each.place for each in state.files), default="")
    places: dict[str, list[DataFile]] = {}
    for each in sorted(state.small, key=lambda file: file.first):
        if not finishes and each.bytes >= target_bytes // 2:
            continue
        places.setdefault(each.place, []).append(each)
    for place, files in places.items():
        is_over = seal or (by_time and place < newest)
        while files:
            run, size = [], 0
            while files and size < target_bytes:
                run.append(files.pop(0))
                size += run[-1].bytes
            is_done = size >= target_bytes or is_over
            if is_done and (finishes or len(run) > 1):
                yield run, True
            elif len(run) >= FEW_FILES:
                yield run, False
