"""ContinuedLog: records in a copy which log it held before, and which log continues that one.

When a log has ended, each copy is cut where another log continues, and then copies that log.
"""

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
    """ContinuedLog: where a copy's former log ended and its present log continues.

    Attributes:
        old: the id of the log that ended.
        new: the id of the log that continues it.
        cut: where the new log continues; both logs are equal before it.
        number: the number of the first message after the cut.
        next: the number after the last message that the old copy had.
        aside: the directory that keeps the old copy; "" if it had nothing after the cut.
    """

    old: str
    new: str
    cut: Position
    number: int
    next: int
    aside: str

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps({**asdict(self), "cut": str(self.cut)}).encode() + b"\n"


def read_continued(directory: str) -> ContinuedLog | None:
    """Return a copy's record; None if the copy was never cut, or has no record."""
    try:
        fields = json.loads(read_small(os.path.join(directory, CONTINUED_NAME), _BYTES_MAX))
        return ContinuedLog(
            str(fields["old"]), str(fields["new"]), Position.parse(str(fields["cut"])),
            int(fields["number"]), int(fields["next"]), str(fields["aside"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None
