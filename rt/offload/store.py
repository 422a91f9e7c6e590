"""Store: a place for copies: a directory, or what `fsspec` reaches by a URL."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any, Final, Protocol

from rt.errors import Misuse
from rt.log.disk import sync_directory

_PART: Final = ".part"  # until all of it is there


class Store(Protocol):
    """Files by name, written once and whole."""

    @property
    def address(self) -> str:
        """How a person names it."""

    def names(self) -> list[str]:
        """The files that are there, whole."""

    def size(self, name: str) -> int:
        """The bytes of a file."""

    def read(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file."""

    def write(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Make a file; it is there when the context ends well, and not before."""


def open_store(address: str) -> Store:
    """Return the store at a path, or at a URL.

    Raises:
        Misuse: it is empty, or a URL of which nobody here knows how to reach it.
    """
    if not address:
        raise Misuse("the place of the copies is empty; name a directory or a URL")
    if "://" not in address:
        return DirectoryStore(address)
    try:
        import fsspec  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise Misuse(f"{address} needs fsspec; install it, or name a directory") from None
    try:
        system, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:  # of a system whose package is to be installed
        raise Misuse(f"{address} cannot be reached: {error}; or name a directory") from None
    return FsspecStore(address, system, path)


class DirectoryStore:
    """A directory of a mounted file system."""

    def __init__(self, path: str) -> None:
        self.address = os.path.abspath(path)

    def names(self) -> list[str]:
        """The files that are there, whole."""
        try:
            return [name for name in os.listdir(self.address) if not name.endswith(_PART)]
        except FileNotFoundError:
            return []  # it is made when something is put there

    def size(self, name: str) -> int:
        """The bytes of a file."""
        return os.path.getsize(os.path.join(self.address, name))

    @contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file."""
        with open(os.path.join(self.address, name), "rb") as file:
            yield file

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        """Make a file, synced, in one step."""
        path = os.path.join(self.address, name)
        os.makedirs(self.address, mode=0o700, exist_ok=True)
        with open(path + _PART, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + _PART, path)
        sync_directory(self.address)


class FsspecStore:
    """Whatever fsspec reaches; an object store makes a file visible when it is whole."""

    def __init__(self, address: str, system: Any, path: str) -> None:
        self.address = address.rstrip("/")
        self._system = system
        self._path = path.rstrip("/")
        system.makedirs(self._path, exist_ok=True)

    def names(self) -> list[str]:
        """The files that are there, whole."""
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._path, detail=False)
        except FileNotFoundError:
            return []  # what has keys and no directories knows none without a file
        return [name for name in map(os.path.basename, found) if not name.endswith(_PART)]

    def size(self, name: str) -> int:
        """The bytes of a file."""
        return int(self._system.size(f"{self._path}/{name}"))

    @contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file."""
        with self._system.open(f"{self._path}/{name}", "rb") as file:
            yield file

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        """Make a file, and give it its name when it is whole."""
        path = f"{self._path}/{name}"
        with self._system.open(path + _PART, "wb") as file:
            yield file
        self._system.mv(path + _PART, path)
