"""Identity: whose state a directory holds, so that a foreign, swapped or copied one is refused."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from rt.errors import Misuse, Refused
from rt.format.checksum import crc32
from rt.log.files.disk import Disk

IDENTITY_NAME: Final = "identity"
IDENTITY_BYTES_MAX: Final = 16384  # 7 founders with names of 255 bytes and addresses of 300


@dataclass(frozen=True, slots=True)
class StateIdentity:
    """Whose state a directory holds.

    Attributes:
        cluster: the id of the cluster.
        node: the name of the node.
        directory: the random id that this directory was given when it was created.
        incarnation: which copy of the node's state this is, for the other members.
        place: the directory's inode number, which a copy does not inherit; "" is not compared.
            Up to version 0.1 it was preceded by a device number and a colon, which is ignored: a
            volume gets another one when it is attached again.
        founders: the members that the cluster was founded with and their addresses, by name; empty
            if the node joined later, lost its state, or was founded by an earlier version.
    """

    cluster: str
    node: str
    directory: int
    incarnation: int
    place: str = ""
    founders: Mapping[str, str] = field(default_factory=dict)

    def demand(self, path: str, cluster: str, node: str, place: str) -> None:
        """Refuse the directory at `path` unless it was created for this node, here."""
        if cluster != self.cluster:
            words = f"{path} belongs to cluster {self.cluster!r}, this is {cluster!r}"
            raise Refused("foreign", words)
        if node != self.node:
            raise Refused("swapped", f"{path} belongs to node {self.node!r}, this is {node!r}")
        if place and self.place and inode(place) != inode(self.place):
            raise Refused(
                "cloned",
                f"{path} is a copy of another directory, and two nodes may hold the same vote; "
                "empty it, and the node learns everything from the others; or if it was moved, and "
                "the original is gone, run `rt node adopt-state`",
            )


def inode(place: str) -> str:
    """The inode number in a place, with or without a device number before it.

    >>> inode("fd00:1a2b"), inode("1a2b")
    ('1a2b', '1a2b')
    """
    return place.rpartition(":")[2]


def encode_identity(identity: StateIdentity) -> bytes:
    """One line of JSON and its checksum, readable without a tool."""
    line = json.dumps(asdict(identity), sort_keys=True).encode()
    return b"%s\n%08x\n" % (line, crc32(line))


def decode_identity(data: bytes) -> StateIdentity | None:
    """The identity in these bytes, or None if they are damaged."""
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32(line):
        return None
    try:
        return StateIdentity(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None


def read_identity(disk: Disk, path: str) -> StateIdentity | None:
    """The identity of a directory, or None if it is missing or damaged."""
    try:
        file = disk.open_read(f"{path}/{IDENTITY_NAME}")
    except FileNotFoundError:
        return None
    try:
        return decode_identity(file.pread(IDENTITY_BYTES_MAX, 0))
    finally:
        file.close()


def adopt_state(disk: Disk, path: str, place: str) -> StateIdentity:
    """Let a directory that was moved be opened where it is now.

    Only if the original no longer exists: two nodes with one vote break every promise.

    Raises:
        Misuse: the directory holds no identity.
    """
    identity = read_identity(disk, path)
    if identity is None:
        raise Misuse(f"{path} holds no node's state, or its identity is damaged")
    adopted = replace(identity, place=place)
    write_whole(disk, path, IDENTITY_NAME, [encode_identity(adopted)])
    return adopted


def write_whole(disk: Disk, path: str, name: str, parts: list[bytes]) -> None:
    """Return when the file durably has exactly these bytes; until then it keeps the old ones."""
    file = disk.open(f"{path}/{name}.tmp", create=True)
    try:
        file.truncate(0)
        file.append(parts)
        file.sync()
    finally:
        file.close()
    disk.replace(f"{path}/{name}.tmp", f"{path}/{name}")
