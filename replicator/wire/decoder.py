"""Decoder: takes bytes as they arrive and returns the messages in them."""

from collections.abc import Iterator
from mmap import MAP_PRIVATE, mmap
from typing import Final

from replicator.wire.codec import (
    ACK_BYTES,
    ACK_HEAD_BYTES,
    BODIES,
    FROM_SINK,
    GREETINGS,
    LARGE_BYTES,
    PREFIX_BYTES,
    check_large,
    decode_prefix,
    is_ack,
)
from replicator.wire.large_messages import HeldMemory
from replicator.wire.messages import Message
from rt.errors import PeerError
from rt.limits import KIB, MIB

# The most that one receive returns. The buffer grows as the bytes of a message arrive. Once the
# message is counted, the buffer gets its full length in one step, since smaller steps would leave
# holes in the heap.
_RECORD_BYTES: Final = 16 * KIB
_BUFFER_BYTES: Final = 2 * _RECORD_BYTES
_BUFFER_BYTES_KEPT: Final = 2 * MIB  # larger buffers are released after their message
_COUNTED_BYTES: Final = 64 * KIB  # smaller buffers are not counted: 512 of them have 32 MiB


class Decoder:
    """Decoder: turns the bytes that arrive on a connection into messages.

    To use it, receive bytes into `space()`, add their number to `end`, and call `next()` until that
    returns None.

    Attributes:
        end: where the received bytes end in the buffer.
        greeting: whether only a Hello or a refusal is accepted, both of which are short.
        from_sink: whether the peer is a sink. A sink receives frames, so none are accepted from it.
    """

    __slots__ = (
        "_buffer", "_is_counted", "_large", "_needed", "_start", "_taken", "_view", "end",
        "from_sink", "greeting",
    )  # fmt: skip

    def __init__(self, *, greeting: bool = False, large: HeldMemory | None = None) -> None:
        self.greeting = greeting
        self.from_sink = False
        self._large = large
        self._taken = 0  # bytes taken from `_large` for the buffer and its growth
        self._is_counted = False  # whether that includes the arriving message
        self._buffer: bytearray | mmap = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self.end = 0  # of the bytes that were received and not decoded
        self._needed = PREFIX_BYTES  # known length of the message at _start

    def space(self) -> memoryview:
        """Return the memory to receive into; this invalidates payloads returned before."""
        have, size = self.end - self._start, len(self._buffer)
        if have == 0:
            self._start = self.end = 0
            if size > _BUFFER_BYTES_KEPT:
                self._move_to(_BUFFER_BYTES)
            if size > _COUNTED_BYTES or self._taken:
                self._account_for(len(self._buffer))
        elif size > _BUFFER_BYTES_KEPT >= self._needed + _RECORD_BYTES:
            self._move_to(self._needed + _RECORD_BYTES)
            self._account_for(len(self._buffer))
        elif size - self.end < _RECORD_BYTES:
            enough = self._needed + _RECORD_BYTES
            if not self._is_counted:
                enough = min(enough, 2 * size)
            self._move_to(size if have <= size // 2 and enough <= size else enough)
        return self._view[self.end :]

    @property
    def needed(self) -> int:
        """The length of the arriving message; 0 if no message is arriving.

        Until all of the message's prefix is here, this is the length of the prefix.
        """
        return self._needed if self.end > self._start else 0

    def rest(self) -> None:
        """Shrink the buffer if it is empty, because nothing has arrived for a while."""
        if self.end == self._start and len(self._buffer) > _BUFFER_BYTES:
            self._move_to(_BUFFER_BYTES)
            self._account_for(_BUFFER_BYTES)

    def close(self) -> None:
        """Drop what has arrived, and release the memory even while this object is referenced."""
        self._account_for(0)
        self._start = self.end = 0
        self._needed, self._is_counted = PREFIX_BYTES, False
        self._move_to(_BUFFER_BYTES)

    def next(self) -> Message | None:
        """Return the next message; None while it is incomplete.

        Raises:
            PeerError: the bytes are not a message, and no later message can be read.
            Refused: the message is large, and too many others are arriving.
        """
        have = self.end - self._start
        if have < self._needed and (self._is_counted or self._needed <= _COUNTED_BYTES):
            return None  # its prefix was checked, if that is here, and it is accounted for
        kind, length = decode_prefix(self._buffer, self._start)
        if self.greeting and kind not in GREETINGS:
            raise PeerError(f"a message of type {kind} came before a Hello")
        if self.from_sink and kind not in FROM_SINK:
            raise PeerError(f"a sink does not send messages of type {kind}")
        self._needed = PREFIX_BYTES + length
        if length > _COUNTED_BYTES and not self._is_counted:
            self._count(length, have)
        if have < self._needed:
            return None
        body = self._view[self._start + PREFIX_BYTES : self._start + self._needed]
        self._start += self._needed
        self._needed = PREFIX_BYTES
        self._is_counted = False
        return BODIES[kind][0](body)

    def skip_overtaken(self) -> int:
        """Skip acknowledgements directly followed by another complete one of the same channel.

        Skipping one takes a tenth of the time of decoding it.

        Returns:
            How many were skipped.
        """
        start, data = self._start, self._buffer
        head = data[start : start + ACK_HEAD_BYTES]
        last = self.end - 2 * ACK_BYTES
        if start > last or not is_ack(head):
            return 0
        while (
            start <= last and data[start + ACK_BYTES : start + ACK_BYTES + ACK_HEAD_BYTES] == head
        ):
            start += ACK_BYTES
        count, self._start = (start - self._start) // ACK_BYTES, start
        return count

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take all of `data` and yield the messages that become complete."""
        rest = memoryview(data)
        while rest:
            space = self.space()
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            rest = rest[count:]
            self.end += count
            while (message := self.next()) is not None:
                yield message

    def _count(self, length: int, have: int) -> None:
        """Reserve memory for a message; for a large one, once its head shows a single frame."""
        if self._large is None:
            return
        head = self._view[self._start : self._start + have]
        if length > LARGE_BYTES and not check_large(head, length):
            return
        self._is_counted = True
        self._account_for(max(self._needed, len(self._buffer)))

    def _account_for(self, count: int) -> None:
        """Reserve `count` bytes in all, releasing what was reserved beyond that."""
        count = count if count > _COUNTED_BYTES else 0
        if self._large is None or count == self._taken:
            return
        if self._taken:
            self._large.give_back(self._taken)
            self._taken = 0
        if count:
            self._large.take(count)
            self._taken = count

    def _move_to(self, size: int) -> None:
        """Move the unread bytes to the front; use a new buffer if the size changes."""
        unread = self._view[self._start : self.end]
        if size != len(self._buffer):
            # A mapping goes back to the system at once; heaps of many threads keep what was freed.
            self._buffer = (
                bytearray(size) if size <= _COUNTED_BYTES else mmap(-1, size, MAP_PRIVATE)
            )
            self._view = memoryview(self._buffer)
        self._view[: len(unread)] = unread
        self._start, self.end = 0, len(unread)
