"""Compare: checks that two copies of a log are byte-identical, as far as both reach."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rt.errors import Misuse
from rt.limits import MIB
from rt.log.files.directory import LogDirectory
from rt.position import START, Position

_READ_BYTES: Final = MIB


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two copies.

    Attributes:
        first: One copy's directory.
        second: The other's directory.
        differs_at: The first byte that differs; None if all are equal.
        compared: Number of bytes that were equal.
        end: Where the shorter copy ends, or where the copies differ.
        not_compared: Files that at least one copy has archived.
        reason: How the copies differ; "" if they are equal.
        made_apart: Whether these are two different logs with the same name, not copies of one log.
    """

    first: str
    second: str
    differs_at: Position | None
    compared: int
    end: Position
    not_compared: tuple[str, ...]
    reason: str = ""
    made_apart: bool = False


def are_copies(first: LogDirectory, second: LogDirectory) -> bool:
    """Whether two logs should be equal, because they have the same name in the same stream."""
    one, other = first.manifest.identity, second.manifest.identity
    if one is None or other is None:
        raise Misuse(f"{first.path} or {second.path}: not a log")
    return (one.kind, one.stream, one.name) == (other.kind, other.stream, other.name)


def compare_logs(
    first: LogDirectory, second: LogDirectory, on_read: Callable[[int], None]
) -> Comparison:
    """Compare two copies up to the end of the shorter one.

    Args:
        first: A log.
        second: Another log; it may be shorter or longer, and have archived more or fewer files.
        on_read: Called with the size of each read.
    """
    one, other = first.manifest.identity, second.manifest.identity
    if one is not None and other is not None and one.id != other.id:
        reason = f"two logs of one name, made apart: ids {one.id} and {other.id}"
        return Comparison(first.path, second.path, START, 0, START, (), reason, made_apart=True)
    return _Comparer(first, second, on_read).run()


class _Comparer:
    def __init__(
        self, first: LogDirectory, second: LogDirectory, on_read: Callable[[int], None]
    ) -> None:
        self._logs = (first, second)
        self._on_read = on_read
        self._compared = 0
        self._end = START
        self._left_out: list[str] = []

    def run(self) -> Comparison:
        first, second = self._logs
        for start in sorted({*first.manifest.rolled, *first.files()} | set(second.files())):
            if any(start in log.manifest.archived for log in self._logs):
                self._left_out.append(start.file_name)
                continue
            found = self._both(start)
            if self._was_archived(start):
                self._left_out.append(start.file_name)
            elif found is not None:
                return found
        return self._result()

    def _both(self, start: Position) -> Comparison | None:
        """Compare one file; return the result, or None to continue with the next file."""
        ends = [self._length(log, start) for log in self._logs]
        if None in ends:
            return self._result(start, "only one of them has this file")
        found = self._file(start, min(end for end in ends if end is not None))
        if found is None and ends[0] != ends[1]:
            return self._shorter(start, ends)
        return found

    def _was_archived(self, start: Position) -> bool:
        """Whether either copy has archived the file since its manifest was read."""
        for log in self._logs:
            log.refresh()
        return any(start in log.manifest.archived for log in self._logs)

    def _length(self, log: LogDirectory, start: Position) -> int | None:
        """Return how many bytes of a file to compare; 0 if not copied yet, None if missing."""
        try:
            file = log.open_file(start)
        except FileNotFoundError:
            return 0 if not log.manifest.order or start > log.manifest.order[-1] else None
        try:
            rolled = log.manifest.rolled_end(start)
            return file.size() if rolled is None else min(rolled, file.size())
        finally:
            file.close()

    def _shorter(self, start: Position, ends: list[int | None]) -> Comparison:
        """Return the result for files of different length: equal, unless the shorter was rolled."""
        for log, end, other in zip(self._logs, ends, reversed(ends), strict=True):
            if start in log.manifest.rolled and (other or 0) > (end or 0):
                at = Position(start + (end or 0))
                return self._result(at, f"the file ends there in {log.path}, not in the other")
        return self._result()

    def _file(self, start: Position, end: int) -> Comparison | None:
        files = [log.open_file(start) for log in self._logs] if end else []
        try:
            for offset in range(0, end, _READ_BYTES):
                length = min(_READ_BYTES, end - offset)
                one, other = (file.pread(length, offset) for file in files)
                self._on_read(2 * length)
                if one != other:
                    place = _first_difference(one, other)
                    return self._result(Position(start + offset + place), "the bytes differ")
                self._compared += length
        finally:
            for file in files:
                file.close()
        self._end = Position(start + end)
        return None

    def _result(self, at: Position | None = None, reason: str = "") -> Comparison:
        first, second = self._logs
        end = self._end if at is None else at
        return Comparison(
            first.path, second.path, at, self._compared, end, tuple(self._left_out), reason
        )


def _first_difference(one: bytes, other: bytes) -> int:
    """Return the first offset at which two reads differ; bisection is fast on slices."""
    low, high = 0, max(len(one), len(other))
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] != other[low:middle]:
            high = middle
        else:
            low = middle
    return low
