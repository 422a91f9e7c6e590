"""Storage: gives `rt.log` access to the file system of any path or URI, as a `Disk`."""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from rt.errors import Misuse
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import Disk, File, OsDisk, OsFile
from rt.offload.copied_log import CopiedLog
from rt.offload.store import open_store

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://?")
# A request to an object store waits 60 ms; this much takes about as long to arrive.
_AHEAD_BYTES: Final = 8 << 20


class Ahead:
    """Reads more of a file than requested, because the next bytes will be needed soon."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        """Prepare to read a file with `read(length, offset)`."""
        self._read = read
        self._data = memoryview(b"")
        self._base = 0

    def read(self, length: int, offset: int, ahead: int) -> memoryview:
        """Return up to `length` bytes at `offset`; if the buffer lacks one, read `ahead` bytes."""
        at = offset - self._base
        if at < 0 or at + length > len(self._data):
            self._data, at = memoryview(self._read(max(length, ahead), offset)), 0
            self._base = offset
        return self._data[at : at + length]


def open_storage(path: str) -> tuple[Disk, str]:
    """Return the disk that a local path or URI is on, and the path on that disk.

    URIs may be of any file system that pyarrow or fsspec knows: `s3://bucket/log`, `hdfs://...`.

    Raises:
        Misuse: no installed package knows the scheme.
    """
    match = _SCHEME.match(path)
    if match is None:
        return OsDisk(), path
    if match[1] == "file":
        return OsDisk(), "/" + path.split(":", 1)[1].lstrip("/")
    system, inside = _file_system(path, match[1])
    return FsDisk(system), inside


def open_directory(path: str, copies: str = "") -> LogDirectory:
    """Return the log directory at a local path or URI; it is not read yet.

    Args:
        path: the path or URI of the directory.
        copies: the store in which archived files are read; "" for none.

    Raises:
        Misuse: no installed package knows a URI's scheme.
    """
    disk, inside = open_storage(path)
    return CopiedLog(inside, open_store(copies), disk) if copies else LogDirectory(inside, disk)


def read_into(file: File, parts: Sequence[bytearray | memoryview], offset: int) -> int:
    """Fill `parts` in order with a file's bytes from `offset` on; return how many were read."""
    if isinstance(file, OsFile):
        return os.preadv(file.fileno(), parts, offset)
    data = file.pread(sum(map(len, parts)), offset)
    begin = 0
    for part in parts:
        piece = data[begin : begin + len(part)]
        part[: len(piece)] = piece
        begin += len(piece)
    return len(data)


def _file_system(uri: str, scheme: str) -> tuple[Any, str]:
    from pyarrow import ArrowInvalid, fs  # noqa: PLC0415 - heavy, and needed by few

    try:
        system, inside = fs.FileSystem.from_uri(uri)
    except ArrowInvalid as error:
        if "Unrecognized filesystem" not in str(error):
            raise Misuse(f"{uri}: {error}") from None
    else:
        return system, inside
    try:
        from fsspec import url_to_fs  # noqa: PLC0415 - optional

        found, inside = url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise Misuse(
            f"{uri}: neither pyarrow nor fsspec knows {scheme}:// here ({error}); "
            "install fsspec and the package that serves this scheme"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(found)), inside


class FsFile:
    """A file of a `pyarrow.fs` file system, read with read-ahead; it cannot be written."""

    def __init__(self, system: Any, path: str) -> None:
        self._system = system
        self._path = path
        self._file = system.open_input_file(path)
        self._ahead = Ahead(self._read)

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`, from the read-ahead buffer if they are there."""
        return bytes(self._ahead.read(length, offset, _AHEAD_BYTES))

    def _read(self, length: int, offset: int) -> bytes:
        left = max(0, self._file.size() - offset)
        data: bytes = self._file.read_at(min(length, left), offset)
        return data

    def size(self) -> int:
        """Return the file's size now, not when it was opened."""
        return int(self._system.get_file_info(self._path).size or 0)

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _refused(self, *_: Any, **_named: Any) -> Any:
        raise Misuse(f"{self._path} is read through pyarrow.fs only: a log is written locally")

    append = copy = truncate = write_again = overwrite = sync = _refused


class FsDisk:
    """A `pyarrow.fs` file system as a `Disk` for `rt.log`; read-only."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def open_read(self, path: str) -> FsFile:
        """Open a file for reading; `FileNotFoundError` if `path` does not exist."""
        return FsFile(self._system, path)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; empty if it does not exist."""
        from pyarrow import fs  # noqa: PLC0415 - heavy, and needed by few

        selector = fs.FileSelector(path, allow_not_found=True)
        return [os.path.basename(each.path) for each in self._system.get_file_info(selector)]

    def open(self, path: str, *, create: bool = False) -> FsFile:
        """Open a file for reading; `Misuse` if `create` is set, since the disk is read-only."""
        return self._refused(path) if create else self.open_read(path)

    def _refused(self, path: str, *_target: str) -> Any:
        raise Misuse(f"{path}: a log is written on a local disk only; give a local path")

    make_directory = replace = remove = link = _refused
