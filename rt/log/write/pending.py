"""Pending: the messages that will form a publisher's next frame."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

COLUMN_BYTES: Final = 12  # a message's share of the columns: its time and end offset


class Beside(NamedTuple):
    """The key and headers of a message that has headers."""

    key: Any  # bytes or None
    headers: bytes  # encoded


class PendingFrame:
    """Messages accepted but not yet written, in columns that `Publisher.publish` appends to."""

    __slots__ = (
        "_allowed", "_fresh", "frame_bytes", "headers", "keys", "payloads", "room", "taken",
        "times_ns", "weight",
    )  # fmt: skip

    def __init__(self, frame_bytes: int) -> None:
        """Begin with an empty frame, which is full at `frame_bytes`."""
        self.frame_bytes = frame_bytes
        self.taken = 0  # total bytes of payloads, keys and headers of all frames so far
        self._fresh = frame_bytes  # room of a new frame that was not admitted
        self._begin()

    def clear(self) -> None:
        """Begin the next frame in new lists, after the caller has written the old ones."""
        self.taken += self._allowed - self.room - self.weight * len(self.payloads)
        self._begin()

    def limit(self) -> None:
        """From now on, close an unadmitted frame after one message.

        Only the message that begins a frame asks for admission. If another thread writes the frame
        just before a further message is added, that message begins a new frame without admission.
        Such a frame must take no more messages.
        """
        self._fresh = 1
        if not self.payloads:
            self._begin()

    def allow(self, messages: int, size: int) -> None:
        """Limit the frame, if it is empty, to this many messages and `size` bytes.

        Each message counts as its size plus `weight`, which is large enough that the bytes are used
        up once the number of messages is. So one comparison checks both limits.
        """
        if not self.payloads:
            self.room = self._allowed = min(self.frame_bytes, max(size, 1))
            self.weight = max(COLUMN_BYTES, -(-self.room // max(messages, 1)))

    def _begin(self) -> None:
        self.payloads: list[bytes] = []
        self.times_ns: list[int] = []
        self.keys: list[bytes] | None = None  # None until a message has a key
        self.headers: dict[int, bytes] = {}  # encoded headers, by a message's place in the frame
        # `room`: bytes left until the frame is full, not above 0 once it is; `_allowed`: its
        # initial value
        self.room = self._allowed = self._fresh
        self.weight = COLUMN_BYTES  # overhead of a message, besides its payload, key and headers

    @property
    def waiting(self) -> int:
        """Return how many bytes wait to be written; it may be slightly too many."""
        return self._allowed - self.room

    def take_key(self, key: Any) -> None:
        """Add the next message's key and headers, before its payload is added.

        Earlier messages of the frame get an empty key if this one is the first with a key.

        Args:
            key: bytes, None, or `Beside`.
        """
        if type(key) is Beside:
            self.headers[len(self.payloads)] = key.headers
            key = key.key
        if self.keys is None and key is not None:
            self.keys = [b""] * len(self.payloads)
        if self.keys is not None:
            self.keys.append(key or b"")

    @property
    def headers_column(self) -> list[bytes] | None:
        """Return each message's encoded headers; None if no message has any."""
        if not self.headers:
            return None
        return [self.headers.get(place, b"") for place in range(len(self.payloads))]

    def give_back(self, size: int) -> None:
        """Remove the message added last; `size` is that of its payload, key and headers."""
        self.payloads.pop()
        self.times_ns.pop()
        if self.keys:
            self.keys.pop()
        self.headers.pop(len(self.payloads), None)
        self.room += size + self.weight


def frame_cuts(sizes: Sequence[int], frame_bytes: int) -> Iterator[tuple[int, int]]:
    """Split a run of messages so that each piece fills one frame.

    >>> list(frame_cuts([10, 10, 10], frame_bytes=44))
    [(0, 2), (2, 3)]
    """
    totals = [0, *accumulate(sizes)]
    start, count = 0, len(sizes)
    while start < count:
        full = totals[start] + COLUMN_BYTES * start + frame_bytes
        end = bisect_left(
            range(count), full, lo=start + 1, key=lambda place: totals[place] + COLUMN_BYTES * place
        )
        yield start, end
        start = end
