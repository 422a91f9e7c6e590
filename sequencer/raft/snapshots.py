"""Snapshots: the bytes of one, the same on disk and between nodes.

Little endian. Magic with version 8 bytes, CRC-32 of all that follows u32, count of members u8,
index u64, term u64; per member: incarnation u64, length of the name u8, name; then the
application's bytes to the end.
"""

import struct
from typing import Final

from rt.format.checksum import crc32
from sequencer.raft.consensus import MEMBERS_ALLOWED, Snapshot
from sequencer.raft.entries import NUMBER_MAX

MAGIC: Final = b"rtsnap\x00\x01"
# 1,000 sessions at some 200 bytes each are 200 KB; three hundred times that is a mistake.
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
    """The snapshot of these bytes.

    Raises:
        ValueError: they are not what `encode_snapshot` made.
    """
    try:
        magic, crc = _HEAD.unpack_from(blob)
        if magic != MAGIC or crc != crc32(memoryview(blob)[_HEAD.size :]):
            raise ValueError("snapshot: wrong magic or checksum")
        count, index, term = _FIELDS.unpack_from(blob, _HEAD.size)
        roster, offset = _roster(blob, count, _HEAD.size + _FIELDS.size)
    except struct.error:
        raise ValueError("snapshot: cut short") from None
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
    """A snapshot that arrives in parts; it holds one at a time and never more than its total."""

    __slots__ = ("_key", "_parts")

    def __init__(self) -> None:
        self._key: tuple[int, ...] = ()
        self._parts = bytearray()

    def take(self, key: tuple[int, ...], offset: int, data: bytes) -> int:
        """Take a part of the snapshot `key`; return how much of it is here, without gaps."""
        if key != self._key:
            self._key, self._parts = key, bytearray()
        if offset == len(self._parts):
            self._parts += data
        return len(self._parts)

    def finish(self) -> bytes:
        """Hand over the whole and forget it."""
        blob = bytes(self._parts)
        self._key, self._parts = (), bytearray()
        return blob
