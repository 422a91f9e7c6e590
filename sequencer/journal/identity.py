"""Identity: whose state a directory holds, so that a foreign, swapped or copied one is refused."""

import json
from dataclasses import asdict, dataclass
from typing import Final

from rt.errors import Refused
from rt.format.checksum import crc32
from rt.log.disk import Disk

IDENTITY_NAME: Final = "identity"
IDENTITY_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class StateIdentity:
    """Whose state a directory holds.

    Attributes:
        cluster: the id of the cluster.
        node: the name of the node.
        directory: the id that this directory was given when it was made, at random.
        incarnation: which copy of the node's state this is, for the other members.
        place: what the machine calls the directory and a copy does not inherit (its inode); ""
            is not looked at.
    """

    cluster: str
    node: str
    directory: int
    incarnation: int
    place: str = ""

    def demand(self, path: str, cluster: str, node: str, place: str) -> None:
        """Refuse the directory at `path` unless it was made for this node, here."""
        if cluster != self.cluster:
            words = f"{path} is of cluster {self.cluster!r}, this is {cluster!r}"
            raise Refused("foreign", words)
        if node != self.node:
            raise Refused("swapped", f"{path} is of node {self.node!r}, this is {node!r}")
        if place and self.place and place != self.place:
            words = f"{path} is a copy of another directory; two nodes may hold the same vote"
            raise Refused("cloned", words)


def encode_identity(identity: StateIdentity) -> bytes:
    """One line of JSON and its checksum, readable without a tool."""
    line = json.dumps(asdict(identity), sort_keys=True).encode()
    return b"%s\n%08x\n" % (line, crc32(line))


def decode_identity(data: bytes) -> StateIdentity | None:
    """The identity in these bytes, or None if they are not whole."""
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32(line):
        return None
    return StateIdentity(**json.loads(line))


def read_identity(disk: Disk, path: str) -> StateIdentity | None:
    """The identity of a directory, or None if there is none that is whole."""
    try:
        file = disk.open_read(f"{path}/{IDENTITY_NAME}")
    except FileNotFoundError:
        return None
    try:
        return decode_identity(file.pread(IDENTITY_BYTES_MAX, 0))
    finally:
        file.close()


def write_whole(disk: Disk, path: str, name: str, parts: list[bytes]) -> None:
    """Return when the file has exactly these bytes, durably; until then it is what it was."""
    file = disk.open(f"{path}/{name}.tmp", create=True)
    try:
        file.truncate(0)
        file.append(parts)
        file.sync()
    finally:
        file.close()
    disk.replace(f"{path}/{name}.tmp", f"{path}/{name}")
