"""Offloaded: the file in a log's directory that says where copies of its files are."""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rt.log.files.disk import read_small
from rt.offload.private import create_private
from rt.position import START, Position

FILE_NAME: Final = "offloaded"
SUFFIX: Final = ".zst"  # suffix of a copy's name
NOTE_BYTES_MAX: Final = 1 << 20  # the facts next to a copy are two manifest lines and a hash
# each gap takes 38 bytes; a note in the cluster has 1,024 bytes, including the address
GAPS_MAX: Final = 16

Gaps = tuple[tuple[Position, Position], ...]


@dataclass(frozen=True, slots=True)
class Offloaded:
    """Where the copies of a log are, and which files have one.

    Attributes:
        url: Where the copies are.
        to: All files before this position have a copy, except those in the gaps.
        gaps: Pairs of positions; files from the first up to the second, exclusive, have no copy.
    """

    url: str
    to: Position
    gaps: Gaps = ()

    def address_of(self, start: Position) -> str:
        """Return the address of a file's copy; "" if there is none."""
        is_there = start < self.to and not any(begin <= start < end for begin, end in self.gaps)
        return f"{self.url}/{start.file_name}{SUFFIX}" if is_there else ""

    def fields(self) -> dict[str, Any]:
        """Return the note as a JSON object."""
        gaps = [[str(begin), str(end)] for begin, end in self.gaps]
        return {"url": self.url, "to": str(self.to)} | ({"gaps": gaps} if gaps else {})


def offloaded_of(fields: Any) -> Offloaded | None:
    """Parse the JSON object of a note; None if `fields` is not a valid note."""
    try:
        gaps = tuple(
            (Position.parse(str(begin)), Position.parse(str(end)))
            for begin, end in fields.get("gaps", ())
        )
        return Offloaded(str(fields["url"]), Position.parse(str(fields["to"])), gaps)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def gaps_of(files: Sequence[Position], missing: Collection[Position]) -> Gaps:
    """Return the ranges of files without a copy, as they are written in the note.

    A note has 16 ranges at most. If there are more, the oldest are merged, so that the copied files
    between them count as missing.

    Args:
        files: Start positions of the log's files, oldest first.
        missing: The files that have no copy.
    """
    gaps = [(START, files[0])] if files and files[0] > START else []  # the log began in the middle
    for file in sorted(missing):
        begin = gaps.pop()[0] if gaps and gaps[-1][1] == file else file
        gaps.append((begin, file.next_file()))
    while len(gaps) > GAPS_MAX:
        gaps[:2] = [(gaps[0][0], gaps[1][1])]
    return tuple(gaps)


def read_offloaded(directory: str) -> Offloaded | None:
    """Return the note in a log's directory; None if there is no readable one."""
    try:
        data = read_small(os.path.join(directory, FILE_NAME), NOTE_BYTES_MAX)
        return offloaded_of(json.loads(data))
    except (FileNotFoundError, ValueError, RecursionError):
        return None


def write_offloaded(directory: str, offloaded: Offloaded) -> None:
    """Replace the note in a log's directory."""
    path = os.path.join(directory, FILE_NAME)
    with create_private(path + ".tmp") as file:
        file.write(json.dumps(offloaded.fields()).encode())
    os.replace(path + ".tmp", path)
