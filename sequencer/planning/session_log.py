"""SessionLog: reads frame headers, and on request whole frames, of a node's copy of a session."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from rt.errors import CorruptLog, FrameError
from rt.format.frame import HEADER_BYTES, body_matches, parse_header
from rt.format.manifest import Manifest
from rt.format.ranges import Range
from rt.format.walk import Walk
from rt.log.files.damaged_files import DamagedFiles
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import Disk, File
from rt.log.write.appender import Appender
from rt.log.write.recent_frames import Appended, Heading
from rt.position import START, Position
from sequencer.planning.session_records import SessionRecords

# One read covers many small frames; after a large frame the next read begins at the next header.
_READ_BYTES: Final = 4 * 1024
# Copies kept open, at 2 KB each; most sessions are idle. If more sessions than this send at once,
# each copy is reopened for each instruction, which takes some 0.1 ms.
_OPEN_MAX: Final = 1024


class SessionLog:
    """SessionLog: reads one session's copy, from memory while its frames are there, or from files.

    Only one of the files is open at a time.
    """

    __slots__ = ("_copy", "_data", "_file", "_first", "_headings", "_start", "log")

    def __init__(
        self, log: LogDirectory, copy: Callable[[], Appender | None] = lambda: None
    ) -> None:
        """Read a log; `copy` returns its appender, or None if this process has none for it."""
        self.log = log
        self._copy = copy
        self._file: File | None = None
        self._start: Position | None = None
        self._first: Position | None = None  # where the headings last read begin
        self._headings: list[Heading] = []
        self._data = b""  # the bytes `headers` has just read, from `_first` on

    def file(self, start: Position) -> File:
        """Return the file that starts at `start`; `FileNotFoundError` if it is not there."""
        if self._file is None or self._start != start:
            self.close()
            self._file, self._start = self.log.open_file(start), start
        return self._file

    @property
    def manifest(self) -> Manifest:
        """The manifest as it is now."""
        copy = self._copy()
        if copy is not None:
            return copy.manifest
        self.log.refresh()
        return self.log.manifest

    def received(self, first: Position, end: Position) -> Appended | None:
        """Return the frames between two positions if all are in memory, checked on arrival.

        The copy's next sync compares its file with these frames, since they were used from memory.
        """
        copy = self._copy()
        recent = None if copy is None else copy.recent
        frames = None if recent is None else recent.between(first, end)
        if recent is None or frames is None or frames.end != end:
            return None
        return frames if recent.use(frames) else None

    def next_place(self, after: Position) -> Position:
        """Return where the next frame begins: at `after`, or in a later file if one ends there."""
        known, place = self.manifest, after
        while self._is_passed(known, place):
            # An archived file is still named here: its bytes must not be skipped.
            following = known.successor(place.file) or next(
                (start for start in self.log.files() if start > place), None
            )
            if following is None:
                return after
            place = following
        return place

    def _is_passed(self, known: Manifest, place: Position) -> bool:
        """Whether the next frame is not at `place` but in a later file.

        This is so if the file was rolled at `place`, or if `place` is the start of the session and
        the first file does not exist.
        """
        end = known.rolled_end(place.file)
        if end is None and place == START:
            return not self.log.has_file(START)
        return end == place.offset

    def is_archived(self, start: Position) -> bool:
        """Whether the file that starts at `start` was archived."""
        return start in self.manifest.archived

    def header_at(self, position: Position) -> bytes | None:
        """Return the raw header at a position, cut short by the file's end; None without a file.

        Opens and closes the file each time, since the copy may not be read again for long.
        """
        try:
            file = self.log.open_file(position.file)
        except FileNotFoundError:
            return None
        try:
            return file.pread(HEADER_BYTES, position.offset)
        finally:
            file.close()

    def ends_before(self, end: Position) -> bool:
        """Whether the file of position `end` was rolled before it reached `end`."""
        rolled = self.manifest.rolled_end(end.file)
        return rolled is not None and rolled < end.offset

    def lacks_file(self, position: Position) -> bool:
        """Whether the file of a position is missing, although the copy has others."""
        try:
            self.file(position.file)  # stays open: it is read next
        except FileNotFoundError:
            return bool(self.log.disk.names(self.log.path))
        return False

    def headers(
        self, first: Position, end: Position, limit: int, *, is_taken: bool = False
    ) -> list[Heading]:
        """Return the headers of the frames between two positions of one file.

        The latest result is cached, since a leader executes what it has just planned.

        Args:
            first: position of the first frame.
            end: the last frame ends here or earlier.
            limit: the most bytes of frames; the first frame may be larger.
            is_taken: whether `take_bytes` will follow, so that whole frames are read at once.

        Raises:
            CorruptLog: there is no frame of this session where there must be one.
        """
        self._data = b""
        copy = self._copy()
        recent = None if copy is None else copy.recent
        frames = None if recent is None else recent.between(first, end)
        if frames is not None and frames.end >= min(end, first + limit):
            headings = frames.headings
        else:
            if self._first != first or not self._holds(end, limit):
                ahead = limit if is_taken else _READ_BYTES
                self._first, self._headings = first, list(self._read(first, end, limit, ahead))
            headings = self._headings
        length = 0
        taken: list[Heading] = []
        for heading in headings:
            length += heading.header.size
            if (taken and length > limit) or first + length > end:
                break
            taken.append(heading)
        return taken

    def _holds(self, end: Position, limit: int) -> bool:
        last = self._headings[-1].header if self._headings else None
        return last is not None and last.position + last.size >= min(
            end, (self._first or 0) + limit
        )

    def _read(self, first: Position, end: Position, limit: int, ahead: int) -> Iterator[Heading]:
        file, walk = self.file(first.file), Walk(first, merged=False)
        data, base = b"", first.offset
        while walk.position < end and walk.position - first <= limit:
            at = walk.position.offset - base
            if at + HEADER_BYTES > len(data):
                base, at = walk.position.offset, 0
                data = file.pread(ahead, base)  # a frame that straddles `end` is not damage
                self._data = data if base == first.offset else b""
            try:
                header = parse_header(data, at)
                walk.step(header)
            except FrameError as error:
                path = os.path.join(self.log.path, first.file_name)
                raise CorruptLog(path, walk.position, str(error)) from None
            yield Heading(header, data[at : at + HEADER_BYTES])

    def take_bytes(self, first: Position, length: int) -> bytes:
        """Return the bytes of the frames that `headers` returned; fewer at the end of the file.

        If `headers` answered from its cache, the bytes are read now. They are not kept: for 100,000
        sessions that would be 400 MB.
        """
        data, self._data = self._data, b""
        if self._first == first and length <= len(data):
            return data[:length]
        return self.file(first.file).pread(length, first.offset)

    def close(self) -> None:
        """Release the files."""
        if self._file is not None:
            self._file.close()
        self._file, self._start = None, None
        self.log.close()


class SessionLogs:
    """SessionLogs: reads a node's copies of sessions, and keeps the last used ones open."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        copy: Callable[[str], Appender | None] = lambda _session: None,
    ) -> None:
        """Read below `root`, where each session has a directory of its name.

        Args:
            disk: the disk with the copies.
            root: the directory of the copies.
            copy: returns the present appender of a session's copy, if this process appends to it.
        """
        self.copy = copy
        self._disk = disk
        self._root = root
        self._damaged = DamagedFiles()  # empty: the sequencer may read every file
        self._logs: dict[str, SessionLog] = {}  # least recently read first
        self.records = SessionRecords(self.forget)

    def __getitem__(self, session: str) -> SessionLog:
        log = self._logs.pop(session, None)
        if log is None:
            if len(self._logs) >= _OPEN_MAX:
                self._logs.pop(next(iter(self._logs))).close()
            directory = LogDirectory(os.path.join(self._root, session), self._disk, self._damaged)
            log = SessionLog(directory, partial(self.copy, session))
        self._logs[session] = log
        return log

    def forget(self, session: str) -> None:
        """Close a session's copy, and remove its frames from memory."""
        log = self._logs.pop(session, None)
        if log is not None:
            log.close()
        if (copy := self.copy(session)) is not None and copy.recent is not None:
            copy.recent.clear()

    def close(self) -> None:
        """Release all files."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()


def merged_headers(appender: Appender, begin: Position, merged: Range) -> bytes:
    """Read from a merged log the raw headers of the session frames in a range.

    Args:
        appender: the merged log's appender.
        begin: position in the merged log of the first of these frames.
        merged: the range.

    Raises:
        CorruptLog: the merged log has other bytes there than these frames.
    """
    walk, parts = Walk(merged.first, merged=False), []
    while walk.position < merged.first + merged.length:
        at = Position(begin + (walk.position - merged.first))
        raw = appender.read(at, HEADER_BYTES)
        try:
            walk.step(parse_header(raw))
        except FrameError as error:
            path = f"{appender.directory}/{at.file_name}"
            raise CorruptLog(path, at, str(error)) from None
        parts.append(raw)
    return b"".join(parts)


def changed_frame(data: bytes, frames: Sequence[Heading]) -> Position | None:
    """Return the position of the first frame whose bytes no longer match its header, or None.

    The frames were checked when they arrived, perhaps long ago. Long ranges are copied without this
    check, since every reader of the merged log makes it.
    """
    offset, view = 0, memoryview(data)
    for header, raw in frames:
        body = offset + HEADER_BYTES
        padding, end = body + header.length, offset + header.size
        is_whole = view[offset:body] == raw and body_matches(header, view[body:padding])
        if not is_whole or any(view[padding:end]):
            return Position(header.position)
        offset = end
    return None


def is_header(raw: bytes) -> bool:
    """Whether these bytes are the whole header of a frame."""
    try:
        parse_header(raw)
    except FrameError:
        return False
    return True
