"""SessionLog: a session's copy on a node, as the sequencer reads it: headers, no payload."""

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from rt.errors import CorruptLog, FrameError
from rt.format.frame import HEADER_BYTES, Header, parse_header
from rt.format.walk import Walk
from rt.log.directory import LogDirectory
from rt.log.disk import Disk, File
from rt.position import START, Position

# Small frames come many to a read; behind a large one the next read begins at the next header.
_READ_BYTES: Final = 4 * 1024


class Heading(NamedTuple):
    """A frame's header, parsed and as it stands in the file."""

    header: Header
    raw: bytes


class SessionLog:
    """One session's files, one of them open at a time."""

    __slots__ = ("_file", "_first", "_headings", "_start", "log")

    def __init__(self, disk: Disk, directory: str) -> None:
        self.log = LogDirectory(directory, disk)
        self._file: File | None = None
        self._start: Position | None = None
        self._first: Position | None = None  # where the headings that were read last begin
        self._headings: list[Heading] = []

    def file(self, start: Position) -> File:
        """Return the file that starts at `start`; `FileNotFoundError` if it is not there."""
        if self._file is None or self._start != start:
            self.close()
            self._file, self._start = self.log.open_file(start), start
        return self._file

    def next_place(self, after: Position) -> Position:
        """Return where the frame after `after` is: there, or in the next file that holds any."""
        self.log.refresh()
        known, place = self.log.manifest, after
        while self._is_passed(place):
            # a rolled file is named though it was archived: never a place beyond what is not here
            following = known.successor(place.file) or self._active_behind(place)
            if following is None:
                return after
            place = following
        return place

    def _is_passed(self, place: Position) -> bool:
        """Whether a file holds nothing from a place on, or is the first of a log without it."""
        end = self.log.manifest.rolled_end(place.file)
        if end is None and place == START:
            return not self.log.has_file(START)
        return end == place.offset

    def _active_behind(self, place: Position) -> Position | None:
        return next((start for start in self.log.files() if start > place), None)

    def is_archived(self, start: Position) -> bool:
        """Whether the bytes of the file that starts at `start` were given up."""
        self.log.refresh()
        return start in self.log.manifest.archived

    def headers(self, first: Position, end: Position, limit: int) -> list[Heading]:
        """Return the headers of the frames between two places of one file.

        What was returned last is kept, since a leader executes what it has just planned.

        Args:
            first: where the first frame is.
            end: where the last frame ends, at the latest.
            limit: bytes of frames to stop after; the first frame is taken whatever its size.

        Raises:
            CorruptLog: no frame of this session stands where one must.
        """
        if self._first != first or not self._holds(end, limit):
            self._first, self._headings = first, list(self._read(first, end, limit))
        length = 0
        taken: list[Heading] = []
        for heading in self._headings:
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

    def _read(self, first: Position, end: Position, limit: int) -> Iterator[Heading]:
        file, walk = self.file(first.file), Walk(first, merged=False)
        data, base = b"", first.offset
        while walk.position < end and walk.position - first <= limit:
            at = walk.position.offset - base
            if at + HEADER_BYTES > len(data):
                base, at = walk.position.offset, 0
                data = file.pread(min(_READ_BYTES, end - walk.position), base)
            try:
                header = parse_header(data, at)
                walk.step(header)
            except FrameError as error:
                path = os.path.join(self.log.path, first.file_name)
                raise CorruptLog(path, walk.position, str(error)) from None
            yield Heading(header, data[at : at + HEADER_BYTES])

    def close(self) -> None:
        """Release the files."""
        if self._file is not None:
            self._file.close()
        self._file, self._start = None, None
        self.log.close()


class SessionLogs:
    """The copies of all sessions on a node."""

    def __init__(self, disk: Disk, root: str) -> None:
        """Read below `root`, where each session has a directory of its name."""
        self._disk = disk
        self._root = root
        self._logs: dict[str, SessionLog] = {}

    def __getitem__(self, session: str) -> SessionLog:
        log = self._logs.get(session)
        if log is None:
            log = self._logs[session] = SessionLog(self._disk, os.path.join(self._root, session))
        return log

    def forget(self, session: str) -> None:
        """Look at a session anew: its directory is another one now."""
        log = self._logs.pop(session, None)
        if log is not None:
            log.close()

    def close(self) -> None:
        """Release all files."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()
