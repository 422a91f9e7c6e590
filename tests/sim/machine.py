"""What a cluster decides about: the application behind the engine, pluggable."""

import json
from hashlib import blake2b
from typing import Protocol

from sequencer.consensus import Entry


class Machine(Protocol):
    """A deterministic state machine; equal `digest` at equal `index` on every node."""

    index: int

    def apply(self, entry: Entry) -> None:
        """Take the next entry."""

    def save(self) -> bytes:
        """The state, for a snapshot."""

    def load(self, index: int, data: bytes) -> None:
        """Replace the state by one that was saved after the entry `index`."""

    def digest(self) -> str:
        """A fingerprint of the state."""


class Tape:
    """The smallest machine: a count, and a running digest of every command in order."""

    def __init__(self) -> None:
        self.index = 0
        self.count = 0
        self.chain = b""

    def apply(self, entry: Entry) -> None:
        """Take the next entry."""
        self.index = entry.index
        if entry.command:
            self.count += 1
            self.chain = blake2b(self.chain + entry.command, digest_size=8).digest()

    def save(self) -> bytes:
        """Count and digest."""
        return json.dumps([self.count, self.chain.hex()]).encode()

    def load(self, index: int, data: bytes) -> None:
        """Count and digest."""
        self.index = index
        self.count, chain = json.loads(data)
        self.chain = bytes.fromhex(chain)

    def digest(self) -> str:
        """Count and digest."""
        return f"{self.count}:{self.chain.hex()}"
