"""Identity: which node a state directory belongs to, so that a node refuses any other directory."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from rt.errors import Misuse, Refused
from rt.format.checksum import crc32
from rt.log.files.disk import Disk, write_whole

IDENTITY_NAME: Final = "identity"
IDENTITY_BYTES_MAX: Final = 16384  # 7 founders with names of 255 bytes and addresses of 300


@dataclass(frozen=True, slots=True)
class StateIdentity:
    """StateIdentity: which node a directory belongs to.

    Attributes:
        cluster: the id of the cluster.
        node: the name of the node.
        directory: a random id drawn when the directory was created.
        incarnation: identifies this copy of the node's state to the other members.
        place: the directory's inode number, which differs in a copy of the directory; "" is not
            compared. Up to version 0.1, a device number and a colon preceded it. These are ignored,
            since a volume's device number changes when the volume is attached again.
        founders: the addresses of the cluster's founding members, by name. Empty if the node joined
            later, lost its state, or was founded by an earlier version.
    """

    cluster: str
    node: str
    directory: int
    incarnation: int
    place: str = ""
    founders: Mapping[str, str] = field(default_factory=dict)

    def demand(self, path: str, cluster: str, node: str, place: str) -> None:
        """Refuse the directory at `path` unless it was created for this node, in this place.

        Raises:
            Refused: `foreign` (of another cluster), `swapped` (of another node), or `cloned` (a
                copy of another directory).
        """
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
    """Return the inode number in a place, which a device number may precede.

    >>> inode("fd00:1a2b"), inode("1a2b")
    ('1a2b', '1a2b')
    """
    return place.rpartition(":")[2]


def encode_identity(identity: StateIdentity) -> bytes:
    """Return the identity as a line of JSON and its checksum, so that people can read it."""
    return seal(json.dumps(asdict(identity), sort_keys=True).encode())


def decode_identity(data: bytes) -> StateIdentity | None:
    """Return the identity in these bytes; None if they are damaged."""
    try:
        return None if (line := unseal(data)) is None else StateIdentity(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None


def read_identity(disk: Disk, path: str) -> StateIdentity | None:
    """Return the identity of a directory; None if it is missing or damaged."""
    try:
        file = disk.open_read(f"{path}/{IDENTITY_NAME}")
    except FileNotFoundError:
        return None
    try:
        return decode_identity(file.pread(IDENTITY_BYTES_MAX, 0))
    finally:
        file.close()


def adopt_state(disk: Disk, path: str, place: str) -> StateIdentity:
    """Allow a directory that was moved to be opened in its new place.

    Do this only if the original no longer exists. If two processes run from copies of one node's
    state, that node can vote twice, and no promise of the cluster holds.

    Returns:
        The directory's new identity.

    Raises:
        Misuse: the directory has no intact identity.
    """
    identity = read_identity(disk, path)
    if identity is None:
        raise Misuse(f"{path} holds no node's state, or its identity is damaged")
    adopted = replace(identity, place=place)
    write_whole(disk, path, IDENTITY_NAME, [encode_identity(adopted)])
    return adopted


def seal(line: bytes) -> bytes:
    """Return a line of text and, as a second line, its checksum."""
    return b"%s\n%08x\n" % (line, crc32(line))


def unseal(data: bytes) -> bytes | None:
    """Return the line that `seal` turned into these bytes; None if they are damaged."""
    line, _, rest = data.partition(b"\n")
    return line if rest == b"%08x\n" % crc32(line) else None
