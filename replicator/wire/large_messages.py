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

    Each of 512 connections may carry a frame of 32 MiB, which would be 16 GiB. So connections of
    one name share a budget. The large buffers of all names share another budget: that of one name
    plus room for the largest message, so that no name can keep out the large messages of others. A
    growing buffer briefly holds its old bytes as well, so a node may use twice as much.

    Threads: any; `_lock` guards the fields except `share_bytes`.
    """

    def __init__(self, share_bytes: int) -> None:
        """Allow each name so many bytes."""
        self.share_bytes = share_bytes
        self._large = 0
        self._held: Counter[str] = Counter()  # by name, without names that hold nothing
        self._lock = threading.Lock()

    def of(self, holder: str) -> "HeldMemory":
        """Return the budget of one connection of a name."""
        return HeldMemory(self, holder)

    @property
    def taken(self) -> int:
        """How many bytes are taken now."""
        return self._held.total()

    def take(self, count: int, holder: str) -> None:
        """Take bytes for a buffer; `Refused` if its name, or all names' large ones, have too many.

        Args:
            count: bytes.
            holder: the name.
        """
        share, is_large = self.share_bytes, _is_large(count)
        with self._lock:
            held = self._held[holder]
            if held + count > share:
                words = f"messages of {held} bytes of {holder!r} are on their way, {count} are too"
                raise Refused("memory", f"{words} many; identity_memory_bytes allows {share}")
            if is_large and self._large + count > share + LARGEST_BYTES:
                words = f"large messages of {self._large} bytes are on their way, {count} are too"
                raise Refused("memory", f"{words} many")
            self._held[holder] += count
            self._large += count if is_large else 0

    def give_back(self, count: int, holder: str) -> None:
        """Release bytes that were taken for a buffer."""
        with self._lock:
            self._held[holder] -= count
            if not self._held[holder]:
                del self._held[holder]
            self._large -= count if _is_large(count) else 0


class HeldMemory:
    """HeldMemory: one connection's access to `LargeMessages`."""

    __slots__ = ("_all", "_holder")

    def __init__(self, of_all: LargeMessages, holder: str) -> None:
        self._all = of_all
        self._holder = holder

    def take(self, count: int) -> None:
        """Take bytes for a buffer; `Refused` if too many are taken."""
        self._all.take(count, self._holder)

    def give_back(self, count: int) -> None:
        """Release bytes."""
        self._all.give_back(count, self._holder)


def _is_large(count: int) -> bool:
    return count > _LARGE_BYTES
