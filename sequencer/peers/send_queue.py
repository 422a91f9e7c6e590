"""SendQueue: messages waiting for one node, framed for the wire."""

from collections import deque
from typing import Final

MESSAGE_BYTES_MAX: Final = 16 << 20  # a full report of 100,000 sessions, or entries and a chunk
# What may be queued for a peer. Raft repeats lost messages, so beyond this the oldest are dropped:
# a node of 7 holds at most 6 x 32 MiB for dead nodes.
_QUEUE_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX
_TAKE_BYTES: Final = 256 << 10  # what is taken waits beside the queue, until it is sent


class SendQueue:
    """SendQueue: framed messages waiting for one member; beyond a limit the oldest are dropped."""

    def __init__(self) -> None:
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

    def pop(self) -> bytes:
        """Remove and return the oldest framed messages, some 256 KiB of them."""
        taken, size = list[bytes](), 0
        while self._messages and size < _TAKE_BYTES:
            taken.append(self._messages.popleft())
            size += len(taken[-1])
        self._bytes -= size
        return b"".join(taken)
