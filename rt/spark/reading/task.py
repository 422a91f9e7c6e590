"""Task: the work of one Spark task: reads its parts of the log and yields record batches."""

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from rt.errors import CorruptLog, FrameError, GapError, Misuse
from rt.limits import MIB
from rt.log.files.directory import LogDirectory
from rt.log.read.gaps import gaps_between
from rt.position import Position
from rt.spark.reading.arrays import PieceGroup
from rt.spark.reading.bodies import Block
from rt.spark.reading.log_paths import LogPlace
from rt.spark.reading.options import AUTO, FAILFAST, PERMISSIVE, ReadOptions
from rt.spark.reading.pieces import Damage, Part, PartReader, Piece
from rt.spark.reading.plan import LogSnapshot
from rt.spark.reading.poison import corrupt_log
from rt.spark.reading.schema import CORRUPT
from rt.spark.reading.splits import splits
from rt.spark.reading.storage import open_directory

# Bytes decoded at once. Between two batches the JVM uses the processor and its caches, after which
# the same Python takes three times as long; 4 MiB gains half as much as this size.
GROUP_BYTES: Final = 8 * MIB
# Bytes passed to Spark at once. From 4 MiB on it slows down; below 1 MiB the calls dominate.
BATCH_BYTES: Final = 2 * MIB
# glibc keeps freed memory only if a block of that size was freed before; otherwise it returns the
# memory to the system, and each batch would fetch it again, page by page: 14,000 faults in a GB, a
# tenth of the time. This block is allocated and freed untouched (mallopt(3), M_MMAP_THRESHOLD).
_HEAP_BYTES: Final = 31 * MIB
_FROM_HEADERS: Final = frozenset((
    "position", "seq", "number", "session", "merge_time", "stream", "file", CORRUPT,
))  # fmt: skip
_FROM_COLUMNS: Final = _FROM_HEADERS | {"time", "time_ns", "payload_size"}


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker needs besides the parts that it reads; it is pickled and sent to the worker."""

    logs: tuple[LogPlace, ...]  # the logs that parts name by their index
    options: ReadOptions  # how to read them
    schema: Any  # the Arrow schema to return; names may be in any case

    def read(self, parts: tuple[Part, ...]) -> Iterator[Any]:
        """Read the parts in order, as record batches.

        Raises:
            CorruptLog: a frame is damaged, and the mode is FAILFAST; a `PoisonError` if the frame
                is as its publisher wrote it, but cannot be decoded.
            GapError: a file was archived since the load, and failOnDataLoss is set.
            Misuse: another log is in the directory now.
        """
        if parts:
            _settle_in()
        return self.batches(parts)

    def batches(self, parts: tuple[Part, ...]) -> Iterator[Any]:
        """Read the parts as `read` does, but also outside of a worker."""
        _keep_freed_memory()
        for number, of_log in groupby(parts, lambda part: part.log):
            yield from self._read_log(self.logs[number], tuple(of_log))

    def _read_log(self, place: LogPlace, parts: tuple[Part, ...]) -> Iterator[Any]:
        with closing(open_directory(place.path, place.copies)) as log:
            log.refresh()
            identity = log.manifest.identity
            if identity is None or identity.id != place.log_id:
                raise Misuse(f"{place.path} is not the log that was loaded; load it again")
            if not log.merged and not self.options.selection.has_session(log.session):
                return
            block = None
            if self._needs_bodies:
                keeps = "payload" in self._names
                block = Block(GROUP_BYTES if keeps else 0, keeps=keeps)
            yield from self._batches(self._finds(log, place, parts, block), block)

    def _finds(
        self, log: LogDirectory, place: LogPlace, parts: tuple[Part, ...], block: Block | None
    ) -> Iterator[Piece | Damage]:
        for part in parts:
            is_copied = _is_copied(log, part)
            try:
                file = log.open_file(part.file)
            except FileNotFoundError:
                log.refresh()
                if not is_copied and _is_copied(log, part):
                    yield from self._finds(log, place, (part,), block)
                    continue
                self._check_loss(log, part, Position(part.file + part.begin), "the file is gone")
                continue
            wants = self.options.selection.has_session
            with closing(file):
                for found in PartReader(
                    file, part, log.merged, log.session, wants, block,
                    columns_suffice=self._columns_suffice,
                ):  # fmt: skip
                    if isinstance(found, Piece):
                        found.log = place
                    elif not is_copied and log.refresh() and _is_copied(log, part):
                        # archived meanwhile: the rest is in its copy
                        rest = replace(part, start=max(part.start, found.position))
                        yield from self._finds(log, place, (rest,), block)
                        break
                    elif self._was_lost(log, part, found):
                        break
                    yield found

    @property
    def _needs_bodies(self) -> bool:
        """Whether bodies must be read, for the columns or to find damage in them."""
        if not self._are_enough(_FROM_HEADERS) or self.options.check_bodies == "true":
            return True
        return self.options.check_bodies == AUTO and self.options.mode != FAILFAST

    @property
    def _columns_suffice(self) -> bool:
        """Whether a frame's times and offsets suffice, and its payloads need not be checked."""
        return self.options.check_bodies == "false" and self._are_enough(_FROM_COLUMNS)

    def _are_enough(self, columns: frozenset[str]) -> bool:
        return columns.issuperset(self._names) and self.options.selection.keys is None

    @property
    def _names(self) -> list[str]:
        return [name.lower() for name in self.schema.names]

    def _was_lost(self, log: LogDirectory, part: Part, found: Damage) -> bool:
        """Return whether apparent damage is due to the archiving of the file while it was read.

        If it is, raise `GapError` with failOnDataLoss; if not, raise `CorruptLog` in mode FAILFAST.
        """
        log.refresh()
        if log.is_gone(part.file):
            self._check_loss(log, part, found.position, found.reason)
            return True
        if self.options.mode == FAILFAST:
            place = self.logs[part.log]
            raise corrupt_log(place.path, found, place.copies)
        return False

    def _check_loss(self, log: LogDirectory, part: Part, at: Position, reason: str) -> None:
        log.refresh()
        if not self.options.fail_on_data_loss:
            return
        end = Position(part.file + part.end)
        for gap in gaps_between(log, max(at, part.start), end):
            raise GapError(gap)
        raise CorruptLog(log.file_path(part.file), at, reason)

    def _batches(self, finds: Iterator[Piece | Damage], block: Block | None) -> Iterator[Any]:
        pieces: list[Piece] = []
        size = 0
        for found in finds:
            if isinstance(found, Piece):
                pieces.append(found)
                size += found.size
                if size < GROUP_BYTES:
                    continue
            if pieces:
                yield from self._built(pieces)
                pieces, size = [], 0
                if block:
                    block.renew()
            if isinstance(found, Damage):
                yield from self._told(found)
        if pieces:
            yield from self._built(pieces)

    def _built(self, pieces: list[Piece]) -> Iterator[Any]:
        try:
            batch = self._build(PieceGroup(pieces))
        except FrameError as error:
            if len(pieces) > 1:
                for piece in pieces:
                    yield from self._built([piece])
                return
            header, at, session = pieces[0].header, pieces[0].position, pieces[0].session
            damage = Damage(at, Position(at + header.size), session, str(error))
            if self.options.mode == FAILFAST:
                directory = pieces[0].log.path if pieces[0].log else self.options.paths[0]
                raise corrupt_log(directory, damage, self.options.copies) from None
            yield from self._told(damage)
            return
        yield from _cut(batch, pieces)

    def _told(self, damage: Damage) -> Iterator[Any]:
        """Yield a record batch with a row that describes damage, if the mode is PERMISSIVE."""
        if self.options.mode != PERMISSIVE:
            return
        words = f"corrupt from {damage.position} to {damage.end}: {damage.reason}"
        row = {"position": int(damage.position), "session": damage.session, CORRUPT: words}
        arrays = [pa.array([row.get(each.name.lower())], each.type) for each in self.schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _build(self, group: PieceGroup) -> Any:
        keys = self.options.selection.keys
        kept = None if keys is None else group.mask(keys)
        arrays = [getattr(group, name.lstrip("_")) for name in self._names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return batch if kept is None else batch.filter(kept)


def read_here(snapshots: Sequence[LogSnapshot], options: ReadOptions, schema: Any) -> Iterator[Any]:
    """Read a load in this process, in order, as record batches; errors as for `Task.read`."""
    task = Task(tuple(each.place for each in snapshots), options, schema)
    for parts in splits(snapshots, options):
        yield from task.batches(parts)


def _is_copied(log: LogDirectory, part: Part) -> bool:
    return part.file in log.manifest.archived and not log.is_gone(part.file)


@cache
def _settle_in() -> None:
    """Exempt all objects made so far in a worker's process from garbage collection, once.

    Spark collects garbage after each task, while the next task waits. Traversing the imported
    modules, which never become garbage, took 18 ms each time.
    """
    gc.freeze()


@cache
def _keep_freed_memory() -> None:
    """Have the allocator keep freed memory, so that the next batch need not fetch it again."""
    bytes(_HEAP_BYTES)


def _cut(batch: Any, pieces: list[Piece]) -> Iterator[Any]:
    """Split a decoded batch into batches of about `BATCH_BYTES`."""
    rows, messages = batch.num_rows, sum(map(len, pieces))
    size = sum(piece.size for piece in pieces) * rows // messages
    step = math.ceil(rows / max(1, size // BATCH_BYTES))
    for first in range(0, rows, max(1, step)):
        yield batch.slice(first, step)
