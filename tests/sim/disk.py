"""A disk as strict as a real one: a power cut loses or tears what was not synced."""

import errno
import posixpath
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import lru_cache
from random import Random

from rt.log.files.disk import File

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The node died during a disk operation; nothing after it was done."""


def is_dead(_operation: str) -> None:
    """Refuse every operation of a process that has died while its code still unwinds."""
    raise PowerCut


class Inode:
    """A file's bytes as programs see them, and as they would be after a power cut.

    Bytes below `floor` have not been touched since the last sync: no cut can harm them. After a
    failed sync the pages up to `lost` may be clean in memory though they never reached the disk,
    as on ext4 and XFS: programs read them, a later sync succeeds without writing them, and a power
    cut turns them into zeros.
    """

    __slots__ = ("data", "durable", "floor", "lost")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.floor = 0
        self.lost = 0

    def fail(self) -> None:
        """Fail a sync, after which the kernel considers the pages clean."""
        self.lost = len(self.data)

    def settle(self) -> None:
        """Put everything written on the disk, except what a failed sync has lost."""
        if self.lost > self.floor:
            zeros = bytes(self.lost - self.floor)
            self.durable = bytes(self.data[: self.floor]) + zeros + bytes(self.data[self.lost :])
        elif self.floor < len(self.data) or len(self.durable) != self.floor:
            self.durable = bytes(self.data)
            self.floor = len(self.durable)


class Directory:
    """The names of a directory as programs see them, and as they would be after a power cut."""

    __slots__ = ("durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}

    def every(self) -> "Iterator[Directory]":
        """Yield this directory and all below it, sorted by name."""
        yield self
        for name in sorted(self.names):
            below = self.names[name]
            if isinstance(below, Directory):
                yield from below.every()

    def settle(self) -> None:
        """Make the current names durable."""
        self.durable = dict(self.names)


class SimFile:
    """One open file of a `SimDisk`."""

    def __init__(self, disk: "SimDisk", inode: Inode) -> None:
        self._disk, self._inode = disk, inode

    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        """Write at the end; a full disk takes the first half."""
        data = b"".join(parts)
        try:
            self._disk.operation("append")
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self._inode.data += data[: len(data) // 2]
            raise
        self._inode.data += data
        return len(data)

    def copy(self, source: File, offset: int, length: int) -> None:
        """Append bytes of another file."""
        data = source.pread(length, offset)
        if len(data) < length:
            raise EOFError("the source ends early")
        self.append([data])

    def pread(self, length: int, offset: int) -> bytes:
        """Read."""
        self._disk.reads += 1
        return bytes(self._inode.data[offset : offset + length])

    def size(self) -> int:
        """The bytes in the file."""
        return len(self._inode.data)

    def truncate(self, length: int) -> None:
        """Cut the file."""
        self._disk.operation("truncate")
        del self._inode.data[length:]
        self._inode.floor = min(self._inode.floor, length)
        self._inode.lost = min(self._inode.lost, length)

    def write_again(self, offset: int) -> None:
        """Make the next sync write the bytes from `offset` on, even after a failed one."""
        self._disk.operation("write again")
        self._inode.lost = 0 if offset <= self._inode.floor else min(self._inode.lost, offset)

    def overwrite(self, data: bytes, offset: int) -> None:
        """Replace bytes; a power cut before the next sync may keep the new ones or the old ones."""
        self._disk.operation("overwrite")
        self._inode.data[offset : offset + len(data)] = data
        self._inode.floor = min(self._inode.floor, offset)

    def sync(self) -> None:
        """Make what was written durable."""
        try:
            self._disk.operation("sync")
        except OSError:
            if self._disk.cleans_failed_pages:
                self._inode.fail()
            raise
        self._inode.settle()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class SimDisk:
    """A disk of one node. `fault` is asked before every operation and may raise.

    Names are durable once their directory is synced, which `open` with `create`, `make_directory`
    and `replace` do as a second step: a power cut between the two may lose the name or the rename.
    """

    def __init__(self, chance: Random, *, cleans_failed_pages: bool = False) -> None:
        self._chance = chance
        self._root = Directory()
        self.cleans_failed_pages = cleans_failed_pages
        self.boots = 1
        self.reads = 0  # how often bytes were read
        self.fault: Callable[[str], None] | None = None

    def operation(self, name: str) -> None:
        """Note that an operation is about to start."""
        if self.fault is not None:
            try:
                self.fault(name)
            except PowerCut:
                self.fault = is_dead
                raise

    def open(self, path: str, *, create: bool = False) -> SimFile:
        """Open or create."""
        directory, name = self._parent(path)
        inode = directory.names.get(name) if directory else None
        if create and directory is not None:
            if inode is None:
                self.operation("create")
                inode = directory.names[name] = Inode()
            self._sync(directory)
        if not isinstance(inode, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return SimFile(self, inode)

    def open_read(self, path: str) -> SimFile:
        """Open."""
        return self.open(path)

    def names(self, path: str) -> list[str]:
        """The names in a directory."""
        directory = self._at(path)
        return list(directory.names) if isinstance(directory, Directory) else []

    def make_directory(self, path: str) -> None:
        """Make it and its parents."""
        directory = self._root
        for name in path.split("/"):
            below = directory.names.get(name)
            if below is None:
                self.operation("make directory")
                below = directory.names[name] = Directory()
            if directory.durable.get(name) is not below:
                self._sync(directory)
            if not isinstance(below, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            directory = below

    def replace(self, source: str, target: str) -> None:
        """Rename, then make the names durable."""
        self.operation("rename")
        directory, name = self._parent(source)
        into, fresh = self._parent(target)
        if directory is None or into is None or name not in directory.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        into.names[fresh] = directory.names.pop(name)
        self._sync(into)

    def remove(self, path: str) -> None:
        """Remove a file or a directory; a power cut may undo it."""
        directory, name = self._parent(path)
        if directory is not None:
            directory.names.pop(name, None)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, then make the names durable."""
        self.operation("link")
        directory, name = self._parent(source)
        if directory is None or name not in directory.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        directory.names[posixpath.basename(target)] = directory.names[name]
        self._sync(directory)

    def _at(self, path: str) -> Inode | Directory | None:
        found: Inode | Directory | None = self._root
        for name in _names(path):
            found = found.names.get(name) if isinstance(found, Directory) else None
        return found

    def _parent(self, path: str) -> tuple[Directory | None, str]:
        above, name = _split(path)
        found = self._root
        for each in above:
            below = found.names.get(each)
            if below.__class__ is not Directory:
                return None, name
            found = below
        return found, name

    def _sync(self, directory: Directory) -> None:
        self.operation("sync names")
        directory.settle()

    # Faults

    def inode(self, path: str) -> Inode:
        """Return the file at a path, to be inspected or damaged."""
        inode = self._at(path)
        if not isinstance(inode, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def directory(self, path: str) -> Directory:
        """Return the directory at a path."""
        directory = self._at(path)
        if not isinstance(directory, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return directory

    def durable(self, path: str) -> bytes:
        """Return the bytes of a file that no power cut takes; none if its name may be lost."""
        found: Inode | Directory | None = self._root
        for name in _names(path):
            found = found.durable.get(name) if isinstance(found, Directory) else None
        return found.durable[: found.floor] if isinstance(found, Inode) else b""

    def _files(self) -> Iterator[Inode]:
        for directory in self._root.every():
            for name in sorted(directory.names):
                inode = directory.names[name]
                if isinstance(inode, Inode):
                    yield inode

    def cut_power(self) -> None:
        """Forget what was not synced, except what chance has written already."""
        self.fault = None
        self.boots += 1
        if self._chance.random() < 0.5:
            for directory in self._root.every():
                directory.names = dict(directory.durable)
        for directory in self._root.every():
            directory.settle()
        for inode in self._files():
            self._settle(inode)

    def _settle(self, inode: Inode) -> None:
        data, durable = bytes(inode.data), inode.durable
        if inode.lost > inode.floor:
            inode.settle()
            data, durable = inode.durable, inode.durable
            inode.data, inode.lost, inode.floor = bytearray(data), 0, len(data)
        elif data != durable:
            inode.data = bytearray(self._torn(data, durable, inode.floor))
            inode.settle()

    def _torn(self, data: bytes, durable: bytes, floor: int) -> bytes:
        way = self._chance.randrange(4)
        if way == 0:
            return durable
        if way == 1:
            return data
        kept = bytearray(data[: self._chance.randint(floor, len(data))])
        if way == 2:
            return bytes(kept)
        first = floor // SECTOR_BYTES * SECTOR_BYTES
        for start in range(first, len(kept), SECTOR_BYTES):  # a sector that was never written
            if self._chance.random() < 0.5:
                place = max(start, floor)
                kept[place : start + SECTOR_BYTES] = bytes(len(kept[place : start + SECTOR_BYTES]))
        return bytes(kept)

    def kill(self) -> None:
        """End only the process: the machine runs on, so everything written stays."""
        self.fault = None

    def settle_all(self) -> None:
        """Let time pass, so that everything written reaches the disk."""
        for directory in self._root.every():
            directory.settle()
        for inode in self._files():
            inode.settle()

    def rot(self, paths: Sequence[str], *, first: int = 0, cut: bool = True) -> str:
        """Flip a bit of one of these files, or `cut` its end off; return what was done.

        Nothing before the byte `first` is touched.
        """
        found = [(path, self._at(path)) for path in paths]
        there = [(path, inode) for path, inode in found if isinstance(inode, Inode) and inode.data]
        if not there:
            return ""
        path, inode = self._chance.choice(there)
        place = self._chance.randrange(first, len(inode.data))
        if cut and self._chance.random() < 0.3:
            del inode.data[place:]
            done = f"{path} cut at {place}"
        else:
            inode.data[place] ^= 1 << self._chance.randrange(8)
            done = f"{path} flipped at {place}"
        inode.floor = inode.lost = 0
        inode.settle()
        return done

    def backed_up(self) -> Directory:
        """Return a copy of all files, as programs see them."""
        return deepcopy(self._root)

    def restore(self, backup: Directory) -> None:
        """Replace everything by an older copy, which is durable."""
        self._root, self.fault = deepcopy(backup), None
        self.settle_all()

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self._root, self.fault = Directory(), None


@lru_cache(1 << 14)  # enough for the paths of several worlds
def _split(path: str) -> tuple[tuple[str, ...], str]:
    *above, name = _names(path)
    return tuple(above), name


@lru_cache(1 << 14)
def _names(path: str) -> tuple[str, ...]:
    return tuple(path.split("/")) if path else ()
