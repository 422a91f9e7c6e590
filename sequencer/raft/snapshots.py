"""Snapshots: their encoding, the same on disk and on the wire, and the ones a node holds.

Little endian. Magic with version 8 bytes, CRC-32 of everything after it u32, member count u8,
index u64, term u64; per member: incarnation u64, length of the name u8, name; then the
application's bytes to the end.
"""

import struct
from typing import Final

from rt.format.checksum import crc32
from sequencer.raft.consensus import MEMBERS_ALLOWED, Snapshot
from sequencer.raft.entries import NUMBER_MAX

MAGIC: Final = b"rtsnap\x00\x01"
# 1,000 sessions at about 200 bytes each are 200 KB; 300 times that is a mistake.
SNAPSHOT_BYTES_MAX: Final = 64 << 20

_HEAD: Final = struct.Struct("<8sI")
_FIELDS: Final = struct.Struct("<BQQ")
_MEMBER: Final = struct.Struct("<QB")


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot."""
    parts = [_FIELDS.pack(len(snapshot.roster), snapshot.index, snapshot.term)]
    for name, incarnation in snapshot.roster:
        encoded = name.encode()
        parts += [_MEMBER.pack(incarnation, len(encoded)), encoded]
    body = b"".join([*parts, snapshot.data])
    return _HEAD.pack(MAGIC, crc32(body)) + body


def decode_snapshot(blob: bytes) -> Snapshot:
    """Decode a snapshot.

    Raises:
        ValueError: the bytes are not what `encode_snapshot` returned.
    """
    try:
        magic, crc = _HEAD.unpack_from(blob)
        if magic != MAGIC or crc != crc32(memoryview(blob)[_HEAD.size :]):
            raise ValueError("snapshot: wrong magic or checksum")
        count, index, term = _FIELDS.unpack_from(blob, _HEAD.size)
        roster, offset = _roster(blob, count, _HEAD.size + _FIELDS.size)
    except struct.error:
        raise ValueError("snapshot: truncated") from None
    if count not in MEMBERS_ALLOWED or max(index, term) > NUMBER_MAX:
        raise ValueError("snapshot: a number out of range")
    return Snapshot(index, term, roster, blob[offset:])


def _roster(blob: bytes, count: int, offset: int) -> tuple[tuple[tuple[str, int], ...], int]:
    roster = []
    for _ in range(count):
        incarnation, length = _MEMBER.unpack_from(blob, offset)
        offset += _MEMBER.size
        roster.append((blob[offset : offset + length].decode(), incarnation))
        offset += length
    return tuple(roster), offset


class Assembly:
    """A snapshot that arrives in parts: one at a time, and never more bytes than announced."""

    __slots__ = ("_key", "_parts")

    def __init__(self) -> None:
        self._key: tuple[int, ...] = ()
        self._parts = bytearray()

    def take(self, key: tuple[int, ...], offset: int, data: bytes) -> int:
        """Add a part of the snapshot `key`; return how many bytes are here without a gap."""
        if key != self._key:
            self._key, self._parts = key, bytearray()
        if offset == len(self._parts):
            self._parts += data
        return len(self._parts)

    def finish(self) -> bytes:
        """Return the complete snapshot and forget it."""
        blob = bytes(self._parts)
        self._key, self._parts = (), bytearray()
        return blob


class SnapshotStore:
    """The newest snapshot of a node, and the one it is receiving.

    Attributes:
        newest: made here or received, or None; `blob` is its encoding, for peers.
        to_install: received from the leader and not yet handed to the application.
        assembly: the parts of the one that is being received.
    """

    __slots__ = ("assembly", "blob", "newest", "to_install")

    def __init__(self, newest: Snapshot | None) -> None:
        self.newest = newest
        self.blob = encode_snapshot(newest) if newest else b""
        self.to_install: Snapshot | None = None
        self.assembly = Assembly()

    def keep(self, snapshot: Snapshot) -> Snapshot:
        """Make a snapshot of this node's own the newest; return it."""
        self.newest, self.blob = snapshot, encode_snapshot(snapshot)
        return snapshot

    def receive(self, snapshot: Snapshot, blob: bytes) -> None:
        """Make a received snapshot the newest, and have it installed."""
        self.newest, self.blob, self.to_install = snapshot, blob, snapshot
