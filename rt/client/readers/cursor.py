"""Cursor: a named place in a stream, remembered in a small file next to the local copy."""

import os
import struct
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from rt.errors import CorruptLog, Misuse, Stopped
from rt.format.checksum import crc32
from rt.log.files.continued import ContinuedLog, read_continued
from rt.log.files.disk import Disk, OsDisk, read_small, write_whole
from rt.log.files.lock import take_lock
from rt.names import is_cursor, merged_directory, parse_cursor, stream_directory
from rt.position import Position

DIRECTORY: Final = ".cursors"  # not a valid session name, so it never clashes with one
_MAGIC: Final = b"RTK\x02"
# Position, epoch, time of storing (ns), id of the log, and share (`1024/1024` is the longest).
_BODY: Final = struct.Struct("<QQq16s12s")
_RECORD_BYTES: Final = 8 + _BODY.size
_ANY_SHARE: Final = b"?"
_OLD_MAGIC: Final = b"RTK\x01"  # of records without a share
_OLD_BODY_BYTES: Final = 40


@dataclass(frozen=True, slots=True)
class CursorState:
    """The contents of a cursor's file.

    Attributes:
        position: where the next message is; everything before it is acknowledged.
        epoch: how often the cursor was opened; a higher one replaces a lower one.
        stored_ns: when this was stored, ns since the epoch.
        log_id: id of the merged log, 32 hexadecimal digits; "" while it is unknown.
        share: the share of the keys that the cursor covers, such as `2/4`; "" for all keys, None if
            a reader of any share may use it.
    """

    position: Position
    epoch: int
    stored_ns: int
    log_id: str
    share: str | None = None

    def encode(self) -> bytes:
        """Encode the state, with a CRC."""
        log_id = bytes.fromhex(self.log_id).ljust(16, b"\0")
        share = _ANY_SHARE if self.share is None else self.share.encode()
        body = _BODY.pack(self.position, self.epoch, self.stored_ns, log_id, share)
        return _MAGIC + crc32(body).to_bytes(4, "little") + body

    def carried(self, new: str, cut: Position) -> "CursorState":
        """Return the state moved to the log `new`, which continues the cursor's log from `cut`."""
        moved = min(self.position, cut)
        return replace(self, position=moved, epoch=self.epoch + 1, log_id=new)


def decode_cursor(data: bytes) -> CursorState | None:
    """Return the state in a cursor's file; None if the file is cut short or damaged."""
    body, magic = data[8:], _MAGIC
    if data[:4] == _OLD_MAGIC:
        body, magic = body + _ANY_SHARE.ljust(_BODY.size - _OLD_BODY_BYTES, b"\0"), _OLD_MAGIC
    if len(body) != _BODY.size or data[:8] != magic + crc32(data[8:]).to_bytes(4, "little"):
        return None
    position, epoch, stored_ns, log_id, packed = _BODY.unpack(body)
    share = packed.rstrip(b"\0")
    return CursorState(
        Position(position), epoch, stored_ns, log_id.hex() if any(log_id) else "",
        None if share == _ANY_SHARE else share.decode(),
    )  # fmt: skip


def read_cursors(root: str, stream: str) -> dict[str, CursorState]:
    """Return the cursors of a stream by name, for display.

    Raises:
        CorruptLog: a cursor's file is damaged.
    """
    directory = os.path.join(stream_directory(root, stream), DIRECTORY)
    try:
        names = sorted(name for name in os.listdir(directory) if is_cursor(name))
    except FileNotFoundError:
        return {}
    return {name: _read(os.path.join(directory, name)) for name in names}


def is_held(root: str, stream: str, name: str) -> bool:
    """Whether a program is reading with this cursor now."""
    try:
        os.close(_take(root, stream, name))
    except Misuse:
        return True
    return False


def remove_cursor(root: str, stream: str, name: str) -> None:
    """Remove a cursor; `Misuse` if a program is reading with it."""
    lock = _take(root, stream, name)
    try:
        os.unlink(os.path.join(stream_directory(root, stream), DIRECTORY, parse_cursor(name)))
    finally:
        os.close(lock)


def carry_cursors(root: str, stream: str, old: str, new: str, cut: Position) -> None:
    """Move the cursors of a log that ended to the log that continues it, durably.

    A cursor in use is left to the program that uses it: see `LocalCursor.carry`.

    Args:
        root: directory under which streams live.
        stream: name of the stream.
        old: the id of the log that ended.
        new: the id of the log that continues it.
        cut: where the new log continues; a cursor beyond this position is moved back to it.

    Raises:
        CorruptLog: a cursor's file is damaged.
    """
    directory = os.path.join(stream_directory(root, stream), DIRECTORY)
    for name, known in read_cursors(root, stream).items():
        if known.log_id not in ("", old):  # unknown if it was opened before this copy began
            continue
        try:
            lock = _take(root, stream, name)
        except Misuse:
            continue
        try:
            write_whole(OsDisk(), directory, name, [known.carried(new, cut).encode()])
        finally:
            os.close(lock)


def _other_share(name: str, known: str | None, share: str) -> str:
    """Return the error message for a cursor that was used for keys other than those of `share`."""
    return (
        f"cursor {name!r} was used for {_named(known)} and not for {_named(share)}; use another "
        "name for each share, or reset this one to a position that all shares have reached"
    )


def _named(share: str | None) -> str:
    return f"share {share}" if share else "all keys"


def _take(root: str, stream: str, name: str) -> int:
    return take_lock(
        os.path.join(stream_directory(root, stream), DIRECTORY),
        f"cursor {name!r} of stream {stream!r} has a reader; stop that one, or use another name",
        f"{parse_cursor(name)}.lock",
    )


def _read(path: str) -> CursorState:
    state = decode_cursor(read_small(path, _RECORD_BYTES + 1))
    if state is None:
        raise CorruptLog(path, Position(0), "the cursor is damaged; move it away and start again")
    return state


class LocalCursor:
    """One cursor, held by this process until it is closed.

    Threads:
        `_state`, `_unstored` and `_lock_fd` are guarded by `_lock`; any thread may acknowledge.
    """

    def __init__(
        self,
        root: str,
        stream: str,
        name: str,
        *,
        share: str | None = None,
        interval_s: float = 1.0,
        disk: Disk | None = None,
    ) -> None:
        """Take the cursor.

        Args:
            root: directory under which streams live.
            stream: name of the stream.
            name: the name of the cursor.
            share: the share of the keys that is read with the cursor; None if nothing is read.
            interval_s: how often acknowledgements are stored; after a crash, messages acknowledged
                since then are repeated.
            disk: the disk to store on; the operating system's by default.

        Raises:
            Misuse: the name is wrong, another reader holds the cursor, or it belongs to another
                share.
            CorruptLog: its file is damaged.
        """
        self.name = parse_cursor(name)
        self._disk = disk or OsDisk()
        self._interval_s = interval_s
        directory = os.path.join(stream_directory(root, stream), DIRECTORY)
        self._disk.make_directory(os.path.dirname(directory))
        self._disk.make_directory(directory)
        self._path = os.path.join(directory, name)
        self._lock_fd = _take(root, stream, name)
        self._lock = threading.Lock()
        self._stored_s = time.monotonic()
        self._unstored: CursorState | None = None
        try:
            self._state = self._known(share)
            continued = read_continued(merged_directory(root, stream))
            # The last reader ended before it moved the cursor; a new cursor has no position yet.
            if continued is not None and self._state.epoch:
                self.carry(continued)
        except BaseException:
            os.close(self._lock_fd)
            raise
        self.is_new = self._state.epoch == 0

    @property
    def state(self) -> CursorState:
        """The acknowledged state, whether it is stored yet or not."""
        return self._unstored or self._state

    def _known(self, share: str | None) -> CursorState:
        """Return the stored state, with `share`; `Misuse` if the cursor has another share."""
        try:
            known = _read(self._path)
        except FileNotFoundError:
            known = CursorState(Position(0), 0, 0, "")
        if share is not None and known.share not in (None, share):
            raise Misuse(_other_share(self.name, known.share, share))
        return replace(known, share=share)

    def open_at(self, position: Position, log_id: str) -> None:
        """Begin a new epoch of the cursor at this position, durably.

        Raises:
            Misuse: the cursor belongs to another log: the stream was deleted and made again.
            OSError: the cursor cannot be stored.
            Stopped: the cursor was closed.
        """
        known = self._state.log_id
        if known and log_id and known != log_id:
            raise Misuse(
                f"cursor {self.name!r} was made for another log of this stream, which was deleted "
                f"and made again since; remove {self._path} to start over"
            )
        with self._lock:
            epoch = self._state.epoch + 1
            position = max(position, self.state.position)  # it may be acknowledged already
            self._store(self._moved(position, epoch=epoch, log_id=log_id or known))

    def carry(self, continued: ContinuedLog) -> None:
        """If the cursor's log has ended, move the cursor durably to the log that continues it.

        A cursor opened before there was a copy has no log id; it counts as a cursor of the log that
        ended.

        Raises:
            OSError: the cursor cannot be stored.
        """
        with self._lock:
            if self.state.log_id in ("", continued.old):
                self._store(self.state.carried(continued.new, continued.cut))

    def move_to(self, position: Position) -> None:
        """Move the cursor durably, forwards or backwards; for operators.

        Raises:
            OSError: the cursor cannot be stored.
        """
        with self._lock:
            self._store(self._moved(position, epoch=self._state.epoch + 1, share=None))

    def ack(self, position: Position, *, sync: bool = False) -> None:
        """Acknowledge everything before `position`; an earlier position changes nothing.

        Args:
            position: a message's `next_position`.
            sync: store the acknowledgement durably before this returns; otherwise it is stored
                within the interval.

        Raises:
            OSError: the acknowledgement cannot be stored; it is kept in memory.
            Stopped: the cursor was closed, and may have another reader.
        """
        with self._lock:
            self._demand_open()
            known = self.state
            if position > known.position:
                self._unstored = self._moved(position)
            if sync or time.monotonic() - self._stored_s >= self._interval_s:
                self._flush()

    def demand_held(self) -> None:
        """Do nothing: a local cursor is locked until it is closed, so no other reader takes it."""

    def close(self) -> None:
        """Store what is acknowledged and release the cursor. Idempotent."""
        with self._lock:
            if self._lock_fd < 0:
                return
            try:
                self._flush()
            finally:
                os.close(self._lock_fd)
                self._lock_fd = -1

    def _demand_open(self) -> None:
        if self._lock_fd < 0:
            raise Stopped(f"cursor {self.name!r} is closed")

    def _moved(self, position: Position, **changes: Any) -> CursorState:
        return replace(self._state, position=position, stored_ns=time.time_ns(), **changes)

    def _flush(self) -> None:
        if self._unstored is not None:
            self._store(self._unstored)

    def _store(self, state: CursorState) -> None:
        self._demand_open()
        write_whole(self._disk, *os.path.split(self._path), [state.encode()])
        self._state, self._unstored = state, None
        self._stored_s = time.monotonic()
