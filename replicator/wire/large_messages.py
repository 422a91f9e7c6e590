"""LargeMessages: bounds the memory that messages take in a process while they arrive."""

import threading
from collections import Counter
from typing import Final

from replicator.wire.codec import FRAME_BYTES_MAX
from rt.errors import Refused
from rt.limits import KIB, MIB

# Of a buffer; the usual messages, of up to 1 MiB, make none as large.
_LARGE_BYTES: Final = 2 * MIB
LARGEST_BYTES: Final = FRAME_BYTES_MAX + 64 * KIB  # of a buffer, with what comes before and after


class LargeMessages:
    """The memory that the buffers of connections take beyond what each begins with.

    Each of 512 connections may carry a frame of 32 MiB, which would be 16 GiB. So the holders of
    one name share a budget; and the large buffers of all share another, which is that of one name
    and room for the largest message, so that no name can keep out the large messages of others.
    A buffer that grows holds its old bytes as well for a moment, so a node may use twice as much.

    Threads: any; `_lock` guards the other fields but `share_bytes`.
    """

    def __init__(self, share_bytes: int) -> None:
        """Allow each name so many bytes."""
        self.share_bytes = share_bytes
        self._large = 0
        self._held: Counter[str] = Counter()  # by name; a name that holds nothing is not in it
        self._lock = threading.Lock()

    def of(self, holder: str) -> "HeldMemory":
        """Return the memory of a connection of a name."""
        return HeldMemory(self, holder)

    @property
    def taken(self) -> int:
        """How much is accounted for now."""
        return self._held.total()

    def take(self, count: int, holder: str) -> None:
        """Account for a buffer; `Refused` if its name, or the large messages of all, have too many.

        Args:
            count: of its bytes.
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
        """Release what was taken for a buffer."""
        with self._lock:
            self._held[holder] -= count
            if not self._held[holder]:
                del self._held[holder]
            self._large -= count if _is_large(count) else 0


class HeldMemory:
    """What one connection may take of `LargeMessages`."""

    __slots__ = ("_all", "_holder")

    def __init__(self, of_all: LargeMessages, holder: str) -> None:
        self._all = of_all
        self._holder = holder

    def take(self, count: int) -> None:
        """Account for a buffer; `Refused` if there are too many others."""
        self._all.take(count, self._holder)

    def give_back(self, count: int) -> None:
        """Release its memory."""
        self._all.give_back(count, self._holder)


def _is_large(count: int) -> bool:
    return count > _LARGE_BYTES
