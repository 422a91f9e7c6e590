"""The encoding of entries, the same on the wire and in the journal.

Little endian. Each: term u64, length of the command u32, kind u8, command; indexes count up from
the first. The command of an entry of kind `MEMBER` is an incarnation u64 and a name.
"""

import struct
from collections.abc import Sequence
from typing import Final

from sequencer.raft.consensus import Entry, EntryKind

NUMBER_MAX: Final = (1 << 62) - 1  # 146 years at a thousand million entries a second
ENTRIES_MAX: Final = 4096  # per message: bounds the objects one message can create
ENTRY_BYTES: Final = 13  # without its command

_ENTRY: Final = struct.Struct("<QIB")
_MEMBER: Final = struct.Struct("<Q")
_KINDS: Final = {int(kind): kind for kind in EntryKind}


def pack_entries(entries: Sequence[Entry]) -> bytes:
    """Encode consecutive entries; their indexes count up from the first."""
    pack = _ENTRY.pack
    parts: list[bytes] = []
    for entry in entries:
        command = entry.command
        parts.append(pack(entry.term, len(command), entry.kind))
        parts.append(command)
    return b"".join(parts)


def unpack_entries(data: bytes, start: int, index: int, term: int) -> tuple[Entry, ...]:
    """Decode the entries that fill `data` from `start`; `ValueError` if they are malformed."""
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
