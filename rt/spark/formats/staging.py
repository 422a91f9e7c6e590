"""Staging: files that let the sink publish the rows of a batch as a whole, or not at all.

Each task leaves its rows in a file, and publishes nothing. When all tasks are done, the driver
durably records the names of the files, then publishes them. If the driver is killed before it has
written the record, nothing is published. If it is killed later, the next attempt publishes the
rest of the recorded files, even if the batch is then computed with other rows or partitions.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rt.log.files.disk import make_private_directory, sync_directory
from rt.log.files.lock import take_lock
from rt.offload.private import create_private, replace_private

DIRECTORY: Final = ".spark"  # below the root; no stream's name begins with a dot
_RECORD: Final = "record"


@dataclass(frozen=True, slots=True)
class Staged:
    """The file that one task wrote; `name` is "" if the task had no rows."""

    partition: int
    name: str = ""
    rows: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Record:
    """The last batch that is to be published: its files, and whether all are published."""

    owner: str  # the query; "" for jobs that number their batches themselves
    batch: int
    done: bool
    parts: list[Staged] = field(default_factory=list)

    @property
    def size(self) -> tuple[int, int]:
        """Return how many rows the batch has, and the bytes of their payloads."""
        return sum(part.rows for part in self.parts), sum(part.bytes for part in self.parts)


class StagingArea:
    """The directory with the files of one query, or of the jobs that share a session."""

    def __init__(self, root: str, stream: str, prefix: str) -> None:
        self._path = os.path.join(root, DIRECTORY, stream or "_", prefix)

    def stage(self, batch: int, partition: int, rows: Iterator[Any]) -> Staged:
        """Write the rows of one task to a new file, and sync it; no file if there are no rows."""
        rows = (each for each in rows if each.num_rows)
        first = next(rows, None)
        if first is None:
            return Staged(partition)
        name, count, size = f"{batch}-{partition}-{uuid.uuid4().hex}", 0, 0
        make_private_directory(self._path)
        with create_private(self._file(name)) as file:
            with pa.ipc.new_file(file, first.schema) as writer:
                for each in chain((first,), rows):
                    writer.write_batch(each)
                    count += each.num_rows
                    size += pc.sum(pc.binary_length(each.column("payload"))).as_py()
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._path)
        return Staged(partition, name, count, size)

    def rows(self, part: Staged) -> Iterator[Any]:
        """Yield the rows of a task's file, as record batches."""
        with closing(pa.memory_map(self._file(part.name))) as source:
            reader = pa.ipc.open_file(source)
            for place in range(reader.num_record_batches):
                yield reader.get_batch(place)

    @contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """Hold the lock for publishing; `Misuse` if another driver keeps it for `timeout_s`."""
        make_private_directory(self._path)
        words = f"another driver still publishes from {self._path}; end it first"
        fd = take_lock(self._path, words, wait_s=timeout_s)
        try:
            yield
        finally:
            os.close(fd)

    def record(self) -> Record | None:
        """Read the last record; None before the first."""
        try:
            with open(self._file(_RECORD), "rb") as file:
                fields = json.load(file)
        except FileNotFoundError:
            return None
        parts = [Staged(**each) for each in fields.pop("parts")]
        return Record(**fields, parts=parts)

    def save(self, record: Record) -> None:
        """Replace the record, durably."""
        replace_private(self._file(_RECORD), json.dumps(asdict(record)).encode())

    def discard(self, batch: int, kept: Record | None) -> None:
        """Remove the files of batches up to `batch`, except those that `kept` has to publish."""
        needed = {part.name for part in kept.parts} if kept and not kept.done else set()
        for name in os.listdir(self._path):
            number = name.partition("-")[0]
            if number.isdecimal() and int(number) <= batch and name not in needed:
                with suppress(FileNotFoundError):
                    os.unlink(self._file(name))

    def remove(self) -> None:
        """Remove the whole area of a job that will not be repeated."""
        shutil.rmtree(self._path, ignore_errors=True)

    def _file(self, name: str) -> str:
        return os.path.join(self._path, name)
