"""BegunCopies: after which instructions a node's copies of sessions were begun."""

import json
import os
from typing import Any, Final, NamedTuple

from rt.errors import Misuse, Refused
from rt.log.disk import Disk, File

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
    """A small file beside the copies, rewritten whenever one is dropped.

    An instruction may be executed again after a crash, when a new copy has been begun in the place
    of the one that it dropped; with this file a node knows that the new one is not meant.

    Threads: any may read; only the thread that steps the duties calls `note`. What is known is
    replaced and never changed.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        """Read what the last process left."""
        self._disk = disk
        self._root = root
        self._begun = _read(disk, os.path.join(root, _NAME))

    def get(self, session: str) -> Begun:
        """Return what is known of a session's copies."""
        return self._begun.get(session, _NEVER)

    def note(self, session: str, begun: Begun) -> None:
        """Record durably that the copies from before an instruction are gone.

        Raises:
            OSError: it cannot be written; nothing is recorded.
        """
        known = {**self._begun, session: begun}
        self._disk.make_directory(self._root)
        draft = os.path.join(self._root, _DRAFT)
        file = self._disk.open(draft, create=True)
        try:
            _write(file, json.dumps(known).encode())
        finally:
            file.close()
        self._disk.replace(draft, os.path.join(self._root, _NAME))
        self._begun = known

    def demand_not_retired(self, session: str, log: str) -> None:
        """Raise `Refused` if this log of the session was retired."""
        if log in self.get(session).retired.split():
            raise Refused(
                "other-log",
                f"this log of session {session!r} was retired when the session was reset or "
                "forgotten; begin another: move its directory away, or publish under another name",
            )


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
