"""Ahead: a few bytes of a file, of which more were read than asked for, since more will be."""

from typing import Final

from rt.limits import KIB
from rt.log.disk import File

# Headers of small frames come many to a read; behind a large one the next read begins.
HEADERS_BYTES: Final = 4 * KIB


class Ahead:
    """Keeps what it read last of one file."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._data = memoryview(b"")
        self._base = 0

    def read(self, length: int, offset: int, ahead: int = HEADERS_BYTES) -> memoryview:
        """Read up to `length` bytes at `offset`; where they are not there yet, `ahead` of them."""
        at = offset - self._base
        if at < 0 or at + length > len(self._data):
            self._data, at = memoryview(self._file.pread(max(length, ahead), offset)), 0
            self._base = offset
        return self._data[at : at + length]
