"""Snapshots: their encoding, the same on disk and on the wire, and those that a node holds.

Little endian: the magic with the version (8 bytes), a CRC-32 of everything after it (u32), the
index (u64), the term (u64), the configuration encoded as in an entry, and the application's bytes.
In version 1 the member count (u8) came before the index, and after the term came each member's
incarnation (u64), the length of its name (u8) and its name.
"""

import struct
from typing import Final

from rt.format.checksum import crc32
from sequencer.raft.consensus import MEMBERS_ALLOWED, Seat, Snapshot
from sequencer.raft.entries import NUMBER_MAX, pack_configuration, unpack_configuration

MAGIC: Final = b"rtsnap\x00\x02"
MAGIC_1: Final = b"rtsnap\x00\x01"
# 1,000 sessions at about 200 bytes each are 200 KB; a snapshot 300 times as large is a mistake.
SNAPSHOT_BYTES_MAX: Final = 64 << 20

_HEAD: Final = struct.Struct("<8sI")
_FIELDS: Final = struct.Struct("<QQ")
_FIELDS_1: Final = struct.Struct("<BQQ")
_MEMBER_1: Final = struct.Struct("<QB")


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot."""
    fields = _FIELDS.pack(snapshot.index, snapshot.term)
    body = b"".join([fields, pack_configuration(dict(snapshot.roster)), snapshot.data])
    return _HEAD.pack(MAGIC, crc32(body)) + body


def decode_snapshot(blob: bytes) -> Snapshot:
    """Decode a snapshot.

    Raises:
        ValueError: the bytes are not what `encode_snapshot` returned.
    """
    try:
        magic, crc = _HEAD.unpack_from(blob)
        if magic not in {MAGIC, MAGIC_1} or crc != crc32(memoryview(blob)[_HEAD.size :]):
            raise ValueError("snapshot: wrong magic or checksum")
        snapshot = _decode_1(blob) if magic == MAGIC_1 else _decode(blob)
    except struct.error:
        raise ValueError("snapshot: truncated") from None
    if max(snapshot.index, snapshot.term) > NUMBER_MAX:
        raise ValueError("snapshot: a number out of range")
    return snapshot


def _decode(blob: bytes) -> Snapshot:
    index, term = _FIELDS.unpack_from(blob, _HEAD.size)
    seats, offset = unpack_configuration(blob, _HEAD.size + _FIELDS.size)
    return Snapshot(index, term, tuple(sorted(seats.items())), blob[offset:])


def _decode_1(blob: bytes) -> Snapshot:
    """Decode a snapshot of version 1, when members had no address and could not change."""
    count, index, term = _FIELDS_1.unpack_from(blob, _HEAD.size)
    if count not in MEMBERS_ALLOWED:
        raise ValueError(f"snapshot: {count} members")
    roster, offset = [], _HEAD.size + _FIELDS_1.size
    for _ in range(count):
        incarnation, length = _MEMBER_1.unpack_from(blob, offset)
        offset += _MEMBER_1.size
        roster.append((blob[offset : offset + length].decode(), Seat(incarnation)))
        offset += length
    return Snapshot(index, term, tuple(roster), blob[offset:])


class Assembly:
    """Assembly: collects the parts of one snapshot; the codec refuses parts past its end."""

    __slots__ = ("_key", "_parts")

    def __init__(self) -> None:
        self._key: tuple[int, ...] = ()
        self._parts = bytearray()

    def add(self, key: tuple[int, ...], offset: int, data: bytes) -> int:
        """Add a part of a snapshot if it continues what has arrived.

        Args:
            key: identifies the snapshot; another key discards the parts of the one before.
            offset: where the part belongs in the snapshot.
            data: the part.

        Returns:
            How many bytes of the snapshot have arrived without a gap.
        """
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
        newest: the newest snapshot, made here or received; None if there is none.
        to_install: a received snapshot that the application has not restored yet.
        assembly: the parts of the snapshot being received.
        is_followed: whether this node has had everything that a leader had committed at some time
            since this node started and last installed a snapshot.
    """

    __slots__ = ("assembly", "is_followed", "newest", "to_install")

    def __init__(self, newest: Snapshot | None) -> None:
        self.newest = newest
        self.to_install: Snapshot | None = None
        self.assembly = Assembly()
        self.is_followed = False
