"""Starts: detects whether a node's state is an older copy of what another node remembers.

A checksum cannot detect an older copy of a directory, whose checksums are valid too; only another
node's memory can. At each start, a node draws a random number, and its directory keeps the numbers
of the latest starts in order. If another node remembers a different number for some start, or more
starts, then the node runs on an older copy of its own state.
"""

from dataclasses import dataclass
from typing import Final

# How many starts a directory keeps the numbers of. If an older copy is started more often than this
# before a node that remembers the original returns, its starts no longer expose it.
CHAIN_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Reach:
    """Reach: how far a node's durable state reaches; neither field ever decreases.

    Attributes:
        term: the newest term on its disk.
        index: the last entry that is on its disk and known to be committed.
    """

    term: int = 0
    index: int = 0

    def joined(self, other: "Reach") -> "Reach":
        """Return the larger value of each field."""
        return Reach(max(self.term, other.term), max(self.index, other.index))


@dataclass(frozen=True, slots=True)
class StartChain:
    """The starts of one copy of a node's state.

    Attributes:
        count: number of starts.
        nonces: the random numbers of the latest starts, oldest first; at most `CHAIN_MAX`.
    """

    count: int = 0
    nonces: tuple[int, ...] = ()

    @property
    def nonce(self) -> int:
        """The random number of the last start; 0 if there was none."""
        return self.nonces[-1] if self.nonces else 0

    def extended(self, nonce: int) -> "StartChain":
        """The chain with one more start."""
        return StartChain(self.count + 1, (*self.nonces, nonce)[-CHAIN_MAX:])

    def at(self, number: int) -> int | None:
        """The random number of the `number`th start, counted from 1; None if it is forgotten."""
        place = number - 1 - (self.count - len(self.nonces))
        return self.nonces[place] if 0 <= place < len(self.nonces) else None


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim: what a running node says about itself.

    Attributes:
        incarnation: the copy of its state that is running.
        chain: the starts of that copy, this one last.
        begun: how far its disk reached at the start, including undecided entries, since other nodes
            may know that some of them are committed.
        now: how far its disk reaches now, without undecided entries, which a leader may truncate.
    """

    incarnation: int
    chain: StartChain
    begun: Reach
    now: Reach


@dataclass(frozen=True, slots=True)
class Memory:
    """What a node remembers of one copy of another node's state.

    Attributes:
        incarnation: the copy's incarnation.
        count: how often it had been started.
        nonce: the random number of its last start.
        reach: how far its disk reached.
    """

    incarnation: int
    count: int
    nonce: int
    reach: Reach


def contradiction(memory: Memory, claim: Claim) -> str:
    """Return why a claim contradicts the memory of an earlier state of the same copy, or "".

    A delayed claim also contradicts a memory that is newer than the claim. So only the claiming
    node may draw a conclusion, from its current claim.

    >>> memory = Memory(0, 2, 22, Reach(3, 100))
    >>> contradiction(memory, Claim(0, StartChain(3, (11, 22, 33)), Reach(3, 100), Reach(3, 105)))
    ''
    >>> contradiction(memory, Claim(0, StartChain(2, (11, 44)), Reach(3, 100), Reach(3, 105)))
    'start 2 was another one'
    """
    chain, reach = claim.chain, memory.reach
    if memory.incarnation != claim.incarnation:
        return ""
    if memory.count > chain.count:
        return f"it had been started {memory.count} times, and not {chain.count}"
    if chain.at(memory.count) not in {None, memory.nonce}:
        return f"start {memory.count} was another one"
    own = claim.begun.joined(claim.now) if memory.count == chain.count else claim.begun
    if own.term < reach.term:
        return f"it had entered term {reach.term}, and has only term {own.term}"
    if own.index < reach.index:
        return f"it had entry {reach.index}, and has only {own.index}"
    return ""


def remembered(memory: Memory | None, claim: Claim) -> Memory:
    """Return the memory to keep after a claim that does not contradict the previous memory."""
    reach = claim.now if memory is None else claim.now.joined(memory.reach)
    return Memory(claim.incarnation, claim.chain.count, claim.chain.nonce, reach)
