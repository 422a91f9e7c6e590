"""Starts: detects whether a node's state is an older copy of what another node remembers.

A checksum cannot detect an older copy of a directory, since it was valid once; only another node's
memory can. Each start of a node draws a random number, and the directory keeps the numbers of its
latest starts in order. If a node's number for a start differs from the one another node remembers,
or it counts fewer starts, it runs on an older copy of its own state.
"""

from dataclasses import dataclass
from typing import Final

# Starts whose numbers are kept. An older copy that was started more often than this, before a node
# that remembers the original returns, is no longer recognized by its starts.
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
        begun: what its disk had at the start, undecided entries included: other nodes may know that
            some of them are committed.
        now: what its disk has now, without undecided entries, since a leader may truncate those.
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
        reach: what it had on its disk.
    """

    incarnation: int
    count: int
    nonce: int
    reach: Reach


def contradiction(memory: Memory, claim: Claim) -> str:
    """Return why a claim cannot have followed a remembered state of the same copy, or "".

    A claim that arrives late contradicts a newer memory, too. So only the claiming node may draw a
    conclusion, from its current claim.

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
