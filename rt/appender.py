"""Appender: puts whole frames at the end of a log directory, and nothing but whole frames."""

import os
import threading
from collections.abc import Sequence
from typing import NewType

from rt.active_file import ActiveFile, Facts
from rt.disk import Disk, File, Span
from rt.errors import CorruptLog, ManifestError, Misuse
from rt.frame import Header
from rt.manifest import FILE_NAME, Archived, Identity, Manifest, Rolled, encode_entry
from rt.position import Position, file_position
from rt.recovery import Corrupt, Torn
from rt.walk import Walk

# An acknowledgement of durability can only be built from this, and only `Appender.sync` makes one.
Durable = NewType("Durable", Position)


class Appender:
    """The growing end of one log directory.

    The publisher's writer, the receiving end of a replicator and the merge all append through
    this, so that files are rolled, indexed and recovered in one way. One thread appends; another
    may call `sync`.
    """

    def __init__(self, disk: Disk, directory: str, identity: Identity) -> None:
        """Open the log in `directory`; make it, with `identity`, if there is none.

        Raises:
            ManifestError: the manifest is damaged.
        """
        self.disk = disk
        self.directory = directory
        self.torn: Torn | None = None
        self._file: ActiveFile | None = None
        self._closing = threading.Lock()  # a file is not closed while it is being synced
        disk.make_directory(directory)
        path = os.path.join(directory, FILE_NAME)
        self._manifest_file: File = disk.open(path, create=True)
        self.manifest = load_manifest(self._manifest_file, path)
        if self.manifest.identity is None:
            self.record(identity)
        self.identity: Identity = self.manifest.identity or identity
        self.walk = Walk(self._last_rolled_end(), merged=self.identity.merged)

    @property
    def end(self) -> Position:
        """Where the next frame goes; the end of the last rolled file if no file is active."""
        return self.walk.position

    @property
    def is_open(self) -> bool:
        """Whether a file is active."""
        return self._file is not None

    @property
    def facts(self) -> Facts:
        """What the active file holds; nothing if there is none."""
        return Facts() if self._file is None else self._file.facts

    @property
    def next_number(self) -> int:
        """The number the next message gets: sequence number, or number in the merged stream."""
        if self.facts.frames:
            return self.facts.next
        order = self.manifest.order
        return self.manifest.rolled[order[-1]].next if order else 0

    def recover(self, *, durable: int = 0, cut: bool = True) -> None:
        """Go on where the last life of this log ended: judge its active file, if there is one.

        Args:
            durable: up to where the log is known to have been durable.
            cut: whether to cut a torn tail, which a copy fetches again; a publisher leaves the
                bytes of its older runs as they are.

        Raises:
            CorruptLog: durable bytes are damaged; nothing was changed.
        """
        start = self._active_start()
        if start is None:
            return
        file = ActiveFile(self.disk, self._path(start), start, merged=self.identity.merged)
        verdict, walk = file.recover(durable=durable)
        if isinstance(verdict, Corrupt):
            file.close()
            raise CorruptLog(self._path(start), verdict.at, verdict.reason)
        if isinstance(verdict, Torn):
            self.torn = verdict
            if cut:
                file.cut(verdict.at.offset)
        self._file, self.walk = file, walk

    def begin_file(self, start: Position) -> None:
        """Make the file that starts at `start` the active one; the last must have been rolled.

        Raises:
            Misuse: there is still an active file, or `start` lies before the end.
        """
        if self._file is not None or start < self.end:
            raise Misuse(f"{self._path(start)} cannot follow {self.end} in {self.directory}")
        self._file = ActiveFile(self.disk, self._path(start), start, merged=self.identity.merged)
        self.walk = Walk(start, merged=self.identity.merged)

    def append(
        self,
        parts: Sequence[bytes | memoryview],
        headers: Sequence[Header],
        after: Walk,
        copied: Span | None = None,
    ) -> None:
        """Append frames.

        Args:
            parts: the bytes of the frames, in any cut.
            headers: the frames, those in `copied` too, in order.
            after: a copy of `walk` that took these headers, so that their places were checked.
            copied: bytes of another log's file that follow `parts`, copied inside the kernel.

        Raises:
            OSError: the bytes could not be written; the log ends where it did.
        """
        self._active().append(parts, headers, copied)
        self.walk = after

    def cut(self, position: Position) -> None:
        """End the log at a frame of its active file: what follows is about to be written again."""
        file = self._active()
        file.cut(position.offset)
        self._close_file()
        self._file = ActiveFile(
            self.disk, self._path(position), position.file, merged=self.identity.merged
        )
        _, self.walk = self._file.recover(durable=0)

    def read(self, position: Position, length: int) -> bytes:
        """Read up to `length` bytes at a position, from the file it lies in."""
        file = self.disk.open_read(self._path(position))
        try:
            return file.pread(length, position.offset)
        finally:
            file.close()

    def sync(self) -> Durable:
        """Return the end as it stood when the sync began, now durable. A failure is final."""
        end = self.walk.position  # read before the file: a roll in between has synced the old one
        with self._closing:
            if self._file is not None:
                self._file.sync()
        return Durable(end)

    def roll(self, at_ns: int) -> Rolled:
        """End the active file: sync it, then write the line that makes its end a fact."""
        number, facts, end = self.next_number, self.facts, self.sync()
        line = Rolled(
            end.file,
            end.offset,
            facts.first if facts.frames else number,
            number,
            facts.first_time_ns,
            facts.last_time_ns,
            at_ns,
        )
        self.record(line)
        self._close_file()
        return line

    def record(self, entry: Identity | Rolled | Archived) -> None:
        """Write a manifest line and sync it, before the act it speaks of."""
        self.manifest.add(entry)
        self._manifest_file.append([encode_entry(entry)])
        self._manifest_file.sync()

    def close(self) -> None:
        """Write the index and release the files; nothing is synced by this."""
        self._close_file()
        self._manifest_file.close()

    def _active(self) -> ActiveFile:
        if self._file is None:
            raise Misuse(f"no file of {self.directory} is open to append to")
        return self._file

    def _close_file(self) -> None:
        with self._closing:
            if self._file is not None:
                self._file.close()
            self._file = None

    def _path(self, start: Position) -> str:
        return os.path.join(self.directory, start.file_name)

    def _last_rolled_end(self) -> Position:
        order = self.manifest.order
        return Position(order[-1] + self.manifest.rolled[order[-1]].end) if order else Position(0)

    def _active_start(self) -> Position | None:
        order = self.manifest.order
        newest = max(log_files(self.disk, self.directory), default=None)
        return None if newest is None or (order and newest <= order[-1]) else newest


def log_files(disk: Disk, directory: str) -> list[Position]:
    """Return where the log files in a directory start, oldest first; other names are left alone."""
    starts = (file_position(name) for name in disk.names(directory))
    return sorted(start for start in starts if start is not None)


def load_manifest(file: File, path: str) -> Manifest:
    """Read a manifest for its owner, who cuts a last line that was never finished.

    Raises:
        ManifestError: a finished line is damaged; names the file.
    """
    manifest = Manifest()
    try:
        manifest.feed(file.pread(file.size(), 0))
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from None
    if manifest.length < file.size():
        file.truncate(manifest.length)
    return manifest
