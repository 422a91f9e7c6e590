"""EntryLog: the file of entries, and a file of marks that prove how much of it is durable."""

from collections.abc import Sequence
from typing import Final

from rt.log.files.disk import Disk, File, write_whole
from sequencer.journal.records import RecordHeader, RecordScan, encode_mark, encode_records
from sequencer.raft.consensus import Entry

LOG_NAME: Final = "entries"
MARKS_NAME: Final = "marks"
MARKS_BYTES_MAX: Final = 1 << 20


class Marks:
    """Marks: records how far the log is durable, in a file of its own.

    If the log is not intact up to a mark, it is damaged, and not only torn at its end. A mark is
    appended after each sync of the log. Marks themselves are not synced.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._file: File = disk.open(f"{path}/{MARKS_NAME}", create=True)
        self._bytes = 0

    def begin(self, generation: int, durable: int) -> None:
        """Empty the file, which may end in half a mark after a power cut, and write one mark."""
        self._file.truncate(0)
        self._bytes = 0
        self.append(generation, durable)

    def append(self, generation: int, durable: int) -> None:
        """Record that the log of this generation is durable up to the byte `durable`."""
        if self._bytes >= MARKS_BYTES_MAX:
            self.begin(generation, durable)
        else:
            self._bytes += self._file.append([encode_mark(generation, durable)])

    def close(self) -> None:
        """Release the file."""
        self._file.close()


class EntryLog:
    """EntryLog: the entries after a snapshot, in one file that is only appended to or replaced.

    Args:
        disk: the disk.
        path: the directory.
        directory: the directory's id.
        scan: what the file holds.
        entries: the entries after the snapshot.
        is_late: whether `append` leaves entries unsynced (ADR 42).

    Attributes:
        end: the size of the file, in bytes.
    """

    def __init__(
        self, disk: Disk, path: str, directory: int, scan: RecordScan, entries: Sequence[Entry],
        *, is_late: bool = False,
    ) -> None:  # fmt: skip
        self._is_late = is_late
        self._disk, self._path, self._directory = disk, path, directory
        self._file: File = disk.open(f"{path}/{LOG_NAME}")
        self._marks = Marks(disk, path)
        self.end = self._durable = scan.end
        self._generation = scan.header.generation if scan.header else 0
        self._tail = list(entries)

    def make_durable(self, is_proven: bool, base_index: int, base_term: int) -> None:
        """Make sure that the entries read at the start are durable.

        If that is not proven, they are written to a new file. Another sync of the old file might
        not write them: after a failed sync, the kernel treats pages that are only in memory as
        clean.

        Args:
            is_proven: whether all intact records are known to be durable, so that the file is kept
                and only cut after them.
            base_index: the last entry before those that a new file would hold.
            base_term: the term of that entry.
        """
        if is_proven:
            self._file.truncate(self.end)
            self._marks.begin(self._generation, self.end)
        else:
            self.rewrite(base_index, base_term)

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries, replacing any from the first one's index on; sync unless `is_late`."""
        records = list(encode_records(entries, self.end, self._durable))
        self.end += self._file.append(records)
        if not self._is_late:
            self._file.sync()
        if self._tail:
            del self._tail[max(0, entries[0].index - self._tail[0].index) :]
        self._tail += entries
        if not self._is_late:
            self._durable = self.end
            self._marks.append(self._generation, self._durable)

    def sync(self) -> None:
        """Make all appended entries durable."""
        self._file.sync()
        self._durable = self.end
        self._marks.append(self._generation, self._durable)

    def forget(self, index: int) -> None:
        """Omit the entries up to `index` from the next rewrite."""
        if self._tail:
            del self._tail[: max(0, index - self._tail[0].index + 1)]

    def rewrite(self, base_index: int, base_term: int) -> None:
        """Replace the file with one that begins after the entry `base_index`; it is durable."""
        self._generation = (self._generation + 1) & 0xFFFFFFFF
        header = RecordHeader(self._directory, self._generation, base_index, base_term).encode()
        parts = [header, *encode_records(self._tail, len(header), len(header))]
        write_whole(self._disk, self._path, LOG_NAME, parts)
        self._file.close()
        self._file = self._disk.open(f"{self._path}/{LOG_NAME}")
        self.end = self._durable = sum(map(len, parts))
        self._marks.begin(self._generation, self._durable)

    def restart(self, base_index: int, base_term: int) -> None:
        """Drop all entries and begin after the entry `base_index`, the last that a snapshot has."""
        self._tail.clear()
        self.rewrite(base_index, base_term)

    def close(self) -> None:
        """Release the files."""
        self._file.close()
        self._marks.close()
