"""DiskRoom: limits how much a session's files may hold on its publisher's disk."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from rt.errors import Misuse, SessionFull
from rt.format.dropped_notice import NOTICE_BYTES
from rt.format.manifest import Manifest
from rt.limits import KIB
from rt.log.files.archived import is_dropped
from rt.log.write.checked import checked_count, checked_seconds

_POLL_S: Final = 0.02
_BYTES_MIN: Final = 64 * KIB
_FILES: Final = 8  # number of files that fit in the limit with `drop_oldest`
_ARCHIVED_S: Final = 5.0  # merged files are usually archived within two or three seconds
_FRAMES: Final = 8  # frames that fit in the limit, or in one of its files, at least
_DROPPING_BYTES_MIN: Final = _FILES * _BYTES_MIN
# Room is requested when a frame begins. Besides the frame, leave room for one message beyond it,
# its key offsets (at most a third more) and, in a new file, the notice.
_FRAMES_BEYOND: Final = 3


@dataclass(frozen=True, slots=True)
class DiskLimit:
    """How much a session's files may hold on the publisher's own disk; nodes are not affected.

    Archiving files frees room. If the session is shipped, a file is archived once the nodes have
    merged it; otherwise, once `keep_s` and `keep_bytes` of `WriterSettings` no longer keep it. A
    single call of `publish_many` may exceed the limit, and messages waiting to be written may
    exceed it by an eighth. With `drop_oldest`, only a call of `publish_many`, or a message larger
    than 1/64 of the limit, may exceed it.

    Attributes:
        bytes: limit for all files together; at least 64 KiB, or 512 KiB with `drop_oldest`, and no
            more than the size of the file system.
        on_full: `error` raises before anything is accepted; `block` waits until there is room;
            `drop_oldest` drops the oldest files that a pusher has not begun to send. Readers of the
            stream get an `rt.Dropped` in place of these files, and the publisher gets a
            `MessagesDropped`. A pusher sends at most half of the limit ahead of what is merged.
            Files from before the session was first opened with `drop_oldest` are kept. A session
            in a group cannot use `drop_oldest`.
        timeout_s: how long to block before raising `SessionFull`; None blocks for ever. With
            `drop_oldest`, how long to wait when no file can be dropped, because a pusher may have
            begun to send every file; None is 5 s.
        messages: limit on the number of messages in all files together; None for no limit. Numbers
            that the session skipped count too. Threads that publish at the same time may exceed
            the limit by one call each. It must be None with `drop_oldest`, which drops
            whole files.
    """

    bytes: int
    on_full: Literal["error", "block", "drop_oldest"] = "error"
    timeout_s: float | None = None
    messages: int | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None:
            checked_seconds(self.timeout_s, "timeout_s")
        if checked_count(self.bytes, "bytes", 0) < _BYTES_MIN:
            raise Misuse(f"a disk limit of {self.bytes} bytes; use {_BYTES_MIN} or more")
        if self.on_full not in ("error", "block", "drop_oldest"):
            raise Misuse(f"on_full is {self.on_full!r}; use error, block or drop_oldest")
        if self.messages is not None:
            checked_count(self.messages, "messages", 1)
            if self.drops:
                raise Misuse("a limit of messages drops none; use error or block")
        if self.drops and self.bytes < _DROPPING_BYTES_MIN:
            raise Misuse(
                f"a disk limit of {self.bytes} bytes; use {_DROPPING_BYTES_MIN} or more to drop "
                "the oldest messages, which go file by file"
            )

    @property
    def drops(self) -> bool:
        """Whether the oldest messages are dropped when the limit is reached."""
        return self.on_full == "drop_oldest"

    @property
    def patience_s(self) -> float | None:
        """Return how long to wait for room, in seconds; None for ever."""
        if self.on_full == "error":
            return 0.0
        is_default = self.drops and self.timeout_s is None
        return _ARCHIVED_S if is_default else self.timeout_s

    @property
    def file_bytes_max(self) -> int:
        """Return the maximum size of a file, which is the unit of dropping."""
        return self.bytes // _FILES

    @property
    def frame_bytes_max(self) -> int:
        """Return the maximum size of a frame; small, because one frame may exceed the limit."""
        return self.bytes // (_FRAMES * _FILES if self.drops else _FRAMES)

    @property
    def room_bytes(self) -> int:
        """Return how many bytes messages may fill; the rest of the limit is for overhead."""
        return self.bytes - (_FRAMES_BEYOND * self.frame_bytes_max if self.drops else 0)

    @property
    def empty_bytes(self) -> int:
        """Return how many bytes a session without messages holds: the notice of a new file."""
        return NOTICE_BYTES if self.drops else 0

    def demand_no_group(self, session: str, group: str) -> None:
        """Raise `Misuse` if the session is in a group and would drop its oldest messages."""
        if group and self.drops:
            raise Misuse(
                f"session {session!r} is of group {group!r}, whose messages cannot be dropped: "
                "use a disk limit that blocks, or raises an error"
            )

    def demand_disk(self, directory: str) -> None:
        """Raise `Misuse` if the directory's file system is smaller than the limit."""
        found = os.statvfs(directory)
        total = found.f_blocks * found.f_frsize
        if self.bytes > total:
            raise Misuse(
                f"a disk limit of {self.bytes} bytes is more than the {total} bytes of the file "
                f"system of {directory}; use less"
            )


class SessionFill(NamedTuple):
    """What a session's files hold, including what is about to be written to them."""

    bytes: int
    messages: int


class DiskRoom:
    """Admits messages while a session's files hold less than their limit.

    `admit` is called once for each frame, so most messages cost nothing.

    Threads: any thread may call `admit`; no field changes.
    """

    def __init__(
        self,
        limit: DiskLimit,
        session: str,
        held: Callable[[], SessionFill],
        make: Callable[[], bool],
    ) -> None:
        """Prepare; `held` returns how much the session's files hold now.

        `make` drops the oldest file if the limit allows that, and returns whether it did. If no
        file can be dropped, `make` ends the active file, so that this file can be dropped later.
        """
        self._limit = limit
        self._room_bytes = limit.room_bytes
        self._session = session
        self._held = held
        self._make = make

    def admit(self, size: int, messages: int, is_closed: Callable[[], bool]) -> int | None:
        """Wait for room; return how many messages fit, or None if messages are not limited.

        Args:
            size: bytes of payloads, keys and columns to be added.
            messages: how many messages to add.
            is_closed: returns True to end the wait early; the caller must then call it again.

        Raises:
            SessionFull: there is no room, even after waiting as long as the limit says.
            WriterFailed: the disk failed.
        """
        if self._fits(held := self._held(), size, messages):  # the usual case
            return self._left(held, messages)
        timeout_s, end_s = self._limit.patience_s, None
        if timeout_s is not None:
            end_s = time.monotonic() + timeout_s
        while True:
            held = self._held()
            if self._fits(held, size, messages) or held.bytes <= self._limit.empty_bytes:
                return self._left(held, messages)
            if self._make():
                continue
            is_late = end_s is not None and time.monotonic() >= end_s
            if is_late:
                raise self._full(held, size)
            if is_closed():
                return self._left(held, messages)
            time.sleep(_POLL_S)

    def _fits(self, held: SessionFill, size: int, messages: int) -> bool:
        most = self._limit.messages
        has_room = held.bytes + size <= self._room_bytes
        return has_room and (most is None or held.messages + messages <= most)

    def _left(self, held: SessionFill, messages: int) -> int | None:
        most = self._limit.messages
        return None if most is None else max(messages, most - held.messages)

    def _full(self, held: SessionFill, size: int) -> SessionFull:
        limit = self._limit
        if limit.messages is None or held.bytes + size > self._room_bytes:
            return SessionFull(self._session, held.bytes, limit.bytes)
        return SessionFull(self._session, held.messages, limit.messages, "messages")


def held_bytes(known: Manifest, active: int) -> int:
    """Return the bytes of a session's files; `active` is the size of the file that still grows."""
    total = active
    for file in reversed(known.order):
        if file not in known.archived:
            total += known.rolled[file].end
        elif not is_dropped(known, file):
            break
    return total


def first_held(known: Manifest, active: int) -> int:
    """Return the number of the first message that a session's files hold.

    Args:
        known: the session's manifest.
        active: the number with which the file that still grows begins.
    """
    first = active
    for file in reversed(known.order):
        if file in known.archived:
            break
        first = known.rolled[file].first
    return first
