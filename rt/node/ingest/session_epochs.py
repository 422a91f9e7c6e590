"""BegunCopies: after which instructions a node's copies of sessions were begun."""

import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from rt.errors import Misuse, Refused
from rt.log.files.disk import Disk, File
from rt.log.write.syncer import SPACE_ERRORS

_log: Final = logging.getLogger("rt.node")
_NAME: Final = ".begun"  # no session has such a name
_DRAFT: Final = ".begun.new"
_BYTES_MAX: Final = 64 << 20


class Begun(NamedTuple):
    """Copies of a session from before an instruction are gone.

    Attributes:
        after: the index of the instruction.
        retired: the ids of logs that may not be pushed again, with spaces between; "" if any may.
    """

    after: int = 0
    retired: str = ""


class BegunCopies:
    """A small file beside the copies, rewritten once for all copies that a step drops.

    An instruction may be executed again after a crash, when a new copy has been begun in the place
    of the one that it dropped; with this file a node knows that the new one is not meant.

    Threads: any may read; only the thread that steps the duties calls `begin` and `finish`. What is
    known is replaced and never changed.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        """Read what the last process left."""
        self._disk = disk
        self._root = root
        self._begun = _read(disk, os.path.join(root, _NAME))
        self._unfinished: dict[str, Begun] = {}
        self._is_late = False

    def get(self, session: str) -> Begun:
        """Return what is known of a session's copies."""
        return self._begun.get(session, _NEVER)

    @property
    def is_unfinished(self) -> bool:
        """Whether copies are still to be removed, or that they were is still to be recorded."""
        return bool(self._unfinished)

    def begin(self, ended: Mapping[str, Begun]) -> list[str]:
        """Let nothing be begun in these sessions before `finish`; return those this is new for.

        Args:
            ended: by session, the instruction that ended its copies.
        """
        fresh = {name: begun for name, begun in ended.items() if self.get(name).after < begun.after}
        self._unfinished = {**self._unfinished, **fresh}
        self._begun = {**self._begun, **fresh}
        return list(fresh)

    def finish(
        self, remove: Callable[[list[str]], None], is_needed: Callable[[str, Begun], bool]
    ) -> None:
        """Remove the copies, and record durably that they are gone.

        While the disk has no room, this is left to the next call.

        Args:
            remove: removes the copies of these sessions, if there are any.
            is_needed: whether a session's entry is still to be kept.

        Raises:
            OSError: the disk failed.
        """
        if not self._unfinished:
            return
        known = {each: begun for each, begun in self._begun.items()
                 if each in self._unfinished or is_needed(each, begun)}  # fmt: skip
        try:
            remove(list(self._unfinished))
            self._save(known)
        except OSError as error:
            if error.errno not in SPACE_ERRORS:
                raise
            if not self._is_late:
                _log.error("copies of sessions that ended are not removed: %s", error)
            self._is_late = True
            return
        self._begun, self._unfinished, self._is_late = known, {}, False

    def _save(self, known: Mapping[str, Begun]) -> None:
        self._disk.make_directory(self._root)
        draft = os.path.join(self._root, _DRAFT)
        file = self._disk.open(draft, create=True)
        try:
            _write(file, json.dumps(known).encode())
        finally:
            file.close()
        self._disk.replace(draft, os.path.join(self._root, _NAME))

    def is_retired(self, session: str, log: str) -> bool:
        """Whether this log of the session may not be pushed again."""
        return log in self.get(session).retired.split()

    def demand_not_retired(self, session: str, log: str) -> None:
        """Raise `Refused` if this log of the session was retired, or its copy is being removed."""
        if self.is_retired(session, log):
            raise Refused(
                "other-log",
                f"this log of session {session!r} was retired when the session was reset, "
                "forgotten or taken over, or expired; begin another: move its directory away, or "
                "publish under another name",
            )
        if session in self._unfinished:
            raise Refused("busy", f"the copy of session {session!r} is being removed")


_NEVER: Final = Begun()


def _write(file: File, data: bytes) -> None:
    file.truncate(0)
    file.append([data])
    file.sync()


def _read(disk: Disk, path: str) -> dict[str, Begun]:
    """Read the file, which no node has before its first session ends.

    Raises:
        Misuse: it is damaged. Without it a log that has ended could be merged a second time, and
            copies that were begun after it would be removed.
    """
    try:
        file = disk.open_read(path)
    except FileNotFoundError:
        return {}
    try:
        found: Any = json.loads(file.pread(_BYTES_MAX, 0))
        return {str(name): Begun(int(after), str(log)) for name, (after, log) in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Misuse(
            f"{path} is damaged, which says what sessions were reset or forgotten here; empty this "
            "node's directory, and it learns everything from the others"
        ) from None
    finally:
        file.close()
