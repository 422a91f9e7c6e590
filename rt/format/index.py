"""Index: a sparse, rebuildable list of frames in one log file, searched on disk."""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from rt.format.frame import FrameKind, Header
from rt.limits import INDEX_EVERY_BYTES

_ENTRY: Final = struct.Struct("<QqQ")
ENTRY_BYTES: Final = _ENTRY.size
SUFFIX: Final = ".idx"


class IndexEntry(NamedTuple):
    """An indexed frame: one per range in a merged log, one per 256 KiB in a session's log."""

    offset: int
    time_ns: int
    number: int  # the first message's number: a sequence number, or its number in the merged stream


def encode_index(entries: list[IndexEntry]) -> bytes:
    """Encode entries as the bytes of an index file."""
    return b"".join(_ENTRY.pack(*entry) for entry in entries)


class Indexer:
    """Decides, frame by frame, which frames of a file get an index entry."""

    __slots__ = ("_indexed_to", "merged")

    def __init__(self, *, merged: bool) -> None:
        self.merged = merged  # whether it indexes a file of a merged log
        self._indexed_to = 0

    def go_on(self, last: IndexEntry | None) -> None:
        """Resume after `last`, the index's last entry; None starts at the file's beginning."""
        self._indexed_to = 0 if last is None else last.offset + INDEX_EVERY_BYTES

    def add(self, header: Header, offset: int) -> IndexEntry | None:
        """Add the next frame; return its index entry, or None if it gets none.

        In a merged log, every range gets an entry. In a session's log, the first frame gets one,
        and then each frame that is at least 256 KiB after the last one indexed.
        """
        if self.merged:
            if header.kind != FrameKind.RANGE:
                return None
        elif offset < self._indexed_to:
            return None
        self._indexed_to = offset + INDEX_EVERY_BYTES
        return IndexEntry(offset, header.time_ns, header.sequence)


class Index:
    """An index file, read from disk entry by entry; nothing is kept in memory.

    An index is never trusted: callers check the frame that an entry points to. So a missing, short,
    stale or damaged index costs only time.
    """

    __slots__ = ("_read", "entries")

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self.entries = size // ENTRY_BYTES  # a torn append may have left part of another entry

    def __getitem__(self, place: int) -> IndexEntry:
        data = self._read(ENTRY_BYTES, place * ENTRY_BYTES)
        return IndexEntry._make(_ENTRY.unpack(data)) if len(data) == ENTRY_BYTES else _NOWHERE

    def count(self, is_past: Callable[[IndexEntry], bool]) -> int:
        """Return how many entries come before the first for which `is_past` is true.

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


# Read if the index was cut meanwhile: the search then starts at the beginning of the file.
_NOWHERE: Final = IndexEntry(0, 0, 0)
