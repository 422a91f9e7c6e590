"""Indexing: rebuilds the index of a log file from its frames, and checks existing ones."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from enum import StrEnum
from typing import Final

from rt.errors import FrameError
from rt.format.index import ENTRY_BYTES, SUFFIX, IndexEntry, Indexer, encode_index
from rt.format.scan import next_header
from rt.format.walk import Walk
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import Disk
from rt.position import Position

_BATCH: Final = 4096  # entries read or written at once: 96 KiB


class IndexState(StrEnum):
    """How an index compares with the frames of its file."""

    GOOD = "good"
    SHORT = "short"  # correct but incomplete; an active file's last entries are written late
    LONG = "long"  # points to frames that do not exist, for example because a crash lost them
    MISSING = "missing"
    WRONG = "wrong"


class IndexCheck:
    """Compares an index file with the entries it should have, one at a time, to save memory."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self._size = size
        self._at = 0
        self._data = b""
        self._begin = 0
        self._state = IndexState.GOOD

    def compare(self, entry: IndexEntry) -> None:
        """Compare the next entry that the index should contain."""
        if self._state is not IndexState.GOOD:
            return
        if self._at + ENTRY_BYTES > self._size:
            self._state = IndexState.SHORT
            return
        start = self._at - self._begin
        if start >= len(self._data):
            self._data = self._read(_BATCH * ENTRY_BYTES, self._at)
            self._begin, start = self._at, 0
        if self._data[start : start + ENTRY_BYTES] != encode_index([entry]):
            self._state = IndexState.WRONG
        self._at += ENTRY_BYTES

    def verdict(self) -> IndexState:
        """Return the state of the index, once all entries were compared."""
        if not self._size:
            return IndexState.MISSING if self._state is IndexState.SHORT else self._state
        if self._state is IndexState.GOOD and self._at != self._size:
            return IndexState.LONG
        return self._state


def entries(log: LogDirectory, start: Position) -> Iterator[IndexEntry]:
    """Yield the entries that a file's index should contain, up to the end of its whole frames.

    Raises:
        FrameError: The file contains bytes that are not a frame of this log.
    """
    with closing(log.open_file(start)) as file:
        size, rolled = file.size(), log.manifest.rolled_end(start)
        end = size if rolled is None else min(size, rolled)
        walk = Walk(start, merged=log.merged, session=log.session)
        indexer = Indexer(merged=log.merged)
        while True:
            offset = walk.position.offset
            header = next_header(file.pread, walk, end)
            if header is None:
                return
            if entry := indexer.add(header, offset):
                yield entry


def check_index(log: LogDirectory, start: Position) -> IndexState:
    """Return the state of a file's index; `FrameError` if the file itself is damaged."""
    _, index_file = log.open_index(start)
    if index_file is None:
        return IndexState.MISSING
    with closing(index_file):
        check = IndexCheck(index_file.pread, index_file.size())
        for entry in entries(log, start):
            check.compare(entry)
        return check.verdict()


def rebuild_index(disk: Disk, log: LogDirectory, start: Position) -> int:
    """Rebuild the index of a file; return its number of entries.

    The old index stays until the new one is complete and synced. A damaged file is indexed up to
    the damage. An active file is synced first, because readers take everything before an index
    entry to be durable.
    """
    if start not in log.manifest.rolled:
        with closing(disk.open(log.file_path(start))) as active:
            active.write_again(0)
            active.sync()
    target = log.file_path(start) + SUFFIX
    fresh = target + ".tmp"
    count = 0
    with closing(disk.open(fresh, create=True)) as file:
        try:
            file.truncate(0)  # a killed rebuild may have left something
            for batch in _batches(entries(log, start)):
                file.append([encode_index(batch)])
                count += len(batch)
            file.sync()
        except OSError:
            os.unlink(fresh)
            raise
    disk.replace(fresh, target)
    return count


def _batches(found: Iterator[IndexEntry]) -> Iterator[list[IndexEntry]]:
    batch: list[IndexEntry] = []
    try:
        for entry in found:
            batch.append(entry)
            if len(batch) == _BATCH:
                yield batch
                batch = []
    except FrameError:
        pass  # `rt verify` reports the damage; index the frames before it
    yield batch
