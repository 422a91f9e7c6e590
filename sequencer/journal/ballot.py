"""Ballots: a node's term and vote in two mirrored slots, of which one may always be bad."""

import struct
from typing import Final

from rt.format.checksum import crc32
from rt.log.disk import Disk, File
from sequencer.raft.consensus import Ballot

SLOT_NAMES: Final = ("ballot.0", "ballot.1")
SLOT_BYTES_MAX: Final = 512  # a name of at most 255 bytes, and the rest
_SLOT: Final = struct.Struct("<4sIQQ")  # magic, CRC-32 of the rest, directory id, term
_MAGIC: Final = b"rtb\x01"


def encode_slot(ballot: Ballot, directory: int) -> bytes:
    """The bytes of a slot."""
    rest = struct.pack("<QQ", directory, ballot.term) + ballot.voted_for.encode()
    return _MAGIC + struct.pack("<I", crc32(rest)) + rest


def decode_slot(data: bytes, directory: int) -> Ballot | None:
    """The ballot in a slot of this directory, or None if it is not whole."""
    if len(data) < _SLOT.size:
        return None
    magic, crc, owner, term = _SLOT.unpack_from(data)
    if magic != _MAGIC or crc != crc32(data[8:]) or owner != directory:
        return None
    try:
        return Ballot(term, data[_SLOT.size :].decode())
    except UnicodeDecodeError:
        return None  # the checksum finds accidents; anyone can seal bytes that are not a name


def newer(one: Ballot | None, other: Ballot | None) -> Ballot | None:
    """The later of two slots: a term never goes back, a vote is never taken back."""
    whole = [ballot for ballot in (one, other) if ballot is not None]
    return max(whole, key=lambda ballot: (ballot.term, ballot.voted_for != ""), default=None)


class Ballots:
    """The two slots. Each ballot is written to one, synced, then to the other, synced.

    So whatever is torn by a crash or rots in one slot, the other holds the last ballot that
    anyone was told of. Only both bad is a loss, and a loss is seen.
    """

    __slots__ = ("_directory", "_slots")

    def __init__(self, disk: Disk, path: str, directory: int) -> None:
        self._directory = directory
        self._slots: list[File] = [disk.open(f"{path}/{name}", create=True) for name in SLOT_NAMES]

    def read(self) -> Ballot | None:
        """The last ballot, or None if both slots are bad.

        The slot that does not hold it is the first to be written from now on: to begin with the
        good one would put the only whole copy at risk.
        """
        for slot in self._slots:
            slot.sync()  # the life before may have died in a sync: what is whole here may not last
        one, other = [
            decode_slot(slot.pread(SLOT_BYTES_MAX, 0), self._directory) for slot in self._slots
        ]
        last = newer(one, other)
        if one == last:
            self._slots.reverse()
        return last

    def write(self, ballot: Ballot) -> None:
        """Return when the ballot is durable in both slots."""
        data = encode_slot(ballot, self._directory)
        for slot in self._slots:
            slot.truncate(0)
            slot.append([data])
            slot.sync()

    def close(self) -> None:
        """Release the files."""
        for slot in self._slots:
            slot.close()
