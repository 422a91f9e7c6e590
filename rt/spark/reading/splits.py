"""Splits: cuts a load into tasks, always in the same way for the same messages."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from rt.errors import FrameError
from rt.format.index import Index, IndexEntry
from rt.format.scan import next_header
from rt.format.walk import Walk
from rt.log.files.disk import File
from rt.position import Position
from rt.spark.reading.options import ReadOptions
from rt.spark.reading.pieces import Part
from rt.spark.reading.plan import LogSnapshot, LogView, between, headers, open_log
from rt.spark.reading.steps import after_records


def splits(snapshots: Sequence[LogSnapshot], options: ReadOptions) -> list[tuple[Part, ...]]:
    """Cut snapshots into tasks, each with a part of a file or with several small files.

    A replayed micro-batch must give each task the same rows as before, so that the sink can tell
    which rows it has already published. So the cuts depend only on the log's bytes, and not on how
    much of its index is written.
    """
    total = sum(end for snapshot in snapshots for _, end in snapshot.files)
    wanted = options.splitting
    size = min(wanted.bytes, math.ceil(total / wanted.partitions) or 1)
    packed: list[tuple[Part, ...]] = []
    room = 0
    for log, snapshot in enumerate(snapshots):
        with open_log(snapshot.place.path, copies=snapshot.place.copies) as view:
            for window in _windows(view, snapshot, options):
                for part in _parts(view, window, size):
                    part = replace(part, log=log)
                    length = part.end - part.begin
                    if packed and length <= room:
                        packed[-1] += (part,)
                        room -= length
                    else:
                        packed.append((part,))
                        room = size - length
                if wanted.records is not None:
                    room = 0
    return packed


def _windows(view: LogView, snapshot: LogSnapshot, options: ReadOptions) -> Iterator[LogSnapshot]:
    """Cut a snapshot after every `maxRecordsPerPartition` messages, even within a frame."""
    records, begin = options.splitting.records, snapshot.start
    if records is None:
        yield snapshot
        return
    while begin < snapshot.stop:
        end = after_records(view, begin, records, snapshot.stop, options.selection)
        yield between(view, begin, end)
        begin = end


def _parts(view: LogView, snapshot: LogSnapshot, size: int) -> Iterator[Part]:
    for start, end in snapshot.files:
        if end <= 0:
            continue
        try:
            file = view.log.open_file(start)
        except FileNotFoundError:  # the task that reads the file reports it
            yield Part(start, 0, end, snapshot.start, snapshot.stop)
            continue
        with closing(file):
            cutter = _Cutter(view, file, start, view.index(start), file.size())
            for begin, part_end in cutter.cut(max(0, snapshot.start - start), end, size):
                yield Part(start, begin, part_end, snapshot.start, snapshot.stop)


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Cuts one file between ranges, or in a session between frames."""

    view: LogView
    file: File
    start: Position
    index: Index
    size: int

    def cut(self, offset: int, end: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield where each part of the bytes from `offset` up to `end` begins and ends."""
        begin, end = self._boundary(offset), self._whole_end(end)
        wanted = begin + size
        while wanted < end:
            place = self._boundary(wanted)
            if place > begin:
                yield begin, place
                begin = place
            wanted = max(wanted, begin) + size
        yield begin, end

    def _boundary(self, wanted: int) -> int:
        """Return the last offset up to `wanted` at which a range begins.

        In a session's log, return the last offset at which a frame begins.
        """
        walk = self._walk_to(lambda entry: entry.offset > wanted)
        found = walk.position.offset
        with suppress(FrameError):  # the task that reads it reports the damage
            while walk.position.offset <= wanted:
                found = walk.position.offset
                if next_header(self.file.pread, walk, self.size) is None:
                    break
                walk.skip_range()
        return found

    def _whole_end(self, end: int) -> int:
        """Return the end of the frame that `end` is in, since a task reads whole frames."""
        rolled = self.view.log.manifest.rolled_end(self.start)
        if end == rolled:
            return end
        walk = self._walk_to(lambda entry: entry.offset >= end)
        size = self.size if rolled is None else min(rolled, self.size)
        with suppress(FrameError):  # as above
            for _ in headers(self.file, walk, size):
                if walk.position.offset >= end:
                    return walk.position.offset
        return end

    def _walk_to(self, is_past: Callable[[IndexEntry], bool]) -> Walk:
        return self.view.walk_to(self.file, self.start, is_past, self.index)
