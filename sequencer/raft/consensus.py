"""Consensus: the little that a sequencer asks of an engine that makes nodes agree on commands.

An engine is a function from events to effects. It has no file, socket, clock or thread: the node
brings events (`propose`, `step`, `tick`, `persisted`), takes a `Ready`, and does its duties in the
order in which its fields stand:

    while ready := engine.ready():
        send(ready.early)                     # may overlap with the next line
        journal.persist(ready)                # ballot, snapshot, entries: one sync
        engine.persisted(ready)               # only now does this node's own copy count
        send(ready.messages)                  # what speaks of things that had to be durable first
        restore(ready.snapshot); apply(ready.committed); answer(ready.reads)

Between `ready` and `persisted` the node may go on to bring events; the next `Ready` waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

COMMAND_BYTES_MAX: Final = 1 << 20  # an instruction is ranges: 32 bytes each, 1,000 sessions
MEMBERS_ALLOWED: Final = (1, 3, 5, 7)
FOUNDER: Final = 0  # the incarnation of every node that was there when the cluster was made


class EntryKind(IntEnum):
    """What an entry is for; an application applies commands and only counts the rest."""

    COMMAND = 1
    NOTHING = 2  # a new leader's first entry, which commits what it inherited
    MEMBER = 3  # a member's incarnation: suspended, or admitted after its state was lost


class EngineRole(IntEnum):
    """What a node is at the moment."""

    LEARNER = 1  # follows, but neither votes nor counts: its state was lost
    FOLLOWER = 2
    PRE_CANDIDATE = 3
    CANDIDATE = 4
    LEADER = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """One place of the replicated log."""

    index: int
    term: int
    command: bytes
    kind: EntryKind = EntryKind.COMMAND


@dataclass(frozen=True, slots=True)
class Ballot:
    """What a node must never forget of elections: its term, and for whom it voted there."""

    term: int = 0
    voted_for: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The application's state after the entry `index`, and who was a member then.

    Attributes:
        index: the last entry whose effect is in `data`.
        term: the term of that entry.
        roster: name and incarnation of each member as of that entry, by name.
        data: the application's bytes.
    """

    index: int
    term: int
    roster: tuple[tuple[str, int], ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class PeerMessage:
    """Bytes for one peer; they may be lost, repeated, late or out of order."""

    to: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """A read that was asked for may be answered from a state that has applied `index`."""

    ticket: int
    index: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The duties of a node, in the order in which they must be done.

    Attributes:
        early: messages that promise nothing of this node's disk; send them at once.
        ballot: to be made durable, if not None.
        snapshot: received from the leader: to be made durable in place of the log before it, and
            restored into the application before `committed` is applied.
        entries: to be made durable; the log is first cut at the index of the first of them.
        messages: to be sent after all of the above is durable, never before.
        committed: to be applied, in order, each exactly once; a restart begins at the snapshot.
        reads: may be answered once their index is applied.
    """

    early: tuple[PeerMessage, ...] = ()
    ballot: Ballot | None = None
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()
    messages: tuple[PeerMessage, ...] = ()
    committed: tuple[Entry, ...] = ()
    reads: tuple[Read, ...] = ()

    @property
    def must_persist(self) -> bool:
        """Whether the disk has to be touched at all."""
        return bool(self.entries) or self.ballot is not None or self.snapshot is not None


@dataclass(frozen=True, slots=True)
class EngineState:
    """What a journal gives back at the start, and an engine starts from."""

    ballot: Ballot = Ballot()
    snapshot: Snapshot | None = None
    entries: Sequence[Entry] = ()
    incarnation: int = FOUNDER


@dataclass(frozen=True, slots=True)
class Peer:
    """One other member as the leader sees it.

    Attributes:
        name: the member.
        match: the last entry known to be durable there.
        lag: entries of the leader's log that are not known to be durable there.
        silent_ticks: ticks since it was last heard.
        counts: False while it is a learner.
        state: `probe`, `stream` or `snapshot`: how entries are being sent to it.
    """

    name: str
    match: int
    lag: int
    silent_ticks: int
    counts: bool
    state: str


@dataclass(frozen=True, slots=True)
class Status:
    """What can be shown of an engine; `peers` is empty unless it leads.

    Attributes:
        name: this node.
        role: what it is now.
        term: the newest term it knows.
        leader: the leader of that term as far as known, or "".
        commit: the last entry known to be committed.
        last: the last entry of its log.
        durable: the last entry that is durable here.
        snapshot: the last entry behind the snapshot.
        peers: the others, by name.
        refusal: why a peer's configuration was refused last, or "".
    """

    name: str
    role: EngineRole
    term: int
    leader: str
    commit: int
    last: int
    durable: int
    snapshot: int
    peers: tuple[Peer, ...]
    refusal: str


class Consensus(Protocol):
    """An engine. One thread drives it; nothing here blocks."""

    @property
    def leader(self) -> str:
        """The leader of the newest known term, or "" if none is known."""

    @property
    def leads(self) -> bool:
        """Whether this node leads now, as far as it knows."""

    def propose(self, command: bytes) -> Entry:
        """Append a command; it is decided when the same index and term come back as committed.

        Raises:
            Refused: `not-leader` (names the leader), `busy` (too much is undecided already),
                `moving` (leadership is being handed over), `too-large`.
        """

    def step(self, sender: str, data: bytes) -> None:
        """Take a message of `sender`, whose name the transport has proved.

        Raises:
            PeerError: the bytes are malformed, break the protocol, or the sender's configuration
                is another one; no entry, vote or acknowledgement of the message was taken.
        """

    def tick(self) -> None:
        """Let one unit of time pass."""

    def ready(self) -> Ready | None:
        """The next duties, or None if there are none or the last were not yet `persisted`."""

    def persisted(self, ready: Ready) -> None:
        """All that `ready` wanted durable is durable."""

    def compact(self, index: int, data: bytes) -> Snapshot | None:
        """Take the application's state as of the applied entry `index`; the log is cut behind it.

        Returns:
            The snapshot, for the journal to save; until it has, a restart uses the older one.
            None if a newer one is there already, such as one that the leader has just sent.
        """

    def read_index(self, ticket: int) -> None:
        """Ask from where a read is linearizable; a `Read` with this ticket answers in a `Ready`.

        No answer means that leadership moved or a message was lost: ask again, with a new ticket.

        Raises:
            Refused: `no-leader`, or `busy`.
        """

    def transfer(self, to: str) -> None:
        """Hand leadership to a member, for a planned stop; given up after an election timeout.

        Raises:
            Refused: `not-leader`, or `not-a-member`.
        """

    def status(self) -> Status:
        """What can be shown; costs a few microseconds per peer."""
