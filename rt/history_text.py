"""HistoryText: rows of a log's history as JSON and as cells of a table."""

import json
import os
from functools import lru_cache
from typing import Final

from rt.history import Row
from rt.kinds import show_seconds
from rt.offloaded import Offloaded
from rt.position import Position
from rt.render import time_text

HEADINGS: Final = (
    "file", "state", "first position", "first time", "end position", "last time", "messages",
    "bytes", "rolled for", "archived", "why",
)  # fmt: skip
_NS: Final = 1_000_000_000
_MINUTE_NS: Final = 60 * _NS


class HistoryText:
    """Words rows, of which there may be 100,000: what they have in common is worded once."""

    def __init__(self, directory: str, now_ns: int, offloaded: Offloaded | None = None) -> None:
        """Word rows of the log in `directory`.

        Args:
            directory: of the log.
            now_ns: the time that ages are counted to.
            offloaded: where copies of its files are.
        """
        self._offloaded = offloaded
        self._path = json.dumps(os.path.join(directory, ""))[1:-1]  # a file's name needs no quoting
        self._now_ns = now_ns

    def json(self, row: Row) -> str:
        """Return a row as JSON: our names, then those of the system this one follows."""
        start, size, first_number, after, first_ns, last_ns, at_ns, digest, sessions = row.line
        file, first, rolled, age_s = start.file_name, time_text(first_ns), _NULL, _NULL
        if not row.is_active:
            rolled, age_s = f'"{time_text(at_ns)}"', str(max(0, self._now_ns - at_ns) // _NS)
        archived, reason, by = _NULL, "", _NULL
        if row.gone is not None:
            _, gone_ns, reason, number = row.gone
            archived, by = f'"{time_text(gone_ns)}"', str(number or _NULL)
        return (
            f'{{"path":"{self._path}{file}","state":"{row.state}",'
            f'"first_position":"{file[4:]}.0","first_time":"{first}",'
            f'"first_time_ns":{first_ns},"end_position":"{file[4:]}.{size}",'
            f'"last_time":"{time_text(last_ns)}","last_time_ns":{last_ns},'
            f'"first_number":{first_number},"messages":{after - first_number},"bytes":{size},'
            f'"rolled_at":{rolled},"age_s":{age_s},'
            f'"archived_at":{archived},"archive_reason":{_quoted(reason)},"archived_by":{by},'
            f'"sessions":{_quoted(sessions)},"digest":{_quoted(digest)},'
            f'"address":{_NULL if self._offloaded is None else self._address(start)},'
            f"{self._theirs(row, file, first, archived)}}}"
        )

    def _address(self, start: Position) -> str:
        address = self._offloaded.address_of(start) if self._offloaded else ""
        return json.dumps(address or None)

    def json_rt(self, row: Row) -> str:
        """Return a row as JSON with the fields of the system this one follows, and no others."""
        first, gone = time_text(row.line.first_time_ns), row.gone
        archived = _NULL if gone is None else f'"{time_text(gone.at_ns)}"'
        return f"{{{self._theirs(row, row.file, first, archived)}}}"

    def cells(self, row: Row) -> tuple[str, ...]:
        """Return the cells of a row, as `HEADINGS` names them."""
        line, gone, age_ns = row.line, row.gone, row.age_ns(self._now_ns)
        return (
            row.file,
            row.state,
            str(row.first),
            time_text(line.first_time_ns),
            str(row.end),
            time_text(line.last_time_ns),
            f"{line.messages:,}",
            f"{line.end:,}",
            "" if age_ns is None else _age_text(age_ns // _NS),
            "" if gone is None else time_text(gone.at_ns),
            "" if gone is None else gone.reason,
        )

    def _theirs(self, row: Row, file: str, first: str, archived: str) -> str:
        age_ns = row.age_ns(self._now_ns)
        minutes = -1 if age_ns is None else age_ns // _MINUTE_NS
        truncated = '""' if archived == _NULL else f'{archived[:-2]}"'
        return (
            f'"logPath":":{self._path}{file}","logTime":"{first[:-1]}","logPos":{int(row.first)},'
            f'"logAge":{minutes},"truncationTime":{truncated}'
        )


_NULL: Final = "null"
_quoted: Final = lru_cache(1024)(json.dumps)  # of what many files have in common


def _age_text(seconds: int) -> str:
    """Return an age in its two largest units.

    >>> _age_text(59), _age_text(3700), _age_text(90000)
    ('59s', '1h 1min', '1d 1h')
    """
    units = (("d", 86_400), ("h", 3600), ("min", 60))
    for place, (unit, size) in enumerate(units):
        if seconds >= size:
            rest = units[place + 1] if place + 1 < len(units) else ("s", 1)
            return f"{seconds // size}{unit} {seconds % size // rest[1]}{rest[0]}"
    return show_seconds(seconds)
