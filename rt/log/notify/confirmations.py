"""Confirmations: how much of a session the nodes hold, in a small file in its directory."""

import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from rt.errors import Misuse
from rt.format.checksum import crc32
from rt.log.files.disk import open_small, read_small
from rt.position import START, Position

FILE_NAME: Final = "confirmed"
_BODY: Final = struct.Struct("<QQQQQ")
_MAGIC: Final = b"RTC\x02"


class Level(IntEnum):
    """How safe a message is, from weakest to strongest."""

    WRITTEN = 0  # in the session's file; survives the process
    SYNCED = 1  # on the publisher's disk; survives a power cut
    RECEIVED = 2  # durable on one node
    REPLICATED = 3  # durable on a majority of the nodes
    MERGED = 4  # in the merged log; has a position there

    @classmethod
    def parse(cls, word: str) -> "Level":
        """Return the level with this name; otherwise `Misuse`, which lists the names."""
        try:
            return cls[word.upper()]
        except KeyError:
            names = ", ".join(level.name.lower() for level in cls)
            raise Misuse(f"no level is called {word!r}; use one of {names}") from None


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The result of a flush: everything published before it has reached `level`.

    Args:
        level: The level that was waited for.
        position: The end of the confirmed messages in the session's log.
        merged_at: The end of these messages in the merged log; None for a level below `MERGED`.
    """

    level: Level
    position: Position
    merged_at: Position | None


class Confirmations(NamedTuple):
    """The session positions up to which each level was reached, as reported by the nodes.

    The process that ships a session writes these positions to a file. The process that publishes
    reads them, and may wait for any of them except the last, `released`.
    """

    received: Position = START
    replicated: Position = START
    merged: Position = START
    merged_at: Position = START  # position in the merged log that corresponds to `merged`
    released: Position = START  # the publisher's own rolled files may be archived up to here

    def encode(self) -> bytes:
        """Encode the positions with a CRC, because a reader may see a half-finished write."""
        body = _BODY.pack(
            self.received, self.replicated, self.merged, self.merged_at, self.released
        )
        return _MAGIC + crc32(body).to_bytes(4, "little") + body

    def reached(self, level: Level) -> Position:
        """Return the position up to which `level` (received or higher) was reached."""
        return {
            Level.RECEIVED: self.received,
            Level.REPLICATED: self.replicated,
            Level.MERGED: self.merged,
        }[level]


def decode_confirmations(data: bytes) -> Confirmations | None:
    """Decode the file's bytes; None if they are not valid, for example half overwritten."""
    body = data[8:]
    if len(body) != _BODY.size or data[:8] != _MAGIC + crc32(body).to_bytes(4, "little"):
        return None
    return Confirmations(*(Position(value) for value in _BODY.unpack(body)))


class ConfirmationsFile:
    """The file by which a session's publisher learns what the nodes have confirmed.

    It is in the session's directory, and is not synced, since nodes report again after a restart.

    Threads: any may read; one at a time writes and closes.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._fd = -1  # opened by the first write

    @property
    def is_there(self) -> bool:
        """Whether a pusher has ever written the file, even if it is unreadable now."""
        return os.path.exists(self._path)

    def read(self) -> Confirmations:
        """Return the last written confirmations; all zeros if there is no intact file."""
        try:
            return decode_confirmations(read_small(self._path, 64)) or Confirmations()
        except FileNotFoundError:
            return Confirmations()

    def write(self, confirmations: Confirmations) -> None:
        """Replace the contents with one small write in place; the file stays open until `close`."""
        if self._fd < 0:
            self._fd = open_small(self._path)
        os.pwrite(self._fd, confirmations.encode(), 0)

    def is_replaced(self) -> bool:
        """Whether the open file was deleted or replaced by another of the same name."""
        if self._fd < 0:
            return False
        try:
            return not os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
