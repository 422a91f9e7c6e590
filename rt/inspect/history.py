"""History: lists every file a log ever had, from its manifest and its active file."""

import os
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Final, NamedTuple

from rt.errors import CorruptLog, FrameError, ManifestError
from rt.format.frame import HEADER_BYTES, FrameKind, parse_header
from rt.format.index import SUFFIX
from rt.format.manifest import FILE_NAME, Archived, Manifest, Rolled
from rt.format.scan import next_header
from rt.log.files.absent import no_log
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.files.gc_pause import uncollected
from rt.log.files.listing import manifest_size
from rt.log.write.active_file import Facts
from rt.position import Position, file_position

STATES: Final = frozenset({"active", "rolled", "archived"})


class Row(NamedTuple):
    """One file of a log, from its manifest lines."""

    line: Rolled  # for an active file: the line it would get now, with `at_ns` 0
    gone: Archived | None = None
    is_active: bool = False

    @property
    def file(self) -> str:
        """The file's name."""
        return self.line.file.file_name

    @property
    def state(self) -> str:
        """The file's state: `active`, `rolled` or `archived`."""
        if self.gone is not None:
            return "archived"
        return "active" if self.is_active else "rolled"

    @property
    def bytes(self) -> int:
        """Bytes of its whole frames; for an archived file, what it held before."""
        return self.line.end

    @property
    def first(self) -> Position:
        """Position of its first message."""
        return self.line.file

    @property
    def end(self) -> Position:
        """Position after its last message."""
        return Position(self.line.file + self.line.end)

    @property
    def messages(self) -> int:
        """How many message numbers the file spans, including numbers that a session skipped."""
        return self.line.messages

    @property
    def rolled_ns(self) -> int | None:
        """When it was rolled; None while it is active."""
        return None if self.is_active else self.line.at_ns

    def age_ns(self, now_ns: int) -> int | None:
        """How long ago it was rolled; None while it is active."""
        return None if self.is_active else max(0, now_ns - self.line.at_ns)


_new_row: Final = partial(tuple.__new__, Row)  # takes a third of the time of `Row(...)`


def history(directory: str) -> list[Row]:
    """Return a row for each file the log ever had, oldest first.

    This reads only the manifest, and the active file from its last index entry on. The facts about
    an archived file are in the manifest, because they were recorded before it was archived.

    Raises:
        Misuse: There is no log.
        CorruptLog: The manifest is damaged.
        OSError: The manifest cannot be read, or is not a regular file.
    """
    path = os.path.join(directory, FILE_NAME)
    try:
        file = OsDisk().open_read(path)
    except FileNotFoundError:
        raise no_log(directory) from None
    try:
        data = file.pread(manifest_size(file), 0)
        if b"\n" not in data:  # its first line names the log
            raise no_log(directory)
        rows = rolled_rows(data, path)
    except ManifestError as error:
        raise CorruptLog(path, Position(0), str(error)) from None
    finally:
        file.close()
    active = active_row(directory, rows)
    return [*rows, active] if active else rows


def rolled_rows(data: bytes, path: str) -> list[Row]:
    """Return a row for each rolled file, from the bytes of a manifest.

    Raises:
        CorruptLog: A line is damaged; the error names `path`.
    """
    manifest = Manifest()
    with uncollected():
        try:
            manifest.feed(data)
        except ManifestError as error:
            raise CorruptLog(path, Position(0), str(error)) from None
        gone = manifest.archived.get
        return [_new_row((line, gone(file), False)) for file, line in manifest.rolled.items()]


def active_row(directory: str, rows: list[Row]) -> Row | None:
    """Return the row of the active file, which follows the last rolled one; None if none does."""
    start = _following(directory, rows[-1].first if rows else None)
    return None if start is None else active(start, *_facts(directory, start))


def active(start: Position, facts: Facts, end: int) -> Row:
    """Return the row of a file that is still growing.

    Args:
        start: Position where the file begins.
        facts: What the file holds.
        end: Bytes of its frames.
    """
    line = Rolled(
        start, end, facts.first, facts.next, facts.first_time_ns, facts.last_time_ns, at_ns=0
    )
    return Row(line, is_active=True)


def selected(
    rows: list[Row], *, since_ns: int | None = None, until_ns: int | None = None,
    begin: Position | None = None, end: Position | None = None, states: Collection[str] = STATES,
) -> Iterator[Row]:  # fmt: skip
    """Yield the selected rows.

    Args:
        rows: The rows of a history.
        since_ns: Only files with messages of this time or later.
        until_ns: Only files with messages before this time.
        begin: Only files that reach beyond this position; the first of them contains it.
        end: Only files that begin before this position.
        states: Only files in one of these states.
    """
    for row in rows:
        late = since_ns is None or row.line.last_time_ns >= since_ns
        early = until_ns is None or row.line.first_time_ns < until_ns
        after = begin is None or row.end > begin
        before = end is None or row.first < end
        if late and early and after and before and row.state in states:
            yield row


def _following(directory: str, last: Position | None) -> Position | None:
    """Return the start of the file after the last rolled one; None if there is none.

    Args:
        directory: Directory of the log.
        last: The newest rolled file. When the manifest was read, at most one file followed the
            newest rolled one, usually under the next name; trying that name first avoids listing
            100,000 names. More files may have followed since.
    """
    for each in () if last is None else (last.next_file(), last.next_run()):
        if os.path.exists(os.path.join(directory, each.file_name)):
            return each
    names = (name for name in os.listdir(directory) if not name.endswith(SUFFIX))
    starts = (start for start in map(file_position, names) if start is not None)
    return min((start for start in starts if last is None or start > last), default=None)


def _facts(directory: str, start: Position) -> tuple[Facts, int]:
    """Return the facts about the active file, and where its whole frames end."""
    facts = Facts()
    with closing(LogDirectory(directory)) as log:
        log.refresh()
        with closing(log.open_file(start)) as file:
            walk = log.walk_before(file, start, lambda _entry: False)
            with suppress(FrameError):  # empty, torn or damaged; `rt verify` reports it
                facts.add(parse_header(file.pread(HEADER_BYTES, 0)))
                while header := next_header(file.pread, walk, file.size()):
                    if header.kind == (FrameKind.RANGE if log.merged else FrameKind.MESSAGES):
                        facts.add(header)
    return facts, walk.position.offset
