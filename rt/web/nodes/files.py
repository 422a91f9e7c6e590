"""MergedFiles: the files of a merged log, and which of them would be archived next."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from archiver.decide import decide
from archiver.lease import RolledFile
from archiver.policy import MINUTE_NS, Policy
from rt.format.manifest import FILE_NAME
from rt.inspect.history import Row, history
from rt.inspect.history_text import HistoryText
from rt.node.retain.retention import leases_of_notes, policy_of_notes
from rt.web.serving.cached import Cached

_LOOK_S: Final = 2.0  # reading a manifest of 100,000 lines takes 0.3 s
SHOWN_MAX: Final = 400  # files on the page; more would make its time axis a grey bar


class MergedFiles:
    """Reads the history of a log from its files on request, but at most every two seconds.

    Threads: any thread may call any method.
    """

    def __init__(self, directory: str) -> None:
        """Prepare for the merged log in `directory`; the first request reads."""
        self._directory = directory
        self._cached: Cached[tuple[int, list[Row]]] = Cached((0, []), _LOOK_S)

    def rows(self) -> list[Row]:
        """Return a row for each file, oldest first; none if there is no log yet."""
        return self._cached.get(self._read)[1]

    def texts(self) -> tuple[int, list[str]]:
        """Return when the files were read (ns), and the JSON of each file, as in `/log-history`."""
        text = HistoryText(self._directory, time.time_ns())
        looked_ns, rows = self._cached.get(self._read)
        return looked_ns, [text.json(row) for row in rows]

    def _read(self) -> tuple[int, list[Row]]:
        now_ns = time.time_ns()
        there = os.path.exists(os.path.join(self._directory, FILE_NAME))
        return now_ns, history(self._directory) if there else []


def planned(
    rows: Sequence[Row], notes: Mapping[str, str], now_ns: int, *, nodes: int
) -> list[dict[str, Any]]:
    """Return the newest files as shown on the page, with what the archiver would do.

    The rule `disk` is left out if there are other nodes, because it depends on a majority's disks.

    Args:
        rows: the log's history.
        notes: the stream's agreed notes.
        now_ns: the current time.
        nodes: how many nodes the stream has.
    """
    policy, live = policy_of_notes(notes), [row for row in rows if row.state == "rolled"]
    files = [RolledFile(row.first, row.bytes, row.line.at_ns, row.messages) for row in live]
    active = rows[-1] if rows and rows[-1].is_active else None
    decisions = decide(
        policy, files, active.bytes if active else 0, now_ns=now_ns,
        leases=leases_of_notes(notes), nodes=nodes,
        active_messages=active.messages if active else 0,
    )  # fmt: skip
    goes = {each.start.file_name: each.reason for each in decisions}
    oldest = live[0].file if live else ""
    return [_shown(row, policy, goes, oldest) for row in rows[-SHOWN_MAX:]]


def _shown(row: Row, policy: Policy, goes: Mapping[str, str], oldest: str) -> dict[str, Any]:
    by_time = policy.time and row.state == "rolled"
    return {
        "file": row.file, "state": row.state, "bytes": row.bytes, "messages": row.messages,
        "first_ns": row.line.first_time_ns, "last_ns": row.line.last_time_ns,
        "rolled_ns": row.rolled_ns, "archived_ns": row.gone.at_ns if row.gone else None,
        "why": row.gone.reason if row.gone else goes.get(row.file, ""), "goes": row.file in goes,
        "is_next": row.file == oldest,
        "expires_ns": row.line.at_ns + policy.time * MINUTE_NS if by_time else None,
    }  # fmt: skip
