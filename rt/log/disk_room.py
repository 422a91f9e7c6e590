"""DiskRoom: bounds how many bytes the files of one session may hold on its publisher's disk."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from rt.errors import Misuse, SessionFull
from rt.format.manifest import Manifest
from rt.limits import KIB

_POLL_S: Final = 0.02
_BYTES_MIN: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class DiskLimit:
    """The most that a session's files may hold on its own disk; nodes are not concerned.

    Room returns as files are archived: those that the nodes have merged, if the session is shipped,
    or those that `keep_s` and `keep_bytes` of its `WriterSettings` give up. One call of
    `publish_many` may go beyond the limit, and so may what waits to be written, by an eighth of it.

    Attributes:
        bytes: of all files; at least 64 KiB, and no more than the file system has.
        on_full: raise an `error` before anything is taken, or `block` until there is room. To drop
            the oldest messages instead is not possible yet (ADR 17), except by the `keep_bytes` of
            a session that nothing ships.
        timeout_s: how long to block; None for ever. `SessionFull` says that it was too short.
    """

    bytes: int
    on_full: Literal["error", "block"] = "error"
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.bytes < _BYTES_MIN:
            raise Misuse(f"a disk limit of {self.bytes} bytes; use {_BYTES_MIN} or more")
        if self.on_full not in ("error", "block"):
            raise Misuse(
                f"on_full is {self.on_full!r}; use error or block (a session that nothing ships "
                "drops its oldest files by the keep_bytes of rt.WriterSettings)"
            )

    def demand_disk(self, directory: str) -> None:
        """Raise `Misuse` if the file system of a directory is smaller: it would fill first."""
        found = os.statvfs(directory)
        total = found.f_blocks * found.f_frsize
        if self.bytes > total:
            raise Misuse(
                f"a disk limit of {self.bytes} bytes is more than the {total} bytes of the file "
                f"system of {directory}; use less"
            )


class DiskRoom:
    """Admits messages while a session's files are below their limit.

    It is asked when a frame begins, so most messages cost nothing.

    Threads: any may call `admit`; nothing here changes.
    """

    def __init__(
        self, limit: DiskLimit, session: str, held: Callable[[], int], roll: Callable[[], None]
    ) -> None:
        """Prepare.

        Args:
            limit: how much the files may hold.
            session: its name, for errors.
            held: returns how much they hold.
            roll: ends the active file, so that it can be archived, too.
        """
        self._limit = limit
        self._session = session
        self._held = held
        self._roll = roll

    def admit(self, size: int, is_closed: Callable[[], bool]) -> None:
        """Return once there is room for this many bytes more.

        Args:
            size: of payloads, keys and columns.
            is_closed: ends the wait; the caller finds out for itself.

        Raises:
            SessionFull: there is no room, or not in time.
            WriterFailed: the disk failed.
        """
        timeout_s, end_s = self._limit.timeout_s, None
        if timeout_s is not None:
            end_s = time.monotonic() + timeout_s
        while True:
            held = self._held()
            if held + size <= self._limit.bytes or not held:
                return
            self._roll()
            is_late = end_s is not None and time.monotonic() >= end_s
            if self._limit.on_full == "error" or is_late:
                raise SessionFull(self._session, held, self._limit.bytes)
            if is_closed():
                return
            time.sleep(_POLL_S)


def held_bytes(known: Manifest, active: int) -> int:
    """Return how many bytes the files of a session hold; files are archived oldest first.

    Args:
        known: the session's manifest.
        active: bytes of the file that still grows.
    """
    total = active
    for file in reversed(known.order):
        if file in known.archived:
            break
        total += known.rolled[file].end
    return total
