"""Pending: the messages that fill the next frame of a publisher."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

COLUMN_BYTES: Final = 12  # a message's share of the columns: its time and its end


class PendingFrame:
    """Messages taken and not yet written, in columns that `Publisher.publish` appends to itself."""

    __slots__ = (
        "_allowed", "_fresh", "frame_bytes", "keys", "payloads", "room", "taken", "times_ns",
        "weight",
    )  # fmt: skip

    def __init__(self, frame_bytes: int) -> None:
        """Begin with an empty frame, which is full at `frame_bytes`."""
        self.frame_bytes = frame_bytes
        self.taken = 0  # bytes of payloads and keys that were ever written
        self._fresh = frame_bytes  # the room of a frame for which nothing was allowed
        self._begin()

    def clear(self) -> None:
        """Begin the next frame, as this one was written; the caller keeps its lists."""
        self.taken += self._allowed - self.room - self.weight * len(self.payloads)
        self._begin()

    def limit(self) -> None:
        """From now on, let a frame for which nothing was allowed be full with one message.

        Another thread may write a frame after a message was found to need no asking, and before it
        is added: it then begins a frame, and only it may go without.
        """
        self._fresh = 1
        if not self.payloads:
            self._begin()

    def allow(self, messages: int, size: int) -> None:
        """Let the frame, if it is empty, be full with so many messages, or bytes, at the latest.

        One test tells: each message takes a share of the room with it, large enough for that.
        """
        if not self.payloads:
            self.room = self._allowed = min(self.frame_bytes, max(size, 1))
            self.weight = max(COLUMN_BYTES, -(-self.room // max(messages, 1)))

    def _begin(self) -> None:
        self.payloads: list[bytes] = []
        self.times_ns: list[int] = []
        self.keys: list[bytes] | None = None  # None as long as no message has one
        # bytes until the frame is full, and below 0 once it is; what it began with
        self.room = self._allowed = self._fresh
        self.weight = COLUMN_BYTES  # of a message, beside its payload and key

    @property
    def waiting(self) -> int:
        """Bytes that wait to be written, or a little more."""
        return self._allowed - self.room

    def take_key(self, key: bytes | None) -> None:
        """Add the key of the next message; those before it had none if this is the first."""
        if self.keys is None:
            self.keys = [b""] * len(self.payloads)
        self.keys.append(key or b"")

    def give_back(self, size: int) -> None:
        """Remove the message that was added last; `size` is that of its payload and key."""
        self.payloads.pop()
        self.times_ns.pop()
        if self.keys:
            self.keys.pop()
        self.room += size + self.weight


def frame_cuts(sizes: Sequence[int], frame_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut a run of messages so that each piece fills one frame.

    >>> list(frame_cuts([10, 10, 10], frame_bytes=44))
    [(0, 2), (2, 3)]
    """
    totals = [0, *accumulate(sizes)]
    start, count = 0, len(sizes)
    while start < count:
        full = totals[start] + COLUMN_BYTES * start + frame_bytes
        end = bisect_left(
            range(count),
            full,
            lo=start + 1,
            key=lambda place: totals[place] + COLUMN_BYTES * place,
        )
        yield start, end
        start = end
