"""ScrubRecord: the progress of scrubbing a directory, kept across processes."""

import json
import os
from contextlib import suppress
from typing import Any, Final

from rt.log.files.disk import read_small, replace_small
from rt.position import START, Position, file_position

NAME: Final = "scrub"  # in the log's directory, where readers ignore it
_BYTES_MAX: Final = 1024
_NOTES_A_SAVE: Final = 64  # files between saves; as many are read again after a crash


class ScrubRecord:
    """ScrubRecord: a file that holds a scrub's progress. It is not synced, and may be lost.

    One thread uses it.
    """

    def __init__(self, directory: str = "") -> None:
        """Read the record of the merged log in `directory`; for "" there is no record."""
        self._directory = directory
        found = _read(os.path.join(directory, NAME)) if directory else {}
        self.finished_ns = _whole_number(found.get("finished_ns"))
        self._next = file_position(str(found.get("next"))) or START
        self._notes = 0

    def place(self, directory: str) -> Position:
        """Return the file at which this round continues in the log in `directory`."""
        return self._next if directory == self._directory else START

    def record(self, directory: str, file: Position) -> None:
        """Record that a file is about to be read."""
        if directory == self._directory:
            self._next = file
            self._notes += 1
            if self._notes % _NOTES_A_SAVE == 0:
                self.save()

    def finish(self, now_ns: int) -> None:
        """Record the end of a round."""
        self.finished_ns, self._next = now_ns, START
        self.save()

    def save(self) -> None:
        """Write the record; if the disk is full, only the record is lost."""
        if not self._directory:
            return
        path = os.path.join(self._directory, NAME)
        text = json.dumps({"finished_ns": self.finished_ns, "next": self._next.file_name})
        with suppress(OSError):
            replace_small(path, f"{path}.tmp", text.encode())


def _read(path: str) -> dict[str, Any]:
    try:
        found = json.loads(read_small(path, _BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _whole_number(value: object) -> int:
    return value if type(value) is int and value > 0 else 0
