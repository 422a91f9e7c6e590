"""Journal records: the encoding of the log on disk, and how a torn end differs from damage.

Little endian. A file is a header, then records. Header: magic with version 8 bytes, CRC-32 of the
rest of the header u32, directory id u64, generation u32, base index u64, base term u64. Record:
magic 4 bytes, CRC-32 of the rest of the record u32, length of the body u32, offset of the record in
the file u64, durable end of the file when the record was written u64, index of the first entry u64;
body: the entries, encoded as nodes send them.

No byte of the file is overwritten. If the log already has an entry with the index of a record's
first entry, the record replaces the entries from that index on.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rt.format.checksum import crc32
from sequencer.raft.consensus import COMMAND_BYTES_MAX, Entry
from sequencer.raft.entries import ENTRIES_MAX, ENTRY_BYTES, pack_entries, unpack_entries
from sequencer.raft.messages import BATCH_BYTES

FILE_MAGIC: Final = b"rtraft\x00\x01"
RECORD_MAGIC: Final = b"\xb5rec"
BODY_BYTES_MAX: Final = BATCH_BYTES + COMMAND_BYTES_MAX + ENTRIES_MAX * ENTRY_BYTES

_FILE: Final = struct.Struct("<8sIQIQQ")
_RECORD: Final = struct.Struct("<4sIIQQQ")
_MARK: Final = struct.Struct("<IIQ")  # CRC-32 of the rest, generation, durable end
_CRC_END: Final = 8  # the checksum covers a record from this offset on


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """The header of a log file: the directory it belongs to, and the entry that precedes it."""

    directory: int
    generation: int
    base_index: int
    base_term: int

    def encode(self) -> bytes:
        """The bytes of the header."""
        fields = (self.directory, self.generation, self.base_index, self.base_term)
        rest = _FILE.pack(FILE_MAGIC, 0, *fields)[12:]
        return FILE_MAGIC + struct.pack("<I", crc32(rest)) + rest


@dataclass(slots=True)
class RecordScan:
    """RecordScan: what a log file holds.

    Attributes:
        header: the file's header; None if it cannot be read.
        entries: the entries after the base, up to where the file is intact.
        end: the offset after the last intact record.
        proven: the offset up to which the file is known to have been synced.
        damage: what shows that the file is not what was written, or "". A torn tail is not damage:
            nothing proves that it was ever synced, and no peer learns of entries before that.
    """

    header: RecordHeader | None = None
    entries: list[Entry] = field(default_factory=list)
    end: int = 0
    proven: int = 0
    damage: str = ""

    @property
    def is_proven(self) -> bool:
        """Whether all intact records are known to have been synced."""
        return self.proven >= self.end


def encode_records(entries: Sequence[Entry], offset: int, durable: int) -> Iterator[bytes]:
    """Yield the records of consecutive entries.

    Args:
        entries: the entries.
        offset: offset in the file at which the first record will begin.
        durable: the offset up to which the file is durable now.
    """
    while entries:
        count, size = 0, 0
        while count < min(len(entries), ENTRIES_MAX) and size <= BATCH_BYTES:
            size += len(entries[count].command)
            count += 1
        body = pack_entries(entries[:count])
        head = _RECORD.pack(RECORD_MAGIC, 0, len(body), offset, durable, entries[0].index)
        crc = crc32(body, crc32(head[_CRC_END:]))
        yield head[:4] + struct.pack("<I", crc) + head[_CRC_END:] + body
        offset += len(head) + len(body)
        entries = entries[count:]


def encode_mark(generation: int, durable: int) -> bytes:
    """Return a mark, which says that a log of this generation is durable up to this offset."""
    rest = _MARK.pack(0, generation, durable)[4:]
    return struct.pack("<I", crc32(rest)) + rest


def read_marks(data: bytes, generation: int) -> int:
    """Return the largest durable end that the intact marks of this generation give."""
    durable = 0
    for start in range(0, len(data) - _MARK.size + 1, _MARK.size):
        crc, marked, end = _MARK.unpack_from(data, start)
        if marked == generation and crc == crc32(data[start + 4 : start + _MARK.size]):
            durable = max(durable, end)
    return durable


def read_header(data: bytes) -> RecordHeader | None:
    """Return the header of a log file; None if it is not intact."""
    if len(data) < _FILE.size:
        return None
    magic, crc, directory, generation, base, base_term = _FILE.unpack_from(data)
    if magic != FILE_MAGIC or crc != crc32(data[12 : _FILE.size]):
        return None
    return RecordHeader(directory, generation, base, base_term)


def scan(data: bytes, marked: int, *, is_same_boot: bool = False) -> RecordScan:
    """Read a log file, and judge whether it is damaged.

    Args:
        data: all bytes of the file.
        marked: the offset up to which marks say that the file was durable.
        is_same_boot: whether there was no power cut since the file was written. If so, the last
            record may be incomplete (writer killed, disk full), but any other unreadable bytes are
            damage.
    """
    found = RecordScan(header=read_header(data), end=_FILE.size)
    if found.header is None:
        found.damage = "its header is not intact"
        return found
    while found.end < len(data) and _take_record(data, found):
        pass
    found.proven = max(marked, found.proven, _proved(data, found.end))
    if found.end < found.proven:
        found.damage = f"what was durable at byte {found.end} is not intact"
    elif is_same_boot and found.end < len(data) and not _is_incomplete(data, found.end):
        found.damage = f"byte {found.end} starts no record, and no power was cut since"
    return found


def _is_incomplete(data: bytes, start: int) -> bool:
    """Whether the file ends within the record at `start`, which was not written completely.

    If the record is whole except that its length field was changed, it is not incomplete.
    """
    if not RECORD_MAGIC.startswith(data[start : start + len(RECORD_MAGIC)]):
        return False
    if len(data) - start < _RECORD.size:
        return True
    _, crc, size, offset, _, _ = _RECORD.unpack_from(data, start)
    if offset != start or size > BODY_BYTES_MAX or start + _RECORD.size + size <= len(data):
        return False
    head = bytearray(data[start + _CRC_END : start + _RECORD.size])
    struct.pack_into("<I", head, 0, len(data) - start - _RECORD.size)
    crc_if_whole = crc32(memoryview(data)[start + _RECORD.size :], crc32(head))
    return bool(crc != crc_if_whole)


def _take_record(data: bytes, found: RecordScan) -> bool:
    record = _whole_record(data, found.end)
    if record is None:
        return False
    entries, length = record
    if not _connect(found, entries):
        return False
    found.proven = max(found.proven, _RECORD.unpack_from(data, found.end)[4])
    found.end += length
    return True


def _connect(found: RecordScan, entries: tuple[Entry, ...]) -> bool:
    header, first = found.header, entries[0]
    if header is None or not header.base_index < first.index:
        return False
    keep = first.index - header.base_index - 1
    if keep > len(found.entries):
        return False
    before = found.entries[keep - 1].term if keep else header.base_term
    if first.term < before:
        return False
    found.entries[keep:] = entries
    return True


def _whole_record(data: bytes, start: int) -> tuple[tuple[Entry, ...], int] | None:
    length = _record_length(data, start)
    if not length:
        return None
    first = _RECORD.unpack_from(data, start)[5]
    try:
        body = data[start + _RECORD.size : start + length]
        entries = unpack_entries(body, 0, first - 1, 0)
    except (ValueError, KeyError, struct.error):
        return None
    return (entries, length) if entries else None


def _record_length(data: bytes, start: int) -> int:
    """Return the length of the record at `start`; 0 if no intact record begins there."""
    if len(data) - start < _RECORD.size:
        return 0
    magic, crc, size, offset, _, _ = _RECORD.unpack_from(data, start)
    end = start + _RECORD.size + size
    if magic != RECORD_MAGIC or offset != start or size > BODY_BYTES_MAX or end > len(data):
        return 0
    return end - start if crc == crc32(memoryview(data)[start + _CRC_END : end]) else 0


def _proved(data: bytes, start: int) -> int:
    """Return the largest durable end that an intact record at `start` or later gives."""
    proved, place = 0, data.find(RECORD_MAGIC, start)
    while place >= 0:
        if _record_length(data, place):
            proved = max(proved, _RECORD.unpack_from(data, place)[4])
        place = data.find(RECORD_MAGIC, place + 1)
    return proved
