"""ContinuedLog: what a copy that was cut says of the log that it was before."""

import json
import os
from dataclasses import asdict, dataclass
from typing import Final

from rt.log.files.disk import read_small
from rt.position import Position

CONTINUED_NAME: Final = "continued"  # a file in the copy
_BYTES_MAX: Final = 8 << 10


@dataclass(frozen=True, slots=True)
class ContinuedLog:
    """ContinuedLog: where a copy's log parted from the one that it is a copy of now.

    Attributes:
        old: the id of the log that ended.
        new: the id of the log that continues it.
        cut: where they part.
        number: the number of the next message there.
        next: the number after the last one that the copy had.
        aside: the directory that keeps the copy as it was; "" if it had nothing beyond.
    """

    old: str
    new: str
    cut: Position
    number: int
    next: int
    aside: str

    def encode(self) -> bytes:
        """Return it as JSON."""
        return json.dumps({**asdict(self), "cut": str(self.cut)}).encode() + b"\n"


def read_continued(directory: str) -> ContinuedLog | None:
    """Return what a copy says; None if it was never cut, or does not say so."""
    try:
        fields = json.loads(read_small(os.path.join(directory, CONTINUED_NAME), _BYTES_MAX))
        return ContinuedLog(
            str(fields["old"]), str(fields["new"]), Position.parse(str(fields["cut"])),
            int(fields["number"]), int(fields["next"]), str(fields["aside"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None
