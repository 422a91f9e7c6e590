"""Index: a sparse, rebuildable list of places in one log file, searched where it lies."""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

_ENTRY: Final = struct.Struct("<QqQ")
ENTRY_BYTES: Final = _ENTRY.size
SUFFIX: Final = ".idx"


class IndexEntry(NamedTuple):
    """A frame of the file: one per range of a merged log, one per 256 KiB of a session."""

    offset: int
    time_ns: int
    number: int  # first sequence number, or number of the first message in the merged stream


def encode_index(entries: list[IndexEntry]) -> bytes:
    """Lay out entries as they stand in an index file."""
    return b"".join(_ENTRY.pack(*entry) for entry in entries)


class Index:
    """An index file as it is on disk, entry by entry; nothing of it is kept in memory.

    An index is never believed: whoever follows an entry checks the frame it finds there. So a
    missing, short, stale or damaged index costs time and nothing else.
    """

    __slots__ = ("_read", "entries")

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self.entries = size // ENTRY_BYTES  # what a torn append left behind them is not looked at

    def __getitem__(self, place: int) -> IndexEntry:
        data = self._read(ENTRY_BYTES, place * ENTRY_BYTES)
        return IndexEntry._make(_ENTRY.unpack(data)) if len(data) == ENTRY_BYTES else _NOWHERE

    def count(self, is_past: Callable[[IndexEntry], bool]) -> int:
        """Return how many entries come before the first that is past what is sought.

        Args:
            is_past: monotone over the entries, for example `lambda entry: entry.offset > wanted`.
        """
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if is_past(self[middle]):
                high = middle
            else:
                low = middle + 1
        return low


_NOWHERE: Final = IndexEntry(0, 0, 0)  # the index was cut under us: begin at the start of the file
