"""The state machine that a cluster replicates on top of the engine, pluggable."""

import json
from hashlib import blake2b
from random import Random
from typing import Protocol

from rt.format.frame import Header, seal_header, session_tag
from sequencer.ledger.instruction import Merge, Slice, decode_instruction, encode_instruction
from sequencer.ledger.ledger import Ledger, decode_ledger
from sequencer.raft.consensus import Entry, EntryKind

from .checkers import Violation

# the imagined sessions and their groups
GROUPS = {"jfk": "", "lga": "", "red": "pair", "blue": "pair"}


class Machine(Protocol):
    """A deterministic state machine; equal `digest` at equal `index` on every node."""

    index: int

    def command(self, chance: Random, serial: int) -> bytes:
        """Return a command that a client of this node proposes, based on its current state."""

    def apply(self, entry: Entry) -> None:
        """Apply the next entry."""

    def save(self) -> bytes:
        """Return the state, for a snapshot."""

    def load(self, index: int, data: bytes) -> None:
        """Replace the state by one that was saved after the entry `index`."""

    def digest(self) -> str:
        """Return a fingerprint of the state."""


class Tape:
    """The smallest machine: a count, and a running digest of all commands in order."""

    def __init__(self) -> None:
        self.index = 0
        self.count = 0
        self.chain = b""

    def command(self, chance: Random, serial: int) -> bytes:
        """Return a unique number and some padding."""
        return b"%d." % serial + bytes(chance.randrange(30))

    def apply(self, entry: Entry) -> None:
        """Apply the next entry."""
        self.index = entry.index
        if entry.command:
            self.count += 1
            self.chain = blake2b(self.chain + entry.command, digest_size=8).digest()

    def save(self) -> bytes:
        """Return count and digest."""
        return json.dumps([self.count, self.chain.hex()]).encode()

    def load(self, index: int, data: bytes) -> None:
        """Load count and digest."""
        self.index = index
        self.count, chain = json.loads(data)
        self.chain = bytes.fromhex(chain)

    def digest(self) -> str:
        """Return count and digest."""
        return f"{self.count}:{self.chain.hex()}"


class Books:
    """The sequencer's own state: real instructions on the real ledger, over imagined sessions.

    `red` and `blue` are redundant publishers of the same numbered messages. Several instructions
    may be in flight, planned on states that have changed when they arrive: then every node leaves
    out the same slices. Each message is counted once, and in order, whatever was repeated.
    """

    def __init__(self) -> None:
        self.index = 0
        self.ledger = Ledger(file_bytes_max=5_000)
        self.seen = dict.fromkeys(GROUPS, 0)  # messages seen of each session, repeats included

    def command(self, chance: Random, serial: int) -> bytes:
        """Return slices of some sessions, as a leader would cut them."""
        names = chance.sample(sorted(GROUPS), chance.randint(1, 3))
        if {"red", "blue"} <= set(names):
            names.remove("blue")
        return encode_instruction(Merge(serial, tuple(self._slice(chance, n) for n in names)))

    def _slice(self, chance: Random, name: str) -> Slice:
        group, seen, after = GROUPS[name], self.seen[name], self.ledger.merged_to(name)
        watermark = self.ledger.watermark(f"group {group}" if group else name)
        messages = chance.randint(1, 5)
        skip = min(max(watermark - seen, 0), messages)
        following = max(watermark, seen + messages)
        length = 8 * chance.randint(9, 60)
        return Slice(name, after, after, length, messages, skip, watermark, following, group)

    def apply(self, entry: Entry) -> None:
        """Execute an instruction as every node does."""
        self.index = self.ledger.index = entry.index
        if entry.kind is not EntryKind.COMMAND:
            return
        instruction = decode_instruction(entry.command)
        for each in instruction.slices if isinstance(instruction, Merge) else ():
            if self.ledger.accepts(each):
                self._merge(each, entry.term, instruction.time_ns)
        if self.ledger.number != sum(self.ledger.watermarks.values()):
            raise Violation(f"{self.ledger.number} messages merged, {self.ledger.watermarks} seen")

    def _merge(self, each: Slice, term: int, time_ns: int) -> None:
        ledger = self.ledger
        self.seen[each.session] += each.messages
        if each.skip == each.messages:
            ledger.pass_over(each)
            return
        merged = ledger.range_of(each, term, time_ns)
        size = merged.size + each.length
        if ledger.needs_roll(size):
            ledger.roll()
        headers = _header(each)
        merged = merged.digested(ledger.digest, ledger.end, headers)
        ledger.record_slice(each, merged, size, headers)

    def save(self) -> bytes:
        """Return the ledger and the messages seen."""
        return json.dumps(self.seen).encode() + b"\n" + self.ledger.encode()

    def load(self, index: int, data: bytes) -> None:
        """Load the ledger and the messages seen."""
        seen, _, ledger = data.partition(b"\n")
        self.index, self.seen, self.ledger = index, json.loads(seen), decode_ledger(ledger)

    def digest(self) -> str:
        """Return the running digest of the merged log, and where it ends."""
        return f"{self.ledger.digest.hex()} {self.ledger.end} {self.ledger.number} {self.seen}"


def _header(each: Slice) -> bytes:
    """Return the header of the one imagined frame of a slice."""
    tag = session_tag(each.session)
    return seal_header(Header(each.first, 0, 0, 0, 1, 64, 64, 0, 0, 0, 0, tag))
