"""LargeMessages: bounds the memory that large messages take in a process."""

import threading
from typing import Final

from rt.errors import Refused
from rt.limits import MIB

# Two of the largest frames, or four of the largest messages that our publishers send. A buffer that
# grows holds its old bytes as well for a moment, so a node may use twice as much.
LARGE_TOTAL_BYTES: Final = 64 * MIB


class LargeMessages:
    """The memory that large messages on their way to a process may take together.

    Each of 512 connections may carry a frame of 32 MiB, which would be 16 GiB.

    Threads: any; `_lock` guards `_taken`.
    """

    def __init__(self, limit_bytes: int = LARGE_TOTAL_BYTES) -> None:
        """Allow so many bytes in all."""
        self._limit_bytes = limit_bytes
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Account for a message; `Refused` if there are too many others."""
        with self._lock:
            if self._taken + count > self._limit_bytes:
                words = f"messages of {self._taken} bytes are on their way, {count} are too many"
                raise Refused("memory", words)
            self._taken += count

    def give_back(self, count: int) -> None:
        """Release the memory of a message."""
        with self._lock:
            self._taken -= count
