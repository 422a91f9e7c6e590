"""EntryLog: the file of entries, and the file of marks that prove how much of it is durable."""

from collections.abc import Sequence
from typing import Final

from rt.log.files.disk import Disk, File
from sequencer.journal.identity import write_whole
from sequencer.journal.records import RecordHeader, RecordScan, encode_mark, encode_records
from sequencer.raft.consensus import Entry

LOG_NAME: Final = "entries"
MARKS_NAME: Final = "marks"
MARKS_BYTES_MAX: Final = 1 << 20


class Marks:
    """How far the log is durable, noted outside it so that damage to its very end is seen too.

    A mark is appended after each sync of the log, and is not synced itself.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._file: File = disk.open(f"{path}/{MARKS_NAME}", create=True)
        self._bytes = 0

    def begin(self, generation: int, durable: int) -> None:
        """Start with an empty file: a power cut may have left half a mark at the end."""
        self._file.truncate(0)
        self._bytes = 0
        self.append(generation, durable)

    def append(self, generation: int, durable: int) -> None:
        """Note that a log of this generation is durable up to a byte."""
        if self._bytes >= MARKS_BYTES_MAX:
            self.begin(generation, durable)
        else:
            self._bytes += self._file.append([encode_mark(generation, durable)])

    def close(self) -> None:
        """Release the file."""
        self._file.close()


class EntryLog:
    """The entries after a snapshot, in one file that is only appended to or replaced whole.

    Args:
        disk: where.
        path: the directory.
        directory: its id.
        scan: what the file holds.
        entries: the entries after the snapshot.
    """

    def __init__(
        self, disk: Disk, path: str, directory: int, scan: RecordScan, entries: Sequence[Entry]
    ) -> None:
        self._disk, self._path, self._directory = disk, path, directory
        self._file: File = disk.open(f"{path}/{LOG_NAME}")
        self._marks = Marks(disk, path)
        self._end = self._durable = scan.end
        self._generation = scan.header.generation if scan.header else 0
        self._tail = list(entries)

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return self._end

    def settle(self, is_proven: bool, base_index: int, base_term: int) -> None:
        """Make what was read at the start count as durable.

        What no mark proves may exist in memory only: after a failed sync the kernel calls the pages
        clean, so that the next sync succeeds without writing them. It is therefore written again,
        to a new file.
        """
        if is_proven:
            self._file.truncate(self._end)
            self._marks.begin(self._generation, self._end)
        else:
            self.rewrite(base_index, base_term)

    def append(self, entries: Sequence[Entry]) -> None:
        """Return when the entries are durable; they replace those with the same indexes."""
        records = list(encode_records(entries, self._end, self._durable))
        self._end += self._file.append(records)
        self._file.sync()
        self._keep(entries)
        self._durable = self._end
        self._marks.append(self._generation, self._durable)

    def _keep(self, entries: Sequence[Entry]) -> None:
        if self._tail:
            del self._tail[max(0, entries[0].index - self._tail[0].index) :]
        self._tail += entries

    def forget(self, index: int) -> None:
        """Leave the entries up to `index` out of the next rewrite."""
        if self._tail:
            del self._tail[: max(0, index - self._tail[0].index + 1)]

    def rewrite(self, base_index: int, base_term: int) -> None:
        """Replace the file by one that starts after the entry `base_index`."""
        self._generation = (self._generation + 1) & 0xFFFFFFFF
        header = RecordHeader(self._directory, self._generation, base_index, base_term).encode()
        parts = [header, *encode_records(self._tail, len(header), len(header))]
        write_whole(self._disk, self._path, LOG_NAME, parts)
        self._file.close()
        self._file = self._disk.open(f"{self._path}/{LOG_NAME}")
        self._end = self._durable = sum(map(len, parts))
        self._marks.begin(self._generation, self._durable)

    def restart(self, base_index: int, base_term: int) -> None:
        """Drop all entries and start after the entry `base_index`, which a snapshot holds."""
        self._tail.clear()
        self.rewrite(base_index, base_term)

    def close(self) -> None:
        """Release the files."""
        self._file.close()
        self._marks.close()
