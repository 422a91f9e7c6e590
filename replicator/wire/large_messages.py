"""LargeMessages: bounds the memory of messages that are arriving in a process."""

import threading
from collections import Counter
from typing import Final

from replicator.wire.codec import FRAME_BYTES_MAX
from rt.errors import Refused
from rt.limits import KIB, MIB

# Buffers above this are large; usual messages, of up to 1 MiB, need less.
_LARGE_BYTES: Final = 2 * MIB
LARGEST_BYTES: Final = FRAME_BYTES_MAX + 64 * KIB  # the largest buffer: a frame with margin


class LargeMessages:
    """LargeMessages: the memory that connections' buffers take beyond their initial size.

    Without limits, 512 connections that each carry a frame of 32 MiB would take 16 GiB. So all
    connections of one name share a budget. The large buffers of all names share a second budget.
    This one exceeds a name's budget by the largest message, so that no single name can keep out the
    large messages of others. A growing buffer briefly holds its old bytes as well, so a node may
    use twice as much.

    Threads: any; `lock` guards the fields except `share_bytes`.
    """

    def __init__(self, share_bytes: int) -> None:
        """Allow each name `share_bytes` bytes."""
        self.share_bytes = share_bytes
        self.large = 0  # of all names
        self.held: Counter[str] = Counter()  # by name, without names that hold nothing
        self.lock = threading.Lock()

    def of(self, holder: str) -> "HeldMemory":
        """Return the budget of one connection of a name."""
        return HeldMemory(self, holder)


class HeldMemory:
    """HeldMemory: one connection's access to `LargeMessages`."""

    __slots__ = ("_all", "_holder")

    def __init__(self, of_all: LargeMessages, holder: str) -> None:
        self._all = of_all
        self._holder = holder

    def take(self, count: int) -> None:
        """Take bytes for a buffer; `Refused` if the name's budget or the common one is used up."""
        every, share, is_large = self._all, self._all.share_bytes, count > _LARGE_BYTES
        with every.lock:
            held = every.held[self._holder]
            if held + count > share:
                words = f"messages of {held} bytes of {self._holder!r} are on their way, {count}"
                raise Refused(
                    "memory", f"{words} are too many; identity_memory_bytes allows {share}"
                )
            if is_large and every.large + count > share + LARGEST_BYTES:
                words = f"large messages of {every.large} bytes are on their way, {count}"
                raise Refused("memory", f"{words} are too many")
            every.held[self._holder] += count
            every.large += count if is_large else 0

    def give_back(self, count: int) -> None:
        """Release bytes that were taken for a buffer."""
        every = self._all
        with every.lock:
            every.held[self._holder] -= count
            if not every.held[self._holder]:
                del every.held[self._holder]
            every.large -= count if count > _LARGE_BYTES else 0
