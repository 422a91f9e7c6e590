"""A disk as strict as a real one may be: a power cut forgets or tears what was not synced."""

from collections.abc import Callable, Sequence
from random import Random

from rt.disk import File

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The node died inside a disk operation; nothing after it was done."""


class Inode:
    """A file's bytes as programs see them, and as they would be after a power cut.

    Bytes below `floor` have not been touched since the last sync: no cut can harm them.
    """

    __slots__ = ("data", "durable", "floor")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.floor = 0

    def settle(self) -> None:
        """Everything written is on the disk."""
        self.durable = bytes(self.data)
        self.floor = len(self.durable)


class SimFile:
    """One open file of a `SimDisk`."""

    def __init__(self, disk: "SimDisk", inode: Inode) -> None:
        self._disk, self._inode = disk, inode

    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        """Write at the end."""
        data = b"".join(parts)
        self._disk.operation("append")
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
        return bytes(self._inode.data[offset : offset + length])

    def size(self) -> int:
        """The bytes in the file."""
        return len(self._inode.data)

    def truncate(self, length: int) -> None:
        """Cut the file."""
        self._disk.operation("truncate")
        del self._inode.data[length:]
        self._inode.floor = min(self._inode.floor, length)

    def sync(self) -> None:
        """Make what was written durable."""
        self._disk.operation("sync")
        self._inode.settle()

    def close(self) -> None:
        """Nothing to release."""


class SimDisk:
    """A disk of one node. `fault` is asked before every operation and may raise.

    Names are durable once their directory is synced, which `open` with `create` and `replace` do
    as a second step: a power cut between the two steps may lose the name or the rename.
    """

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self.fault: Callable[[str], None] | None = None

    def operation(self, name: str) -> None:
        """An operation is about to be done."""
        if self.fault is not None:
            self.fault(name)

    def open(self, path: str, *, create: bool = False) -> SimFile:
        """Open or create."""
        if path not in self._names:
            if not create:
                raise FileNotFoundError(path)
            self.operation("create")
            self._names[path] = Inode()
            self._sync_names()
        return SimFile(self, self._names[path])

    def open_read(self, path: str) -> SimFile:
        """Open."""
        return self.open(path)

    def names(self, path: str) -> list[str]:
        """The names in a directory."""
        start = path.rstrip("/") + "/"
        return [name[len(start) :] for name in self._names if name.startswith(start)]

    def make_directory(self, path: str) -> None:
        """Directories are only a part of names."""

    def replace(self, source: str, target: str) -> None:
        """Rename, then make the names durable."""
        self.operation("rename")
        self._names[target] = self._names.pop(source)
        self._sync_names()

    def _sync_names(self) -> None:
        self.operation("sync names")
        self._durable_names = dict(self._names)

    def cut_power(self) -> None:
        """Forget what was not synced, except what chance has written already."""
        self.fault = None
        if self._chance.random() < 0.5:
            self._names = dict(self._durable_names)
        self._durable_names = dict(self._names)
        for path in sorted(self._names):
            self._settle(self._names[path])

    def _settle(self, inode: Inode) -> None:
        data, durable = bytes(inode.data), inode.durable
        if data != durable:
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
        """End the process only: the machine goes on, so everything written stays."""
        self.fault = None

    def settle_all(self) -> None:
        """What time does: everything written has reached the disk."""
        self._durable_names = dict(self._names)
        for inode in self._names.values():
            inode.settle()

    def rot(self, paths: Sequence[str]) -> str:
        """Flip a bit of one of these files, or cut its end off; return what was done."""
        there = [path for path in paths if self._names.get(path) and self._names[path].data]
        if not there:
            return ""
        path = self._chance.choice(there)
        inode = self._names[path]
        place = self._chance.randrange(len(inode.data))
        if self._chance.random() < 0.3:
            del inode.data[place:]
            done = f"{path} cut at {place}"
        else:
            inode.data[place] ^= 1 << self._chance.randrange(8)
            done = f"{path} flipped at {place}"
        inode.settle()
        return done

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self._names, self._durable_names, self.fault = {}, {}, None
