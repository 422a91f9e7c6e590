"""Pending: the messages that fill the next frame of a publisher."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

COLUMN_BYTES: Final = 12  # a message's share of the columns: its time and its end


class PendingFrame:
    """Messages taken and not yet written, in columns that `Publisher.publish` appends to itself."""

    __slots__ = ("frame_bytes", "keys", "payloads", "room", "times_ns")

    def __init__(self, frame_bytes: int) -> None:
        """Begin with an empty frame, which is full at `frame_bytes`."""
        self.frame_bytes = frame_bytes
        self.clear()

    def clear(self) -> None:
        """Begin the next frame; the caller keeps the lists of this one."""
        self.payloads: list[bytes] = []
        self.times_ns: list[int] = []
        self.keys: list[bytes] | None = None  # None as long as no message has one
        self.room = self.frame_bytes  # bytes until the frame is full; below 0 once it is

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
        self.room += size + COLUMN_BYTES


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
