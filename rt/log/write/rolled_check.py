"""RolledCheck: checks, slice by slice, that a rolled file matches its manifest line."""

import os
from bisect import bisect_left
from contextlib import suppress

from rt.errors import CorruptLog, FrameError
from rt.format.chain import Chain
from rt.format.frame import FrameKind
from rt.format.manifest import LogIdentity, Manifest, Rolled
from rt.format.ranges import EMPTY_DIGEST
from rt.format.scan import Frame, Scan
from rt.format.walk import Walk
from rt.limits import READ_BYTES
from rt.log.files.disk import UNREADABLE, Disk, File, OsFile
from rt.log.write.active_file import Facts
from rt.position import START, Position


class RolledCheck:
    """Checks a rolled file in one pass: frames, numbers, times and, in a merged log, the digest.

    The digest at the end of a merged file follows from the previous file's line and from all
    headers, which contain the CRC of each body. So a merged file that passes is the one the nodes
    agreed on.
    """

    def __init__(
        self, disk: Disk, path: str, identity: LogIdentity, known: Manifest, line: Rolled
    ) -> None:
        """Prepare to check a file; `line` is the file's line in `known`, the log's manifest."""
        self.path = path
        self.is_closed = False  # nothing more will be read
        self._disk = disk
        self._line = line
        self._end = line.end
        walk = Walk(line.file, merged=identity.merged, session=identity.session)
        self._chain = Chain(merged=identity.merged)
        self._chain.skip(line.first)
        self._chain.digest = _digest_before(known, line)
        self._facts = Facts()
        self._file: File | None = None
        self._scan = Scan(self._pread, walk)

    @property
    def position(self) -> Position:
        """How far the file was checked without finding damage."""
        return self._scan.walk.position

    def step(self, bytes_max: int) -> bool:
        """Check the next frames, at least one; return whether the whole file has been checked.

        Raises:
            CorruptLog: the file is not the one that its line describes; it was closed.
            OSError: the disk failed in another way; the file was closed.
        """
        last = self.position.offset + max(1, bytes_max)
        try:
            while (at := self.position.offset) < self._end:
                if at >= last:
                    return False
                self._take(self._next())
            self._demand_line()
        except (CorruptLog, OSError):
            self.close()
            raise
        self.close()
        return True

    def close(self) -> None:
        """Close the file; idempotent."""
        self.is_closed = True
        if self._file is not None:
            self._file.close()
            self._file = None

    def _pread(self, length: int, offset: int) -> bytes:
        if self._file is None:
            self._file = self._disk.open_read(self.path)
            _forget_cached(self._file)
        return self._file.pread(length, offset)

    def _next(self) -> Frame:
        at = self.position
        try:
            frame = self._scan.next(self._end)
        except FrameError as error:
            raise CorruptLog(self.path, at, str(error)) from None
        except FileNotFoundError:
            raise CorruptLog(self.path, at, "the file is missing") from None
        except OSError as error:
            raise _unreadable(error, self.path, at) from None
        if frame is None:
            raise CorruptLog(self.path, at, "the file is shorter than it was")
        return frame

    def _take(self, frame: Frame) -> None:
        walk, header = self._scan.walk, frame.header
        self._chain.add(header, frame.position, walk.range)
        if not walk.merged or header.kind == FrameKind.RANGE:
            self._facts.add(header)

    def _demand_line(self) -> None:
        """Raise `CorruptLog` unless the file matches its manifest line."""
        line, facts, chain = self._line, self._facts, self._chain
        reason = "" if self._scan.walk.at_boundary else "the range is incomplete"
        chain.finish()
        held = (facts.first, facts.next, facts.first_time_ns, facts.last_time_ns)
        if facts.frames and held != (line.first, line.next, line.first_time_ns, line.last_time_ns):
            reason = reason or "its numbers and times are not those that the manifest lists"
        if line.digest and line.end and (chain.digest or b"").hex() != line.digest:
            reason = reason or "its digest is not the one that the manifest lists"
        if chain.faults or reason:
            raise CorruptLog(self.path, line.file, chain.faults[0] if chain.faults else reason)


def check_rolled(
    disk: Disk, path: str, identity: LogIdentity, known: Manifest, line: Rolled
) -> None:
    """Check a whole rolled file at once; arguments and errors as for `RolledCheck`."""
    check = RolledCheck(disk, path, identity, known, line)
    while not check.step(READ_BYTES):
        pass


def line_before(known: Manifest, line: Rolled) -> Rolled | None:
    """Return the line of the previous file; None if `line` is the first one known."""
    place = bisect_left(known.order, line.file)
    return known.rolled[known.order[place - 1]] if place else None


def _digest_before(known: Manifest, line: Rolled) -> bytes | None:
    """Return a merged log's digest at the start of a file; None if it is not known."""
    if line.file == START:
        return EMPTY_DIGEST
    before = line_before(known, line)
    return bytes.fromhex(before.digest) if before is not None and before.digest else None


def _unreadable(error: OSError, path: str, at: Position) -> CorruptLog | OSError:
    if error.errno in UNREADABLE:
        return CorruptLog(path, at, f"it cannot be read: {os.strerror(error.errno or 0)}")
    return error


def _forget_cached(file: File) -> None:
    """Drop the file from the page cache, which may still hold bytes that the disk has lost."""
    if isinstance(file, OsFile):
        with suppress(OSError):  # a file system without a cache
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
