"""RestartCheck: detects, with the other nodes, whether this node's state is an older copy.

A node sends no consensus messages until a majority, itself included, has confirmed its present
start. Another node confirms the start after recording it durably, and sends along what it remembers
of the restarted node. If that memory contradicts the restarted node's claim, the claim comes from
an older copy, and the confirmation does not count.
"""

import logging
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from rt.errors import PeerError
from sequencer.journal.starts import Memories
from sequencer.raft.quorum import majority_of
from sequencer.raft.starts import (
    CHAIN_MAX,
    Claim,
    Memory,
    Reach,
    StartChain,
    contradiction,
    remembered,
)

_log: Final = logging.getLogger("rt.node")
PATIENCE_TICKS: Final = 25  # an election timeout: how long to wait for more than a majority
GREET_TICKS: Final = 25  # 0.5 s, between two greetings of all nodes
HASTE_TICKS: Final = 5  # between greetings while the start is not confirmed
SAVE_TICKS: Final = 500  # 10 s, between two saves of the other nodes' progress
_INCARNATIONS_MAX: Final = 4  # remembered per node

# Incarnation, number of starts, term and entry at the start, term and entry now, the random number
# of the confirmed start, and how many random numbers follow.
_CLAIM: Final = struct.Struct("<QQQQQQQB")
_MEMORY: Final = struct.Struct("<BQQQQQ")  # 1 if there is a memory, else 0; its fields
_NONCE: Final = struct.Struct("<Q")


class RestartMessage(NamedTuple):
    """RestartMessage: a node's greeting to another.

    Attributes:
        claim: the sender's claim.
        confirmed: the random number of the receiver's latest start that the sender knows of; 0 if
            the sender knows of none. The sender has recorded that start durably, unless `memory`
            contradicts it.
        memory: what the sender remembers of the receiver, or None.
    """

    claim: Claim
    confirmed: int
    memory: Memory | None


def encode_restart(hello: RestartMessage) -> bytes:
    """Return the bytes of a greeting."""
    claim, memory = hello.claim, hello.memory or Memory(0, 0, 0, Reach())
    begun, now, nonces = claim.begun, claim.now, claim.chain.nonces
    parts = [
        _CLAIM.pack(claim.incarnation, claim.chain.count, begun.term, begun.index, now.term,
                    now.index, hello.confirmed, len(nonces)),
        _MEMORY.pack(hello.memory is not None, memory.incarnation, memory.count, memory.nonce,
                     memory.reach.term, memory.reach.index),
        *map(_NONCE.pack, nonces),
    ]  # fmt: skip
    return b"".join(parts)


def decode_restart(data: bytes) -> RestartMessage:
    """Return the greeting in these bytes; `PeerError` if they are malformed."""
    try:
        incarnation, count, *reaches, confirmed, length = _CLAIM.unpack_from(data)
        has_memory, *fields, term, index = _MEMORY.unpack_from(data, _CLAIM.size)
        nonces = [nonce for (nonce,) in _NONCE.iter_unpack(data[_CLAIM.size + _MEMORY.size :])]
    except struct.error:
        raise PeerError("malformed greeting") from None
    if has_memory > 1 or len(nonces) != length or not 0 < length <= min(count, CHAIN_MAX):
        raise PeerError("malformed greeting: a number out of range")
    begun, now = Reach(*reaches[:2]), Reach(*reaches[2:])
    claim = Claim(incarnation, StartChain(count, tuple(nonces)), begun, now)
    memory = Memory(fields[0], fields[1], fields[2], Reach(term, index)) if has_memory else None
    return RestartMessage(claim, confirmed, memory)


class RestartCheck:
    """RestartCheck: keeps a node's claim and its memories of others, and counts confirmations."""

    def __init__(
        self,
        others: Sequence[str],
        claim: Claim,
        memories: Memories,
        save: Callable[[Memories], None],
    ) -> None:
        """Begin before any other node has confirmed this node's start.

        Args:
            others: all other members.
            claim: this node's claim, from `sequencer.journal.starts.begin_start`.
            memories: the memories of other nodes that were saved last.
            save: makes memories durable; an `OSError` stops the node.
        """
        self.claim = claim
        self.finding = ""  # why this state is an older copy, once known
        self._lists: tuple[frozenset[str], ...] = (frozenset(others),)
        self._is_over = False
        self.memories = {name: list(memories.get(name, ())) for name in {*memories, *others}}
        self._save = save
        self._is_saved = True
        self._heard: dict[str, Claim] = {}  # each node's latest claim
        self._confirming: set[str] = set()
        self.is_due = False  # whether to greet every member now; repeated, as messages may be lost
        self.ticks = 0  # since this node started

    @property
    def is_over(self) -> bool:
        """Whether this node may take part in the consensus; never becomes false again.

        It may take part once all other voters have confirmed its start, or once a majority has and
        `PATIENCE_TICKS` have passed.
        """
        if not self._is_over:
            is_whole = any(each <= self._confirming for each in self._lists)
            self._is_over = is_whole or (not self.waits_for and self.ticks >= PATIENCE_TICKS)
        return self._is_over

    @property
    def waits_for(self) -> int:
        """How many more nodes must confirm this start."""
        return 0 if self._is_over else min(self._lacking(each) for each in self._lists)

    def _lacking(self, others: frozenset[str]) -> int:
        needed = majority_of(len(others) + 1) - 1
        return max(0, needed - len(self._confirming & others))

    def follow(self, *lists: Iterable[str]) -> None:
        """Set the other voters: one list, or two while a change of the members is undecided.

        With two lists, confirmations by a majority of either list are enough, since the voters
        before the change may still elect a leader and undo the change.
        """
        self._lists = tuple(map(frozenset, lists))

    def tick(self) -> None:
        """Let a unit of time pass."""
        self.ticks += 1
        self.is_due = self.ticks % (GREET_TICKS if self.is_over else HASTE_TICKS) == 1
        if self.ticks % SAVE_TICKS == 0:
            self.save()

    def advance(self, reach: Reach) -> None:
        """Record how far this node's durable state reaches; call it before greeting the members."""
        claim, self.is_due = self.claim, False
        self.claim = Claim(claim.incarnation, claim.chain, claim.begun, claim.now.joined(reach))

    def save(self) -> None:
        """Make the memories durable, unless nothing has changed since the last save."""
        if not self._is_saved:
            self._save(self.memories)
            self._is_saved = True

    def hello(self, to: str) -> bytes:
        """Return the greeting for a member."""
        heard = self._heard.get(to)
        if heard is None:
            return encode_restart(RestartMessage(self.claim, 0, None))
        memory = _of(self.memories.get(to, ()), heard.incarnation)
        return encode_restart(RestartMessage(self.claim, heard.chain.nonce, memory))

    def receive(self, sender: str, data: bytes) -> bool:
        """Handle a member's greeting; return whether to answer it now, with a greeting.

        Raises:
            PeerError: the greeting is malformed; nothing was recorded.
        """
        hello = decode_restart(data)
        own, before = self.claim.chain.nonce, self._heard.get(sender)
        is_new = before is None or before.chain.nonce != hello.claim.chain.nonce
        self._remember(sender, hello.claim)
        self._heard[sender] = hello.claim
        if hello.memory is not None and (why := contradiction(hello.memory, self.claim)):
            self._find(f"node {sender} remembers that {why}")
        elif hello.confirmed == own:
            self._confirming.add(sender)
        return is_new or hello.confirmed != own

    def _find(self, finding: str) -> None:
        if not self.finding:
            self.finding = finding
            _log.error("this node is an older copy of itself: %s", finding)

    def _remember(self, name: str, claim: Claim) -> None:
        """Remember a node's claim unless it contradicts a memory; save now if its start is new."""
        memories = self.memories.get(name, [])
        known = _of(memories, claim.incarnation)
        if known is not None and contradiction(known, claim):
            return
        memory = remembered(known, claim)
        if memory == known:
            return
        kept = [each for each in memories if each.incarnation != claim.incarnation]
        self.memories[name] = [*kept, memory][-_INCARNATIONS_MAX:]
        self._is_saved = False
        if known is None or known.nonce != memory.nonce:
            self.save()


def _of(memories: Iterable[Memory], incarnation: int) -> Memory | None:
    """Return the memory of an incarnation, or None."""
    return next((each for each in memories if each.incarnation == incarnation), None)
