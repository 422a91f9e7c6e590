"""HistoryText: formats rows of a log's history as JSON and as cells of a table."""

import json
import os
from json.encoder import encode_basestring_ascii
from typing import Final

from rt.amounts import duration_text
from rt.inspect.history import Row
from rt.masking import without_secrets
from rt.offload.offloaded import Offloaded
from rt.position import Position
from rt.text import time_text

HEADINGS: Final = (
    "file", "state", "first position", "first time", "end position", "last time", "messages",
    "bytes", "rolled for", "archived", "why",
)  # fmt: skip
_NS: Final = 1_000_000_000


class HistoryText:
    """Formats a log's rows, of which there may be 100,000; what they share is formatted once."""

    def __init__(self, directory: str, now_ns: int, offloaded: Offloaded | None = None) -> None:
        """Prepare for the rows of one log.

        Args:
            directory: Directory of the log.
            now_ns: The time from which ages are counted.
            offloaded: Where copies of its files are, if any.
        """
        self._offloaded = offloaded
        self._now_ns = now_ns
        path = json.dumps(os.path.join(directory, ""))[1:-1]  # a file's name needs no quoting
        fields = _ROW.format(path=path.replace("%", "%%"))
        self._row = f"{{{fields}}}"

    def json(self, row: Row) -> str:
        """Return a row as JSON: our fields, then those of the system rt is modelled on."""
        line, gone, is_active = row
        start, size, first_number, after, first_ns, last_ns, at_ns, digest, sessions = line
        name, first, last = start.file_name, time_text(first_ns), time_text(last_ns)
        state, rolled, minutes = "active", '"rolled_at":null,"age_s":null', -1
        if not is_active:
            age_s = max(0, self._now_ns - at_ns) // _NS
            state, minutes = "rolled", age_s // 60
            at = last if at_ns == last_ns else time_text(at_ns)
            rolled = f'"rolled_at":"{at}","age_s":{age_s}'
        archived, truncated = _NOT_ARCHIVED, ""
        if gone is not None:
            _, gone_ns, reason, by = gone
            state, at = "archived", time_text(gone_ns)
            archived = _ARCHIVED % (at, _quoted(reason), by or "null")
            truncated = at[:-1]
        return self._row % (
            name, state, name[4:], first, first_ns, name[4:], size, last, last_ns, first_number,
            after - first_number, size, rolled, archived, _quoted(sessions), _quoted(digest),
            "null" if self._offloaded is None else self._address(start),
            name, first[:-1], start, minutes, truncated,
        )  # fmt: skip

    def _address(self, start: Position) -> str:
        address = self._offloaded.address_of(start) if self._offloaded else ""
        # an older version may have written the note
        return json.dumps(without_secrets(address) or None)

    def cells(self, row: Row) -> tuple[str, ...]:
        """Return the cells of a row, in the order of `HEADINGS`."""
        line, gone, age_ns = row.line, row.gone, row.age_ns(self._now_ns)
        return (
            row.file, row.state, str(row.first), time_text(line.first_time_ns), str(row.end),
            time_text(line.last_time_ns), f"{line.messages:,}", f"{line.end:,}",
            "" if age_ns is None else duration_text(age_ns // _NS),
            "" if gone is None else time_text(gone.at_ns), "" if gone is None else gone.reason,
        )  # fmt: skip


# `%` takes half the time of an f-string.
_ROW: Final = (
    '"path":"{path}%s","state":"%s","first_position":"%s.0","first_time":"%s","first_time_ns":%d,'
    '"end_position":"%s.%d","last_time":"%s","last_time_ns":%d,"first_number":%d,"messages":%d,'
    '"bytes":%d,%s,%s,"sessions":%s,"digest":%s,"address":%s,'
    '"logPath":":{path}%s","logTime":"%s","logPos":%d,"logAge":%d,"truncationTime":"%s"'
)
_ARCHIVED: Final = '"archived_at":"%s","archive_reason":%s,"archived_by":%s'
_NOT_ARCHIVED: Final = '"archived_at":null,"archive_reason":"","archived_by":null'
_quoted: Final = encode_basestring_ascii
