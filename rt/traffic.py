"""Traffic: how much data has passed a point."""

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Bytes, messages and frames that have passed; one thread at a time adds, any may read.

    A reader may see the bytes of a frame before its messages; the next look agrees.
    """

    bytes: int = 0
    messages: int = 0
    frames: int = 0

    def add(self, size: int, messages: int, frames: int) -> None:
        """Count frames with `size` bytes in total."""
        self.bytes += size
        self.messages += messages
        self.frames += frames

    def take(self, other: "Traffic") -> None:
        """Add what has passed another point."""
        self.add(other.bytes, other.messages, other.frames)
