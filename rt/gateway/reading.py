"""Reads a stream's messages between two positions from the local copy of the merged log."""

import time
from contextlib import closing
from typing import Final, NamedTuple

from rt.errors import GapError, RtError
from rt.format.message import Batch
from rt.gateway.model import HttpStream, change_of
from rt.gateway.store import StreamStore
from rt.log.files.directory import LogDirectory
from rt.log.read.start import parse_start, resolve
from rt.position import Position
from rt.subscriber import Subscriber

CHUNK_BYTES: Final = 1 << 20  # of one answer; a longer message is an answer of its own
SCAN_S: Final = 1.0  # a stream may have few messages in a long log: the client asks again


class GoneError(RtError):
    """The requested messages are archived."""


class Chunk(NamedTuple):
    """A part of a stream.

    Args:
        payloads: the messages in it.
        next: where the next part begins.
    """

    payloads: list[bytes]
    next: Position


class StreamReader:
    """Reads streams; has no state, so any thread may call it."""

    def __init__(self, root: str, stream: str, store: StreamStore) -> None:
        """Read from the copy in `root/<stream>/out`."""
        self._root, self._stream, self._store = root, stream, store

    def read(
        self, name: str, stream: HttpStream, begin: Position, most: int = CHUNK_BYTES
    ) -> Chunk:
        """Return the stream's messages after a position, until its tail or about `most` bytes.

        Raises:
            GoneError: the messages are archived.
            CorruptLog: the copy is damaged.
        """
        begin, end, key = max(begin, stream.begin), stream.tail, name.encode()
        if begin >= end:
            return Chunk([], begin)
        until_s, size = time.monotonic() + SCAN_S, 0
        found: list[bytes] = []
        place = begin
        with closing(self._reader(begin)) as reader:
            while place < end and size < most and time.monotonic() < until_s:
                batch = _next(reader, is_first=not found)
                if batch is None:
                    break
                if batch.columns.key_offsets is None:
                    place = batch.next_position
                    continue
                refused = self._store.refused(place, min(batch.next_position, end))
                for message in batch.messages():
                    if size >= most or message.at >= end:
                        break
                    place = message.next_position
                    if message.key == key and message.at not in refused:
                        change = change_of(message)
                        if change is not None and change.do == "append" and change.has_data:
                            found.append(message.payload)
                            size += len(message.payload)
        return Chunk(found, min(place, end))

    def _reader(self, begin: Position) -> Subscriber:
        return Subscriber(
            self._root, stream=self._stream, start=begin, follow=False, on_poison="skip"
        )


def _next(reader: Subscriber, *, is_first: bool) -> Batch | None:
    """Return the next batch; None at the end, or at a gap after what this part has already.

    Raises:
        GoneError: there is a gap, and `is_first`: this part has nothing before the gap.
    """
    try:
        return reader.next_batch()
    except GapError as error:
        if is_first:
            raise GoneError(str(error)) from None
        return None


def place_of(log: str, start: str) -> Position:
    """Resolve a start, such as `earliest`, to a position in the copy of a log.

    Raises:
        Misuse: `start` is not valid.
    """
    with closing(LogDirectory(log)) as directory:
        directory.refresh()
        return resolve(directory, parse_start(start))
