"""Entries: their encoding, the same on the wire and in the journal, and the log in memory.

Little endian. An entry is encoded as: term u64, length of the command u32, kind u8, command. Its
index is not encoded: entries are consecutive, and the message or record around them gives the first
index.

The command of an entry of kind `MEMBER` is an incarnation u64 and a name. The command of an entry
of kind `CONFIGURATION` is the number of members u8, then for each member: incarnation u64, whether
it votes u8, length of its name u8, length of its address u16, name, address.
"""

import struct
from collections.abc import Sequence
from typing import Final

from sequencer.raft.consensus import (
    LEARNERS_MAX,
    VOTERS_MAX,
    Configuration,
    Entry,
    EntryKind,
    Seat,
)

NUMBER_MAX: Final = (1 << 62) - 1  # 146 years at 10**9 entries a second
ENTRIES_MAX: Final = 4096  # per message: bounds the objects one message can create
ENTRY_BYTES: Final = 13  # without its command

_ENTRY: Final = struct.Struct("<QIB")
_MEMBER: Final = struct.Struct("<Q")
_SEAT: Final = struct.Struct("<QBBH")
NAME_BYTES_MAX: Final = 255  # its length is one byte
ADDRESS_BYTES_MAX: Final = 300  # a host name of 253, a port and brackets
_KINDS: Final = {int(kind): kind for kind in EntryKind}


def pack_entries(entries: Sequence[Entry]) -> bytes:
    """Encode consecutive entries, without their indexes."""
    pack = _ENTRY.pack
    parts: list[bytes] = []
    for entry in entries:
        command = entry.command
        parts.append(pack(entry.term, len(command), entry.kind))
        parts.append(command)
    return b"".join(parts)


def unpack_entries(data: bytes, start: int, index: int, term: int) -> tuple[Entry, ...]:
    """Decode the entries that fill `data` from `start`.

    Args:
        data: the bytes.
        start: offset of the first entry.
        index: index of the entry before the first.
        term: the lowest term that the first entry may have.

    Raises:
        ValueError, KeyError, struct.error: the entries are malformed.
    """
    entries: list[Entry] = []
    while start < len(data):
        least = term
        term, length, kind = _ENTRY.unpack_from(data, start)
        start += _ENTRY.size
        index += 1
        command = data[start : start + length]
        start += length
        if len(command) != length or term < least or len(entries) == ENTRIES_MAX:
            raise ValueError("a truncated entry, a term that decreases, or too many entries")
        entries.append(Entry(index, term, command, _KINDS[kind]))
    return tuple(entries)


def pack_member(name: str, incarnation: int) -> bytes:
    """The command of an entry of kind `MEMBER`."""
    return _MEMBER.pack(incarnation) + name.encode()


def unpack_member(command: bytes) -> tuple[str, int]:
    """The name and incarnation in a `MEMBER` command; `ValueError` if it is malformed."""
    if len(command) <= _MEMBER.size:
        raise ValueError("a member entry without a name")
    (incarnation,) = _MEMBER.unpack_from(command)
    if incarnation > NUMBER_MAX:
        raise ValueError("a number out of range")
    return command[_MEMBER.size :].decode(), incarnation


def pack_configuration(seats: Configuration) -> bytes:
    """The command of an entry of kind `CONFIGURATION`; `ValueError` if a name is too long."""
    parts = [bytes([len(seats)])]
    for name, seat in seats.items():
        encoded, address = name.encode(), seat.address.encode()
        if not 0 < len(encoded) <= NAME_BYTES_MAX or len(address) > ADDRESS_BYTES_MAX:
            raise ValueError(f"a name of {len(encoded)} bytes, or an address of {len(address)}")
        parts += [_SEAT.pack(seat.incarnation, seat.votes, len(encoded), len(address))]
        parts += [encoded, address]
    return b"".join(parts)


def unpack_configuration(data: bytes, start: int = 0) -> tuple[dict[str, Seat], int]:
    """The configuration at `start`, and the offset after it; `ValueError` if it is malformed."""
    seats: dict[str, Seat] = {}
    try:
        [count], offset = data[start : start + 1], start + 1
        for _ in range(count):
            incarnation, votes, length, size = _SEAT.unpack_from(data, offset)
            offset += _SEAT.size + length + size
            text = data[offset - length - size : offset]
            if incarnation > NUMBER_MAX or votes > 1 or len(text) != length + size:
                raise ValueError("a member with a number out of range, or truncated")
            name, address = text[:length].decode(), text[length:].decode()
            if not (name.isprintable() and address.isprintable()):
                raise ValueError("a member whose name or address is not printable")
            seats[name] = Seat(incarnation, votes == 1, address)
    except struct.error:
        raise ValueError("a truncated configuration") from None
    voters = sum(seat.votes for seat in seats.values())
    limits = 0 < voters <= VOTERS_MAX and count - voters <= LEARNERS_MAX
    if not limits or len(seats) != count or "" in seats:
        raise ValueError(f"a configuration of {count} members, of which {voters} vote")
    return seats, offset


class Log:
    """Consecutive entries after a base index whose term is known.

    Attributes:
        base: the index before the first entry held.
        base_term: the term of the entry at that index.
        last: the index of the last entry.
        durable: the index of the last entry on stable storage here.
    """

    __slots__ = ("_entries", "base", "base_term", "durable", "last")

    def __init__(self, base: int, base_term: int) -> None:
        self.base, self.base_term = base, base_term
        self._entries: list[Entry] = []
        self.last = self.durable = base

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self._entries[-1].term if self._entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None if the log does not hold it."""
        offset = index - self.base - 1
        if 0 <= offset < len(self._entries):
            return self._entries[offset].term
        return self.base_term if index == self.base else None

    def contradicts(self, index: int, term: int) -> bool:
        """Whether this log proves that the entry `index` is not of this term.

        Terms never decrease along a log, so no entry before the base has a later term than the
        base.
        """
        if index < self.base:
            return term > self.base_term
        return self.term_at(index) not in {None, term}

    def append(self, entry: Entry) -> None:
        """Add an entry to the end."""
        self._entries.append(entry)
        self.last += 1

    def truncate(self, index: int) -> None:
        """Drop the entries from `index` on; none of them counts as durable any more."""
        del self._entries[index - self.base - 1 :]
        self.last = self.base + len(self._entries)
        self.durable = min(self.durable, index - 1)

    def between(self, start: int, end: int) -> tuple[Entry, ...]:
        """The entries from `start` to `end`, both included."""
        return tuple(self._entries[max(0, start - self.base - 1) : end - self.base])

    def batch(self, start: int, bytes_max: int, last: int) -> tuple[Entry, ...]:
        """Return the entries from `start`, at most to `last`, that fit a message; at least one."""
        end = min(start - 1 + ENTRIES_MAX, last)
        entries = self._entries[start - self.base - 1 : end - self.base]
        if len(entries) == 1:
            return tuple(entries)
        taken = 0
        for count, entry in enumerate(entries):
            taken += len(entry.command)
            if taken > bytes_max:
                return tuple(entries[: max(1, count)])
        return tuple(entries)

    def last_possible_match(self, index: int, term: int) -> tuple[int, int]:
        """Return the index and term of the last entry here that may match another node's log.

        The other log has an entry of `term` at `index`. So up to `index`, it has no entry of a
        later term, and each exchange skips all entries of a conflicting term instead of one entry.
        """
        index = min(index, self.last)
        while index > self.base and (self.term_at(index) or 0) > term:
            index -= 1
        return index, self.term_at(index) or 0

    def compact(self, index: int) -> None:
        """Drop the entries up to `index`, which a snapshot covers."""
        term = self.term_at(index)
        if term is None or index <= self.base:
            return
        del self._entries[: index - self.base]
        self.base, self.base_term = index, term

    def reset(self, index: int, term: int) -> None:
        """Drop all entries and start after a snapshot that is not durable yet."""
        self._entries.clear()
        self.base, self.base_term, self.durable, self.last = index, term, 0, index
