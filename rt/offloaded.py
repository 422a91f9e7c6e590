"""Offloaded: where the copies of a log's files are, as told beside the log."""

import json
import os
from dataclasses import dataclass
from typing import Any, Final

from rt.position import Position

FILE_NAME: Final = "offloaded"
SUFFIX: Final = ".zst"  # of a copy
NOTE_BYTES_MAX: Final = 1 << 20  # of what is kept beside a copy: two manifest lines and a hash


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What is known of a log's copies: where they are, and that all files before `to` are."""

    url: str
    to: Position

    def address_of(self, start: Position) -> str:
        """Return where the copy of a file is; "" if there is none."""
        return f"{self.url}/{start.file_name}{SUFFIX}" if start < self.to else ""


def offloaded_of(fields: Any) -> Offloaded | None:
    """Return what the JSON object of a note or file says; None if it says nothing."""
    try:
        return Offloaded(str(fields["url"]), Position.parse(str(fields["to"])))
    except (ValueError, KeyError, TypeError):
        return None


def read_offloaded(directory: str) -> Offloaded | None:
    """Return what the file in a log's directory says."""
    try:
        with open(os.path.join(directory, FILE_NAME), encoding="utf-8") as file:
            return offloaded_of(json.loads(file.read(NOTE_BYTES_MAX)))
    except (FileNotFoundError, ValueError):
        return None


def write_offloaded(directory: str, offloaded: Offloaded) -> None:
    """Replace the file in a log's directory that tells where its copies are."""
    path = os.path.join(directory, FILE_NAME)
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump({"url": offloaded.url, "to": str(offloaded.to)}, file)
    os.replace(path + ".tmp", path)
