"""Store: a place for copies: a directory, or any URL that `fsspec` supports."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any, Final, Protocol

from rt.errors import Misuse
from rt.log.files.disk import make_private_directory, sync_directory
from rt.masking import without_secrets
from rt.offload.private import create_private

_PART: Final = ".part"  # suffix of an incomplete file


class Store(Protocol):
    """Files by name, each written once and as a whole."""

    @property
    def address(self) -> str:
        """The store's path or URL."""

    def names(self) -> list[str]:
        """Return the names of the complete files."""

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""

    def read(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file for reading."""

    def write(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Create a file; it appears only when the context ends without an error."""


def open_store(address: str) -> Store:
    """Return the store at a path or URL.

    Raises:
        Misuse: The address is empty, or a URL that no installed package can reach.
    """
    if not address:
        raise Misuse("the place of the copies is empty; name a directory or a URL")
    if "://" not in address:
        return DirectoryStore(address)
    try:
        import fsspec  # noqa: PLC0415 - an optional dependency
    except ImportError:
        shown = without_secrets(address)
        raise Misuse(f"{shown} needs fsspec; install it, or name a directory") from None
    try:
        system, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:  # the package for that system is not installed
        words = without_secrets(f"{address} cannot be reached: {error}")
        raise Misuse(f"{words}; or name a directory") from None
    names = system.protocol if isinstance(system.protocol, tuple) else (system.protocol,)
    # files that we write to a directory are synced, and readable by this user only
    if "file" in names:
        return DirectoryStore(path)
    return FsspecStore(address, system, path)


class DirectoryStore:
    """A directory on a mounted file system."""

    def __init__(self, path: str) -> None:
        self.address = os.path.abspath(path)

    def names(self) -> list[str]:
        """Return the names of the complete files."""
        try:
            return [name for name in os.listdir(self.address) if not name.endswith(_PART)]
        except FileNotFoundError:
            return []  # the directory is created with the first file

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        return os.path.getsize(os.path.join(self.address, name))

    @contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file for reading; a link, a pipe or a device is refused."""
        path = os.path.join(self.address, name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            yield file

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        """Atomically create a file, and sync it; only this user can read it."""
        path = os.path.join(self.address, name)
        make_private_directory(self.address)
        with create_private(path + _PART) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + _PART, path)
        sync_directory(self.address)


class FsspecStore:
    """Any store that fsspec supports; a file appears once it is complete."""

    def __init__(self, address: str, system: Any, path: str) -> None:
        self.address = address.rstrip("/")
        self._system = system
        self._path = path.rstrip("/")
        system.makedirs(self._path, exist_ok=True)

    def names(self) -> list[str]:
        """Return the names of the complete files."""
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._path, detail=False)
        except FileNotFoundError:
            return []  # a key-value store has no directory until it has a file
        return [name for name in map(os.path.basename, found) if not name.endswith(_PART)]

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        return int(self._system.size(f"{self._path}/{name}"))

    @contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file for reading."""
        with self._system.open(f"{self._path}/{name}", "rb") as file:
            yield file

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        """Create a file under a temporary name, and rename it once it is complete."""
        path = f"{self._path}/{name}"
        with self._system.open(path + _PART, "wb") as file:
            yield file
        self._system.mv(path + _PART, path)
