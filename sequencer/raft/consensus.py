"""Consensus: the interface of an engine that makes nodes agree on commands.

An engine is a function from events to effects. It has no file, socket, clock or thread: the node
feeds it events (`propose`, `step`, `tick`, `persisted`), takes a `Ready`, and performs its duties
in the order of its fields:

    while ready := engine.ready():
        send(ready.early)                     # may overlap with the next line
        journal.persist(ready)                # ballot, snapshot, entries: one sync
        engine.persisted(ready)               # now this node counts towards majorities
        send(ready.messages)                  # these promise that the above is durable
        restore(ready.snapshot); apply(ready.committed); answer(ready.reads)

Between `ready` and `persisted` the node may feed further events; the next `Ready` comes only after
`persisted`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from rt.errors import PeerError

COMMAND_BYTES_MAX: Final = 1 << 20  # an instruction has 32 bytes a session, for 1,000 sessions
MEMBERS_ALLOWED: Final = (1, 3, 5, 7)  # how many members may found a cluster
VOTERS_MAX: Final = 7
LEARNERS_MAX: Final = 1  # so that each is promoted or removed before the next is added
INCARNATION_END: Final = 1 << 61  # all incarnations are less
FOUNDER: Final = 0  # the incarnation of every founding member of a cluster


class EntryKind(IntEnum):
    """What an entry is for; the application applies commands and skips the rest."""

    COMMAND = 1
    NO_OP = 2  # a new leader's first entry; committing it commits the inherited entries
    MEMBER = 3  # a member is suspended, or admitted after it lost its state
    CONFIGURATION = 4  # all members, after one was added, promoted, moved or removed


class EngineRole(IntEnum):
    """EngineRole: the role of a node."""

    LEARNER = 1  # replicates without a vote: newly added, or its state was lost
    FOLLOWER = 2
    PRE_CANDIDATE = 3
    CANDIDATE = 4
    LEADER = 5


@dataclass(frozen=True, slots=True)
class Seat:
    """Seat: one member in a configuration.

    Attributes:
        incarnation: the copy of the member's state that counts; see `sequencer.raft.quorum` for
            the values that mean none.
        votes: False for a learner, which receives everything but does not vote.
        address: host:port where the other nodes reach it; "" if the log does not say.
    """

    incarnation: int
    votes: bool = True
    address: str = ""


Configuration = Mapping[str, Seat]
Place = tuple[int, int]  # term and index of an entry, compared as in an election


class UnheardError(PeerError):
    """As far as this node knows, the sender may not send such a message; it had no effect."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the replicated log."""

    index: int
    term: int
    command: bytes
    kind: EntryKind = EntryKind.COMMAND


@dataclass(frozen=True, slots=True)
class Ballot:
    """Ballot: a node's term and its vote in that term, which it must never forget."""

    term: int = 0
    voted_for: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Snapshot: the application's state and the configuration after the entry `index`.

    Attributes:
        index: the last entry whose effect is in `data`.
        term: the term of that entry.
        roster: each member as of that entry, by name.
        data: the application's bytes.
    """

    index: int
    term: int
    roster: tuple[tuple[str, Seat], ...]
    data: bytes


class PeerMessage(NamedTuple):
    """Bytes for one peer; they may be lost, duplicated, delayed or reordered."""

    to: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """Read: a requested read; any state that includes the entry `index` may answer it."""

    ticket: int
    index: int


class Ready(NamedTuple):
    """Ready: a node's duties; the fields are in the order in which to perform them.

    Attributes:
        early: messages that promise nothing about this node's disk; send them at once.
        ballot: a ballot to make durable, if not None.
        snapshot: a snapshot from the leader, to make durable in place of the log up to it, and to
            restore into the application before `committed` is applied.
        entries: entries to make durable; the log is first truncated at the index of the first.
        messages: messages to send once all of the above is durable, never earlier.
        committed: entries to apply, in order, each exactly once; after a restart, those after the
            snapshot come again.
        reads: reads that may be answered once their index has been applied.
        disowned: whether the other members found that this copy of the node's state lost
            acknowledged entries. The copy never counts again; the journal sets it aside and stops.
        removed: whether this node is no longer a member. The journal records that and stops.
    """

    early: tuple[PeerMessage, ...] = ()
    ballot: Ballot | None = None
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()
    messages: tuple[PeerMessage, ...] = ()
    committed: tuple[Entry, ...] = ()
    reads: tuple[Read, ...] = ()
    disowned: bool = False
    removed: bool = False

    @property
    def must_persist(self) -> bool:
        """Whether anything must be written."""
        has_state = self.ballot is not None or self.snapshot is not None
        return bool(self.entries) or has_state or self.disowned or self.removed

    @property
    def settled(self) -> tuple[Entry, ...]:
        """The part of `committed` that may be applied before the sync, as it precedes `entries`."""
        if not self.entries or self.snapshot is not None or self.disowned or self.removed:
            return ()
        first = self.entries[0].index
        return tuple([each for each in self.committed if each.index < first])


@dataclass(frozen=True, slots=True)
class EngineState:
    """EngineState: what a journal recovers and an engine starts from.

    Attributes:
        ballot: the last term and vote.
        snapshot: the newest snapshot, or None.
        entries: the entries after the snapshot.
        incarnation: identifies this copy of the node's state.
        founders: addresses of the cluster's founding members by name; empty if unknown.
    """

    ballot: Ballot = Ballot()
    snapshot: Snapshot | None = None
    entries: Sequence[Entry] = ()
    incarnation: int = FOUNDER
    founders: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork: an entry committed here differs in a leader's log, so a majority has lost it.

    Attributes:
        index: the first entry that was seen to differ; earlier ones may differ as well.
        leader: the leader's name.
        term: the leader's term.
    """

    index: int
    leader: str
    term: int


@dataclass(frozen=True, slots=True)
class Peer:
    """Peer: one other member as the leader sees it.

    Attributes:
        name: the member.
        match: the last entry known to be durable there.
        lag: entries of the leader's log that are not known to be durable there.
        silent_ticks: ticks since it was last heard from.
        counts: True if it votes, and its answers come from the copy of its state that is valid.
        state: `probe`, `replicate` or `snapshot`: how the leader sends to it.
    """

    name: str
    match: int
    lag: int
    silent_ticks: int
    counts: bool
    state: str


@dataclass(frozen=True, slots=True)
class Status:
    """Status: a view of an engine; `peers` is empty unless it leads.

    Attributes:
        name: this node.
        role: the node's role.
        term: the newest term it knows.
        leader: the leader of that term, or "" if unknown.
        commit: the last entry known to be committed.
        last: the last entry of its log.
        durable: the last entry that is durable here.
        peers: the other members.
        refusal: why messages of peers are refused, or "".
        members: the configuration as of the last entry of its log.
        is_current: whether this node leads, or has had everything that a leader had committed at
            some time since this node started and last installed a snapshot.
    """

    name: str
    role: EngineRole
    term: int
    leader: str
    commit: int
    last: int
    durable: int
    peers: tuple[Peer, ...]
    refusal: str
    members: Configuration
    is_current: bool = True


@dataclass(frozen=True, slots=True)
class Quiescence:
    """Quiescence: the log position at which a node has nothing left to agree on.

    Attributes:
        term: the newest term it knows; in that term, it leads or follows a leader.
        index: the last entry of its log, which is committed and durable.
    """

    term: int
    index: int


@dataclass(frozen=True, slots=True)
class LastChange:
    """LastChange: a log's configuration and the entry that made it.

    Attributes:
        term: term of that entry.
        index: index of that entry; if the log no longer holds it, of the last entry before the log.
        now: the configuration.
        before: the configuration it replaced, which returns if the entry is truncated; empty once
            the entry is known to be committed.
        listed: names in the committed configurations that this node's log still has.
    """

    term: int
    index: int
    now: Configuration
    before: Configuration
    listed: frozenset[str] = frozenset()
