"""Traffic: counts the data that has passed a point."""

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Counts bytes, messages and frames; one thread at a time adds, and any thread may read.

    A reader may see a frame's bytes counted before its messages; a later read sees both.
    """

    bytes: int = 0
    messages: int = 0
    frames: int = 0

    def add(self, size: int, messages: int, frames: int) -> None:
        """Count frames with `size` bytes in total."""
        self.bytes += size
        self.messages += messages
        self.frames += frames

    def add_from(self, other: "Traffic") -> None:
        """Add another object's counts."""
        self.add(other.bytes, other.messages, other.frames)
