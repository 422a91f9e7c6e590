"""History: what became of every file of a log, told by its manifest and its active file alone."""

import os
from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

from rt.active_file import Facts
from rt.errors import CorruptLog, FrameError, ManifestError, Misuse
from rt.frame import HEADER_BYTES, Kind, parse_header
from rt.index import SUFFIX
from rt.log_directory import LogDirectory
from rt.manifest import FILE_NAME, SLAB_LINES, Manifest, parse_lines
from rt.position import Position, file_position
from rt.scan import next_header
from rt.seek import walk_before

_ROLLED_FIELDS: Final = itemgetter(
    "file", "end", "first", "next", "first_time_ns", "last_time_ns", "at_ns"
)
_ARCHIVED_FIELDS: Final = itemgetter("at_ns", "reason")


class Row(NamedTuple):
    """One file of a log."""

    file: str  # its name
    bytes: int  # of whole frames; what it held, if it was archived
    first_number: int
    next_number: int
    first_time_ns: int
    last_time_ns: int
    rolled_ns: int | None = None  # None while it is active
    archived_ns: int | None = None
    reason: str = ""  # for which it was archived
    decided_by: int = 0  # index of the instruction that archived it
    digest: str = ""  # of a merged log, up to the file's end
    sessions: str = ""  # whose messages a merged file holds, as `rt.manifest.Rolled` has it

    @property
    def state(self) -> str:
        """What can be done with it: `active`, `rolled` or `archived`."""
        if self.archived_ns is not None:
            return "archived"
        return "active" if self.rolled_ns is None else "rolled"

    @property
    def first(self) -> Position:
        """The position of its first message."""
        _, run, roll = self.file.split(".")
        return Position.of(int(run), int(roll), 0)

    @property
    def end(self) -> Position:
        """The position behind its last message."""
        return Position(self.first + self.bytes)

    @property
    def messages(self) -> int:
        """Message numbers it holds; where a session's numbers jump, the jump is counted."""
        return self.next_number - self.first_number

    def age_ns(self, now_ns: int) -> int | None:
        """How long ago it was rolled; None while it is active."""
        return None if self.rolled_ns is None else max(0, now_ns - self.rolled_ns)


def history(directory: str) -> list[Row]:
    """Return a row for each file the log ever had, oldest first.

    Reads the manifest, and of the files only the active one from its last index entry on: what a
    row says of an archived file was written before it was archived.

    Raises:
        Misuse: there is no log.
        CorruptLog: the manifest is damaged.
    """
    path = os.path.join(directory, FILE_NAME)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise Misuse(f"{directory}: there is no log, for it holds no manifest") from None
    rows = rolled_rows(data, path)
    active = active_row(directory, rows)
    return [*rows, active] if active else rows


def rolled_rows(data: bytes, path: str) -> list[Row]:
    """Return a row for each rolled file, from the bytes of a manifest.

    Raises:
        CorruptLog: a line is damaged; `path` is the manifest's name there.
    """
    rows = _told(data)
    return _told_by_manifest(data, path) if rows is None else rows


def active_row(directory: str, rows: list[Row]) -> Row | None:
    """Return the row of the file behind the last rolled one, if there is any."""
    known = {row.file for row in rows}
    others = (
        name for name in os.listdir(directory) if name not in known and not name.endswith(SUFFIX)
    )
    starts = map(file_position, others)
    newest = max((start for start in starts if start is not None), default=None)
    if newest is None or (rows and newest < rows[-1].first):
        return None
    facts, end = _facts(directory, newest)
    return Row(
        newest.file_name, end, facts.first, facts.next, facts.first_time_ns, facts.last_time_ns
    )


def selected(
    rows: list[Row], since_ns: int | None, until_ns: int | None, states: frozenset[str]
) -> Iterator[Row]:
    """Yield rows that hold messages from `since_ns` on and before `until_ns`, by state."""
    for row in rows:
        late_enough = since_ns is None or row.last_time_ns >= since_ns
        early_enough = until_ns is None or row.first_time_ns < until_ns
        if late_enough and early_enough and row.state in states:
            yield row


def _told(data: bytes) -> list[Row] | None:
    """Return what whole and well-formed lines say; None where the manifest must be asked.

    A third of the time `Manifest` takes, which counts where there are 100,000 files.
    """
    rolled: dict[str, tuple[Any, ...]] = {}
    told: dict[str, tuple[str, str]] = {}
    archived: dict[str, tuple[Any, ...]] = {}
    lines = data.split(b"\n")
    lines.pop()  # b"", or a line that is being written
    try:
        for first in range(0, len(lines), SLAB_LINES):
            parsed = parse_lines(lines[first : first + SLAB_LINES])
            if parsed is None:
                return None
            for entry in parsed:
                if entry["what"] == "rolled":
                    rolled[entry["file"]] = _ROLLED_FIELDS(entry)
                    told[entry["file"]] = entry.get("digest", ""), entry.get("sessions", "")
                elif entry["what"] == "archived":
                    archived[entry["file"]] = *_ARCHIVED_FIELDS(entry), entry.get("by", 0)
    except (KeyError, TypeError):
        return None
    live = (None, "", 0)
    return [
        _new_row(fields + archived.get(file, live) + told[file]) for file, fields in rolled.items()
    ]


def _told_by_manifest(data: bytes, path: str) -> list[Row]:
    manifest = Manifest()
    try:
        manifest.feed(data)
    except ManifestError as error:
        raise CorruptLog(path, Position(0), str(error)) from None
    return [_row(manifest, file) for file in manifest.order]


def _row(manifest: Manifest, file: Position) -> Row:
    line, gone = manifest.rolled[file], manifest.archived.get(file)
    at_ns, reason, by = (None, "", 0) if gone is None else (gone.at_ns, gone.reason, gone.by)
    return Row(
        file.file_name, line.end, line.first, line.next, line.first_time_ns, line.last_time_ns,
        line.at_ns, at_ns, reason, by, line.digest, line.sessions,
    )  # fmt: skip


def _facts(directory: str, start: Position) -> tuple[Facts, int]:
    """Return what the active file holds, and where it ends."""
    log = LogDirectory(directory)
    log.refresh()
    file = log.open_file(start)
    index, index_file = log.open_index(start)
    facts = Facts()
    walk = walk_before(
        file.pread, index, start, lambda _entry: False, merged=log.merged, session=log.session
    )
    try:
        facts.take(parse_header(file.pread(HEADER_BYTES, 0)))
        while header := next_header(file.pread, walk, file.size()):
            if header.kind == (Kind.RANGE if log.merged else Kind.MESSAGES):
                facts.take(header)
    except FrameError:
        pass  # it is empty, or torn, or damaged, of which `rt verify` tells
    finally:
        file.close()
        log.close()
        if index_file is not None:
            index_file.close()
    return facts, walk.position.offset


_new_row = partial(tuple.__new__, Row)
