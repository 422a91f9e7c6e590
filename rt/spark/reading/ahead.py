"""Ahead: reads more of a file than requested, because the next bytes will be needed soon."""

from typing import Final

from rt.limits import KIB
from rt.log.files.disk import File

# One read brings the headers of many small frames; after a large frame, another read is needed.
HEADERS_BYTES: Final = 4 * KIB


class Ahead:
    """Keeps the last bytes it read of one file."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._data = memoryview(b"")
        self._base = 0

    def read(self, length: int, offset: int, ahead: int = HEADERS_BYTES) -> memoryview:
        """Read up to `length` bytes at `offset`; if they are not held yet, read `ahead` of them."""
        at = offset - self._base
        if at < 0 or at + length > len(self._data):
            self._data, at = memoryview(self._file.pread(max(length, ahead), offset)), 0
            self._base = offset
        return self._data[at : at + length]
