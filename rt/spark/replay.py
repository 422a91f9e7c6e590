"""Replay: compares rows that are about to be published again with what a session already holds."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import pyarrow as pa

from rt.errors import Misuse
from rt.log.disk import make_private_directory
from rt.spark.options import ReadOptions
from rt.spark.plan import LogView, between
from rt.spark.schema import Wanted
from rt.spark.splits import splits
from rt.spark.steps import place_of_number
from rt.spark.task import Task

_LOCK_NAME: Final = "spark.lock"
_POLL_S: Final = 0.05
_SCHEMA: Final = pa.schema([("seq", pa.int64()), ("key", pa.binary()), ("payload", pa.binary())])


@contextmanager
def exclusive(directory: str, timeout_s: float) -> Iterator[None]:
    """Wait for an earlier attempt of the same task that has not died yet, or a speculative one.

    Raises:
        Misuse: it is still running when the time has run out.
    """
    make_private_directory(directory)
    fd = os.open(os.path.join(directory, _LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + timeout_s
    try:
        while not _locked(fd):
            if time.monotonic() >= deadline:
                raise Misuse(f"{directory} is still written by another attempt of this task")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Published:
    """The messages of a session from a number on, read as rows come that should equal them."""

    def __init__(self, directory: str, first: int) -> None:
        self._directory = directory
        options = ReadOptions((directory,), fail_on_data_loss=False)
        view = LogView(directory)
        try:
            view.refresh()
            start = place_of_number(view, first)
            snapshot = between(view, start, view.end())
        finally:
            view.close()
        task = Task((snapshot.place,), options, Wanted(_SCHEMA, ()))
        self._batches = (
            batch for parts in splits((snapshot,), options) for batch in task.read(parts)
        )
        self._held: Any = None

    def compare(self, first: int, rows: Any) -> None:
        """Compare rows, numbered from `first` on, with the messages of those numbers.

        What the archiver has taken cannot be compared, and is taken to be right: only what was
        merged is archived.

        Raises:
            Misuse: they are not the same.
        """
        end = first + rows.num_rows
        while (held := self._upcoming()) is not None:
            number = held.column("seq")[0].as_py()
            if number >= end:
                return
            count = min(held.num_rows, end - number)
            if number >= first:
                self._check(rows.slice(number - first, count), held.slice(0, count), number)
            self._held = held.slice(count)

    def differs(self, number: int) -> NoReturn:
        """Refuse rows that are not what was published under their numbers.

        Raises:
            Misuse: always.
        """
        raise Misuse(
            f"{self._directory} holds another message under number {number} than the one that "
            "comes now: this replay differs from the attempt before. Rows must come in the same "
            "order each time (sort them within partitions), and the number of partitions must stay"
        )

    def close(self) -> None:
        """Release the files."""
        self._batches.close()

    def _upcoming(self) -> Any:
        while self._held is None or not self._held.num_rows:
            self._held = next(self._batches, None)
            if self._held is None:
                return None
        return self._held

    def _check(self, rows: Any, held: Any, number: int) -> None:
        payloads = rows.column("payload").cast(pa.binary())
        same = payloads.equals(held.column("payload"))
        if same and "key" in rows.schema.names:
            keys = rows.column("key").cast(pa.binary()).fill_null(b"")
            same = keys.equals(held.column("key").fill_null(b""))
        if not same:
            self.differs(number)
