"""HistoryText: rows of a log's history as JSON and as cells of a table."""

import json
import os
from typing import Final

from rt.history import Row
from rt.kinds import show_seconds
from rt.offload import Offloaded
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
        age_ns, place = row.age_ns(self._now_ns), row.file[4:]
        first, last = time_text(row.first_time_ns), time_text(row.last_time_ns)
        rolled = "null" if row.rolled_ns is None else f'"{time_text(row.rolled_ns)}"'
        gone = "" if row.archived_ns is None else time_text(row.archived_ns)
        archived = f'"{gone}"' if gone else "null"
        reason = json.dumps(row.reason) if row.reason else '""'
        return (
            f'{{"path":"{self._path}{row.file}","state":"{row.state}",'
            f'"first_position":"{place}.0","first_time":"{first}",'
            f'"first_time_ns":{row.first_time_ns},"end_position":"{place}.{row.bytes}",'
            f'"last_time":"{last}","last_time_ns":{row.last_time_ns},'
            f'"first_number":{row.first_number},"messages":{row.messages},"bytes":{row.bytes},'
            f'"rolled_at":{rolled},"age_s":{"null" if age_ns is None else age_ns // _NS},'
            f'"archived_at":{archived},"archive_reason":{reason},'
            f'"archived_by":{row.decided_by or "null"},'
            f'"sessions":"{row.sessions}","digest":"{row.digest}",'
            f'"address":{"null" if self._offloaded is None else self._address(row)},'
            f"{self._theirs(row, age_ns, first, gone)}}}"
        )

    def _address(self, row: Row) -> str:
        address = self._offloaded.address_of(row.first) if self._offloaded else ""
        return json.dumps(address or None)

    def json_rt(self, row: Row) -> str:
        """Return a row as JSON with the fields of the system this one follows, and no others."""
        gone = "" if row.archived_ns is None else time_text(row.archived_ns)
        theirs = self._theirs(row, row.age_ns(self._now_ns), time_text(row.first_time_ns), gone)
        return f"{{{theirs}}}"

    def cells(self, row: Row) -> tuple[str, ...]:
        """Return the cells of a row, as `HEADINGS` names them."""
        age_ns, place = row.age_ns(self._now_ns), row.file[4:]
        return (
            row.file,
            row.state,
            f"{place}.0",
            time_text(row.first_time_ns),
            f"{place}.{row.bytes}",
            time_text(row.last_time_ns),
            f"{row.messages:,}",
            f"{row.bytes:,}",
            "" if age_ns is None else _age_text(age_ns // _NS),
            "" if row.archived_ns is None else time_text(row.archived_ns),
            row.reason,
        )

    def _theirs(self, row: Row, age_ns: int | None, first: str, gone: str) -> str:
        minutes = -1 if age_ns is None else age_ns // _MINUTE_NS
        return (
            f'"logPath":":{self._path}{row.file}","logTime":"{first[:-1]}","logPos":{row.first:d},'
            f'"logAge":{minutes},"truncationTime":"{gone[:-1]}"'
        )


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
