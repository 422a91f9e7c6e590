"""Ballots: a node's term and vote, in two mirrored slots, so that damage to one is harmless."""

import struct
from typing import Final

from rt.format.checksum import crc32
from rt.log.files.disk import Disk, File, read_or_rotten, write_whole
from sequencer.raft.consensus import Ballot

SLOT_NAMES: Final = ("ballot.0", "ballot.1")
SLOT_BYTES_MAX: Final = 512  # a name has at most 255 bytes, and the other fields 24
_SLOT: Final = struct.Struct("<4sIQQ")  # magic, CRC-32 of the rest, directory id, term
_MAGIC: Final = b"rtb\x01"


def encode_slot(ballot: Ballot, directory: int) -> bytes:
    """Return the bytes of a slot that holds this ballot."""
    rest = struct.pack("<QQ", directory, ballot.term) + ballot.voted_for.encode()
    return _MAGIC + struct.pack("<I", crc32(rest)) + rest


def decode_slot(data: bytes, directory: int) -> Ballot | None:
    """Return the ballot in a slot; None if the slot is damaged or of another directory."""
    if len(data) < _SLOT.size:
        return None
    magic, crc, owner, term = _SLOT.unpack_from(data)
    if magic != _MAGIC or crc != crc32(data[8:]) or owner != directory:
        return None
    try:
        return Ballot(term, data[_SLOT.size :].decode())
    except UnicodeDecodeError:
        return None  # the checksum may match although the bytes are not a name


def newer(one: Ballot | None, other: Ballot | None) -> Ballot | None:
    """Return the later of the ballots in two slots; None if neither slot is intact.

    The later ballot has the higher term or, in the same term, a vote that the other lacks.
    """
    intact = [ballot for ballot in (one, other) if ballot is not None]
    return max(intact, key=lambda ballot: (ballot.term, ballot.voted_for != ""), default=None)


def read_ballot(disk: Disk, path: str, directory: int) -> Ballot | None:
    """Return the last ballot; None if neither slot is intact."""
    return newer(*[_read_slot(disk, f"{path}/{name}", directory) for name in SLOT_NAMES])


def _read_slot(disk: Disk, path: str, directory: int) -> Ballot | None:
    try:
        return decode_slot(read_or_rotten(disk, path, SLOT_BYTES_MAX), directory)
    except FileNotFoundError:
        return None


class Ballots:
    """Ballots: keeps a node's last ballot in two slots, so that no crash loses it.

    A ballot is written to one slot and synced, then written to the other and synced. If one slot is
    torn by a crash or damaged by rot, the other holds the last ballot that any peer may know. Only
    damage to both loses the ballot, and that is detected.
    """

    __slots__ = ("_directory", "_slots")

    def __init__(self, disk: Disk, path: str, directory: int, ballot: Ballot) -> None:
        """Write the ballot to new files, since the bytes read from the old may not be durable."""
        self._directory = directory
        for name in SLOT_NAMES:
            write_whole(disk, path, name, [encode_slot(ballot, directory)])
        self._slots: list[File] = [disk.open(f"{path}/{name}") for name in SLOT_NAMES]

    def write(self, ballot: Ballot) -> None:
        """Write the ballot durably to both slots."""
        data = encode_slot(ballot, self._directory)
        for slot in self._slots:
            slot.truncate(0)
            slot.append([data])
            slot.sync()

    def close(self) -> None:
        """Release the files."""
        for slot in self._slots:
            slot.close()
