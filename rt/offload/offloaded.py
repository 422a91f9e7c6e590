"""Offloaded: where the copies of a log's files are, as told beside the log."""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rt.position import START, Position

FILE_NAME: Final = "offloaded"
SUFFIX: Final = ".zst"  # of a copy
NOTE_BYTES_MAX: Final = 1 << 20  # of what is kept beside a copy: two manifest lines and a hash
GAPS_MAX: Final = 16  # of 38 bytes; a note of the cluster has 1,024, for the address too

Gaps = tuple[tuple[Position, Position], ...]


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What is known of a log's copies: where they are, and of which files.

    Attributes:
        url: where they are.
        to: all files before it have a copy, but for those in the gaps.
        gaps: where files begin that have none: from the first to before the second.
    """

    url: str
    to: Position
    gaps: Gaps = ()

    def address_of(self, start: Position) -> str:
        """Return where the copy of a file is; "" if there is none."""
        is_there = start < self.to and not any(begin <= start < end for begin, end in self.gaps)
        return f"{self.url}/{start.file_name}{SUFFIX}" if is_there else ""

    def fields(self) -> dict[str, Any]:
        """Return it as a JSON object says it."""
        gaps = [[str(begin), str(end)] for begin, end in self.gaps]
        return {"url": self.url, "to": str(self.to)} | ({"gaps": gaps} if gaps else {})


def offloaded_of(fields: Any) -> Offloaded | None:
    """Return what the JSON object of a note or file says; None if it says nothing."""
    try:
        gaps = tuple(
            (Position.parse(str(begin)), Position.parse(str(end)))
            for begin, end in fields.get("gaps", ())
        )
        return Offloaded(str(fields["url"]), Position.parse(str(fields["to"])), gaps)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def gaps_of(files: Sequence[Position], missing: Collection[Position]) -> Gaps:
    """Return where there are no copies; of more gaps than a note has room for the oldest are one.

    Args:
        files: where the files of the log begin, oldest first.
        missing: those of them that have no copy.
    """
    gaps = [(START, files[0])] if files and files[0] > START else []  # a copy begun in the middle
    for file in sorted(missing):
        begin = gaps.pop()[0] if gaps and gaps[-1][1] == file else file
        gaps.append((begin, file.next_file()))
    while len(gaps) > GAPS_MAX:
        gaps[:2] = [(gaps[0][0], gaps[1][1])]
    return tuple(gaps)


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
        json.dump(offloaded.fields(), file)
    os.replace(path + ".tmp", path)
