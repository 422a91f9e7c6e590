"""SendQueue: messages waiting for one node, framed for the wire."""

from collections import deque
from typing import Final

MESSAGE_BYTES_MAX: Final = 16 << 20  # a full report of 100,000 sessions, or entries and a chunk
# What may be queued for a peer. Raft repeats lost messages, so beyond this the oldest are dropped:
# a node of 7 holds at most 6 x 32 MiB for dead nodes.
_QUEUE_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX


class SendQueue:
    """SendQueue: framed messages waiting for one member; beyond a limit the oldest are dropped."""

    def __init__(self) -> None:
        self.dropped = 0
        self._messages: deque[bytes] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def put(self, data: bytes) -> None:
        """Add a message."""
        self._messages.append(data)
        self._bytes += len(data)
        while self._bytes > _QUEUE_BYTES_MAX:
            self._bytes -= len(self._messages.popleft())
            self.dropped += 1

    def take(self) -> bytes:
        """Remove and return all messages, framed."""
        data = b"".join(self._messages)
        self._messages.clear()
        self._bytes = 0
        return data
