"""SendQueue: messages waiting for one node, framed for the wire."""

from collections import deque
from typing import Final

# Enough for a full report of 100,000 sessions, or for entries and a chunk.
MESSAGE_BYTES_MAX: Final = 16 << 20
# The most bytes queued for a peer. Beyond this the oldest messages are dropped; Raft repeats lost
# messages. In a cluster of 7, a node queues at most 6 x 32 MiB for dead nodes.
_QUEUE_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX
_TAKE_BYTES: Final = 256 << 10  # popped at once; the sender keeps it, in addition to the queue


class SendQueue:
    """SendQueue: framed messages waiting for one member; beyond a limit the oldest are dropped."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def put(self, data: bytes) -> None:
        """Add a framed message; drop the oldest ones while the queue is too large."""
        self._messages.append(data)
        self._bytes += len(data)
        while self._bytes > _QUEUE_BYTES_MAX:
            self._bytes -= len(self._messages.popleft())

    def pop(self) -> bytes:
        """Remove the oldest framed messages, some 256 KiB in total, and return them joined."""
        taken, size = list[bytes](), 0
        while self._messages and size < _TAKE_BYTES:
            taken.append(self._messages.popleft())
            size += len(taken[-1])
        self._bytes -= size
        return b"".join(taken)
