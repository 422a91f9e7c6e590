"""CopiedLog: a log whose archived files are read from their copies."""

import os
import tempfile

from rt.errors import CorruptLog, Misuse
from rt.format.manifest import encode_entry
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import Disk, File, OsFile
from rt.offload.offload import OffloadedFile, copy_of, names_of_copies, proven
from rt.offload.store import Store
from rt.position import Position


class CopiedLog(LogDirectory):
    """A log whose archived files are read from their copies in a store.

    A copy is read into an unnamed file and checked as a whole before any byte of it is returned.
    """

    def __init__(self, path: str, store: Store, disk: Disk | None = None) -> None:
        """Read the log at `path`; `store` has the copies that `rt.offload.offload.offload` made."""
        super().__init__(path, disk)
        self._store = store
        self._names: set[str] = set()
        self._listed_at = -1  # the manifest's length when the store was listed
        self._kept: tuple[Position, OsFile] | None = None

    def is_gone(self, start: Position) -> bool:
        """Whether a file was archived and has no copy."""
        return super().is_gone(start) and not self._is_copied(start)

    def files(self) -> list[Position]:
        """Return the start positions of readable files, copies included, oldest first."""
        copied = (start for start in self.manifest.archived if not self.is_gone(start))
        return sorted({*super().files(), *copied})

    def open_file(self, start: Position) -> File:
        """Open a file, or the contents of its copy.

        Raises:
            CorruptLog: The copy is damaged, or belongs to another log.
        """
        if start not in self.manifest.archived:
            return super().open_file(start)
        if self._kept is None or self._kept[0] != start:
            self._drop()
            self._kept = (start, self._read_back(start))
        return OsFile(os.dup(self._kept[1].fileno()))

    def close(self) -> None:
        """Close the manifest and the copy."""
        super().close()
        self._drop()

    def _is_copied(self, start: Position) -> bool:
        if start.file_name not in self._names and self._listed_at != self.manifest.length:
            self._names = names_of_copies(self._store)
            self._listed_at = self.manifest.length
            if not self._names:
                raise Misuse(f"{self._store.address} holds no copies of a log")
        return start.file_name in self._names

    def _read_back(self, start: Position) -> OsFile:
        place = f"{self._store.address}/{start.file_name}"
        try:
            copy = copy_of(self._store, start.file_name)
            self._demand_ours(copy, place)
            with tempfile.TemporaryFile(prefix="rt-") as file:
                file.writelines(proven(self._store, copy))
                file.flush()
                return OsFile(os.dup(file.fileno()))
        except FileNotFoundError:
            raise CorruptLog(place, start, "its copy is gone") from None

    def _demand_ours(self, copy: OffloadedFile, place: str) -> None:
        line, identity = copy.line, self.manifest.identity
        ours = identity and encode_entry(identity) == copy.identity.encode() + b"\n"
        if not ours or self.manifest.rolled.get(line.file) != line:
            raise CorruptLog(place, line.file, "the copy is of another log")

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None
