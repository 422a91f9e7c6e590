"""ActiveFile: the one log file that is still growing, with its index and its totals."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rt.errors import DiskFailed, FrameError
from rt.format.frame import HEADER_BYTES, FrameKind, Header, parse_header
from rt.format.index import ENTRY_BYTES, SUFFIX, Index, IndexEntry, Indexer, encode_index
from rt.format.recovery import Corrupt, Verdict, judge
from rt.format.seek import walk_before
from rt.format.walk import Walk
from rt.log.files.disk import Disk, File, Span
from rt.position import Position

# Index entries are written only after their frames are synced, because a power cut may lose the
# bytes before a frame and keep the frame. Up to this many entries are buffered: recovery scans and
# rewrites what follows the last entry, which is then at most some 2 MiB.
_INDEX_BUFFER: Final = 8
# Plain integers: looking up an enum member takes 0.1 us.
_CONTROL, _RANGE = int(FrameKind.CONTROL), int(FrameKind.RANGE)


@dataclass(slots=True)
class Facts:
    """The values of a file's manifest line, counted from the frames' headers."""

    frames: int = 0
    first: int = 0
    next: int = 0
    first_time_ns: int = 0
    last_time_ns: int = 0

    def add(self, header: Header) -> None:
        """Add a frame to the totals, unless it is a control frame."""
        if header.kind == _CONTROL:
            return
        if not self.frames:
            self.first, self.first_time_ns = header.sequence, header.time_ns
        self.frames += 1
        self.next = header.sequence + header.messages
        self.last_time_ns = header.time_ns


class ActiveFile:
    """Appends whole frames to a file, and keeps its index and totals up to date."""

    __slots__ = (
        "_disk", "_end", "_file", "_index_file", "_indexer", "_path", "_pending", "_session",
        "_synced", "facts", "last_frame", "start",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, path: str, start: Position, *, merged: bool, session: str
    ) -> None:
        """Open the file at `path`, creating it if it does not exist."""
        self.start = start
        self.facts = Facts()
        self.last_frame: Position | None = None  # where the last whole frame begins
        self._session = session
        self._synced = 0
        self._disk = disk
        self._path = path  # "" once the index could not be written
        self._index_file: File | None = None
        self._file: File = disk.open(path, create=True)
        try:
            self._end = self._file.size()
            disk.open(path + SUFFIX, create=True).close()
        except OSError:
            self._file.close()
            raise
        self._pending: list[IndexEntry] = []
        self._indexer = Indexer(merged=merged)

    def recover(
        self, *, durable: int, whole: bool = False, own: bool = True
    ) -> tuple[Verdict, Walk]:
        """Judge, count and rewrite the file's bytes, and cut wrong index entries.

        Reading starts at the last index entry, so that a restart does not read the whole file. The
        whole file is read if `whole` is set or the index leads to no whole frame.

        Args:
            durable: a position up to which the log is known to have been durable.
            whole: whether to check the whole file.
            own: whether durable positions in the headers refer to this disk.

        Returns:
            The verdict, and a walk at the end of the whole frames.
        """
        try:
            return self._recover(durable, whole=whole, own=own)
        finally:
            self._release_index()

    def _recover(self, durable: int, *, whole: bool, own: bool) -> tuple[Verdict, Walk]:
        size = self._file.size()
        walk = walk_before(
            self._file.pread,
            self._index(),
            self.start,
            lambda entry: entry.offset >= size,
            merged=self._indexer.merged,
            session=self._session,
        )
        begin = walk.position
        if not whole and begin.offset and self._count_first():
            verdict = self._judge(walk, size, durable, own=own)
            if walk.position > begin:
                self._write_again(verdict, begin.offset)
                return verdict, walk
            begin = self.start
        self.facts = Facts()
        walk = Walk(self.start, merged=self._indexer.merged, session=self._session)
        verdict = self._judge(walk, size, durable, own=own)
        self._write_again(verdict, begin.offset)
        return verdict, walk

    def _write_again(self, verdict: Verdict, proven: int) -> None:
        """Make the next sync write everything that no earlier sync is known to have written.

        After a failed sync, bytes that can be read may exist only in memory. An index entry is
        written after its frame was synced, so the last entry proves everything before it durable.
        """
        if not isinstance(verdict, Corrupt):
            self._file.write_again(proven)

    def _count_first(self) -> bool:
        try:
            self.facts.add(parse_header(self._file.pread(HEADER_BYTES, 0)))
        except FrameError:
            return False
        return self.facts.frames > 0

    def _judge(self, walk: Walk, size: int, durable: int, *, own: bool) -> Verdict:
        self._cut_index(walk.position.offset)
        offset = walk.position.offset

        def seen(header: Header) -> None:
            nonlocal offset
            self._note(header, offset)
            offset += header.size

        return judge(self._file.pread, size, walk, durable=durable, own=own, seen=seen)

    def append(
        self,
        parts: Sequence[bytes | memoryview],
        headers: Sequence[Header],
        copied: Span | None = None,
    ) -> None:
        """Append frames: the bytes of `parts`, then the `copied` bytes of another log's file.

        Raises:
            OSError: the write failed, for example on a full disk; partly written frames were
                removed.
            DiskFailed: the write failed, and partly written frames could not be removed.
        """
        end = self._end
        try:
            self._file.append(parts)
            if copied is not None:
                self._file.copy(*copied)
        except (OSError, EOFError):
            take_back(self._file, end)
            raise
        for header in headers:
            self._note(header, self._end)
            self._end += header.size

    def cut(self, length: int) -> None:
        """Cut the file after its last whole frame; what follows was never acknowledged."""
        self._file.truncate(length)
        self._end = length

    def sync(self) -> None:
        """Return once the file's bytes and length are on stable storage."""
        end = self._end  # read first, because the sync may not cover later appends
        self._file.sync()
        self._synced = end

    def close(self) -> None:
        """Write the remaining index entries and close the files."""
        self._write_index()
        self.abandon()

    def abandon(self) -> None:
        """Close the files without writing anything."""
        try:
            self._close_index()
        finally:
            self._file.close()

    def _note(self, header: Header, offset: int) -> None:
        self.last_frame = Position(self.start + offset)
        if self._indexer.merged and header.kind != _RANGE:
            return
        self.facts.add(header)
        if entry := self._indexer.add(header, offset):
            self._pending.append(entry)
            place = len(self._pending) - _INDEX_BUFFER
            if place >= 0 and self._pending[place].offset <= self._synced:
                self._write_index()

    def _write_index(self) -> None:
        known = bisect_right(self._pending, self._synced, key=lambda entry: entry.offset)
        try:
            if known and self._path:
                self._open_index().append([encode_index(self._pending[:known])])
        except OSError:
            self._path = ""  # the log continues without its index, which can be rebuilt
        del self._pending[:known]
        self._release_index()

    def _cut_index(self, offset: int) -> None:
        self._pending.clear()
        index = self._index()
        kept = index.count(lambda entry: entry.offset >= offset)
        self._open_index().truncate(kept * ENTRY_BYTES)
        self._indexer.go_on(index[kept - 1] if kept else None)

    def _index(self) -> Index:
        file = self._open_index()
        return Index(file.pread, file.size())

    def _open_index(self) -> File:
        if self._index_file is None:
            self._index_file = self._disk.open(self._path + SUFFIX)
        return self._index_file

    def _release_index(self) -> None:
        """Close a session's index, written only every 2 MiB, because a node has many sessions."""
        if not self._indexer.merged:
            self._close_index()

    def _close_index(self) -> None:
        file, self._index_file = self._index_file, None
        if file is not None:
            file.close()


def take_back(file: File, end: int) -> None:
    """Remove a partial write after `end`; `DiskFailed` if that fails."""
    try:
        file.truncate(end)
    except OSError as error:
        raise DiskFailed(error.errno, error.strerror) from error
