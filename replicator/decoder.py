"""Decoder: takes bytes as they arrive and gives out the messages in them."""

from collections.abc import Iterator
from typing import Final

from replicator.messages import Message
from replicator.wire import GREETINGS, PREFIX_BYTES, decode_body, decode_prefix
from rt.errors import PeerError
from rt.limits import KIB

# What one receive returns at most. The buffer grows as the bytes of a message arrive, so claiming
# a length costs the peer as much as sending that much.
_RECORD_BYTES: Final = 16 * KIB
_BUFFER_BYTES: Final = 2 * _RECORD_BYTES
_BUFFER_BYTES_KEPT: Final = 4 << 20  # a rare larger message gives its memory back


class Decoder:
    """Receive into `space()`, say how many bytes came with `took()`, then call `next()` until None.

    While `greeting`, it takes only a Hello or a refusal, both of which are short.
    """

    __slots__ = ("_buffer", "_end", "_needed", "_start", "_view", "greeting")

    def __init__(self, *, greeting: bool = False) -> None:
        self.greeting = greeting
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._needed = PREFIX_BYTES  # bytes of the message that begins at _start, as far as known

    def space(self) -> memoryview:
        """Return where to receive; this invalidates the payloads given out before."""
        have, size = self._end - self._start, len(self._buffer)
        if have == 0:
            self._start = self._end = 0
            if size > _BUFFER_BYTES_KEPT:
                self._move_to(_BUFFER_BYTES)
        elif size - self._end < _RECORD_BYTES:
            enough = self._needed + _RECORD_BYTES
            self._move_to(size if have <= size // 2 and enough <= size else min(enough, 2 * size))
        return self._view[self._end :]

    def took(self, count: int) -> None:
        """Record that `count` bytes were received into `space()`."""
        self._end += count

    @property
    def missing(self) -> int:
        """How many bytes of a message that has begun to arrive are missing; 0 if none has."""
        return self._start + self._needed - self._end if self._end > self._start else 0

    def next(self) -> Message | None:
        """Return the next message, None while it is incomplete.

        Raises:
            PeerError: the bytes are not a message; nothing after them can be read.
        """
        have = self._end - self._start
        if have < PREFIX_BYTES:
            self._needed = PREFIX_BYTES
            return None
        kind, length = decode_prefix(self._buffer, self._start)
        if self.greeting and kind not in GREETINGS:
            raise PeerError(f"a message of type {kind} came before a Hello")
        self._needed = PREFIX_BYTES + length
        if have < self._needed:
            return None
        body = self._view[self._start + PREFIX_BYTES : self._start + self._needed]
        self._start += self._needed
        self._needed = PREFIX_BYTES
        return decode_body(kind, body)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take all of `data` and give out the messages as they become whole."""
        rest = memoryview(data)
        while rest:
            space = self.space()
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            rest = rest[count:]
            self.took(count)
            while (message := self.next()) is not None:
                yield message

    def _move_to(self, size: int) -> None:
        """Move the unread bytes to the front, of a new buffer if the size differs."""
        unread = self._view[self._start : self._end]
        if size != len(self._buffer):
            self._buffer = bytearray(size)
            self._view = memoryview(self._buffer)
        self._view[: len(unread)] = unread
        self._start, self._end = 0, len(unread)
