"""FaultyDisk: the real file system with injected errors: any call can be made to fail."""

import errno
import os
from collections.abc import Callable

from rt.log.files.disk import OsDisk, OsFile


class FaultyFile(OsFile):
    """A file whose calls its disk counts, and may make fail."""

    __slots__ = ("_disk",)

    def __init__(self, fd: int, disk: "FaultyDisk") -> None:
        super().__init__(fd)
        self._disk = disk
        disk.open_files += 1

    def append(self, parts):
        data = b"".join(parts)
        try:
            self._disk.step("append")
        except OSError:
            super().append([data[: len(data) // 2]])  # as a real disk may leave it
            raise
        room = self._disk.room
        if room is not None and len(data) > room:
            super().append([data[:room]])
            self._disk.room = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if room is not None:
            self._disk.room = room - len(data)
        return super().append(parts)

    def pread(self, length, offset):
        self._disk.step("pread")
        return super().pread(length, offset)

    def size(self):
        self._disk.step("size")
        return super().size()

    def truncate(self, length):
        self._disk.step("truncate")
        if self._disk.room is not None:
            self._disk.room += super().size() - length
        super().truncate(length)

    def write_again(self, offset):
        self._disk.step("write_again")
        super().write_again(offset)

    def overwrite(self, data, offset):
        self._disk.step("overwrite")
        super().overwrite(data, offset)

    def sync(self):
        self._disk.step("sync")
        super().sync()

    def close(self):
        self._disk.open_files -= 1
        super().close()


class FaultyDisk(OsDisk):
    """The operating system's files; `step` may raise before any call, `room` is the space left."""

    def __init__(self, step: Callable[[str], None] = lambda _call: None) -> None:
        self.step = step
        self.room: int | None = None
        self.open_files = 0

    def open(self, path, *, create=False):
        self.step("open")
        return self._ours(super().open(path, create=create))

    def open_read(self, path):
        self.step("open_read")
        return self._ours(super().open_read(path))

    def names(self, path):
        self.step("names")
        return super().names(path)

    def make_directory(self, path):
        self.step("make_directory")
        super().make_directory(path)

    def replace(self, source, target):
        self.step("replace")
        super().replace(source, target)

    def _ours(self, file: OsFile) -> FaultyFile:
        fd = os.dup(file.fileno())
        file.close()
        return FaultyFile(fd, self)


def fail_call(nth: int, number: int) -> Callable[[str], None]:
    """Return a `step` that fails the call `nth` (from 0) with the errno `number`; others pass."""
    calls = iter(range(1 << 62))

    def step(_call: str) -> None:
        if next(calls) == nth:
            raise OSError(number, os.strerror(number))

    return step
