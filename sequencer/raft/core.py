"""The core of a Raft node: what it holds in every role, and the duties that gather in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rt.errors import Misuse
from sequencer.raft.consensus import (
    Ballot,
    EngineState,
    Entry,
    EntryKind,
    PeerMessage,
    Read,
    Ready,
    Snapshot,
)
from sequencer.raft.entries import unpack_member
from sequencer.raft.log import Log
from sequencer.raft.messages import BATCH_BYTES, CHUNK_BYTES, AnyMessage, Appended, MessageCodec
from sequencer.raft.quorum import Roster, checked_members, majority_of
from sequencer.raft.snapshots import Assembly, encode_snapshot

APPLY_ENTRIES_MAX: Final = (
    4096  # handed over at once: bounds the work between two looks at the wire
)


class Chance(Protocol):
    """What is asked of `random.Random`, given from outside so that a seed replays a run."""

    def randrange(self, stop: int, /) -> int:
        """A number from 0 to `stop` - 1."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How long a node waits and how much it sends at once.

    Attributes:
        heartbeat_ticks: between two signs of life of a leader.
        election_ticks: of silence before a follower stands; the wait is drawn up to twice that.
        batch_bytes_max: of commands in one message.
        window_entries_max: sent to a peer and not acknowledged.
        undecided_bytes_max: of proposed commands before a proposal is refused.
        chunk_bytes: of a snapshot in one message.
        trail_entries: kept in memory behind a snapshot, for peers that are a little late.
    """

    heartbeat_ticks: int = 5
    election_ticks: int = 25
    batch_bytes_max: int = BATCH_BYTES
    window_entries_max: int = 8192
    undecided_bytes_max: int = 16 << 20
    chunk_bytes: int = CHUNK_BYTES
    trail_entries: int = 1000

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks:
            raise Misuse("heartbeat_ticks must be at least 1 and less than election_ticks")
        if not 0 < self.batch_bytes_max <= BATCH_BYTES or not 0 < self.chunk_bytes <= CHUNK_BYTES:
            raise Misuse(f"a batch or chunk has 1 to {BATCH_BYTES} bytes")


class Core:
    """What a node holds in every role.

    Attributes:
        name: this node.
        others: the other members.
        majority: how many members decide.
        log: the entries.
        commit: the last entry known to be committed.
        term, voted_for: the ballot.
        leader: of this term, or "".
        roster: which incarnation of each member counts.
        snapshot: the newest one, or None; `blob` is its bytes.
    """

    __slots__ = (
        "_ack",
        "_after",
        "_ballot_saved",
        "_codec",
        "_early",
        "_handed",
        "_installing",
        "_reads",
        "assembly",
        "blob",
        "commit",
        "incarnation",
        "leader",
        "log",
        "majority",
        "members",
        "name",
        "others",
        "roster",
        "settings",
        "snapshot",
        "term",
        "voted_for",
    )

    def __init__(
        self,
        name: str,
        members: Sequence[str],
        cluster: str,
        state: EngineState,
        settings: Settings,
    ) -> None:
        self.name = name
        self.members = checked_members(members)
        if name not in self.members:
            raise Misuse(f"node {name!r} is not one of the members {list(self.members)}")
        self.others = tuple(other for other in self.members if other != name)
        self.majority = majority_of(len(self.members))
        self.settings = settings
        self.incarnation = state.incarnation
        self._codec = MessageCodec(cluster, self.members, state.incarnation)
        self.term, self.voted_for = state.ballot.term, state.ballot.voted_for
        self._ballot_saved = state.ballot
        self.leader = ""
        self.assembly = Assembly()
        self._restore(state)
        self._installing: Snapshot | None = None
        self._early: list[PeerMessage] = []
        self._after: list[PeerMessage] = []
        self._ack: tuple[str, Appended] | None = None
        self._reads: list[Read] = []

    def _restore(self, state: EngineState) -> None:
        self.snapshot = snapshot = state.snapshot
        self.blob = encode_snapshot(snapshot) if snapshot else b""
        base, base_term, self.roster = 0, 0, Roster.founding(self.members)
        if snapshot is not None:
            base, base_term = snapshot.index, snapshot.term
            self.roster = Roster(base, dict(snapshot.roster))
        if tuple(self.roster.now) != self.members:
            raise Misuse(f"the state is of {list(self.roster.now)}, not of {list(self.members)}")
        self.log = Log(base, base_term)
        for entry in state.entries:
            self.append(entry)
        self.log.durable = self.log.last
        self.commit = self._handed = base

    @property
    def voter(self) -> bool:
        """Whether this copy of this node's state counts."""
        return self.roster.now[self.name] == self.incarnation

    def decode(self, data: bytes) -> tuple[int, AnyMessage]:
        """The sender's incarnation and its message."""
        return self._codec.decode(data)

    def ballot(self, term: int, voted_for: str) -> None:
        """Enter a term, or vote in it."""
        self.term, self.voted_for = term, voted_for

    def say_early(self, to: str, message: AnyMessage) -> None:
        """Send what promises nothing of this node's disk."""
        self._early.append(PeerMessage(to, self._codec.encode(message)))

    def say(self, to: str, message: AnyMessage) -> None:
        """Send after what is undurable now has become durable."""
        self._after.append(PeerMessage(to, self._codec.encode(message)))

    def acknowledge(self, to: str, answer: Appended) -> None:
        """Answer the leader; several answers before the next `Ready` become one."""
        if self._ack is not None:
            before = self._ack[1]
            if self._ack[0] == to and before.taken and answer.taken and before.term == answer.term:
                index, round_ = max(before.index, answer.index), max(before.round, answer.round)
                answer = Appended(answer.term, True, index, round_)
            else:
                self.say(*self._ack)
        self._ack = (to, answer)

    def answer_read(self, ticket: int, index: int) -> None:
        """Tell this node's own reader."""
        self._reads.append(Read(ticket, index))

    def append(self, entry: Entry) -> None:
        """Put an entry at the end of the log."""
        self.log.append(entry)
        if entry.kind is EntryKind.MEMBER:
            self.roster.change(entry.index, *unpack_member(entry.command))

    def cut(self, index: int) -> None:
        """Forget the entries from `index` on; the leader has others there."""
        self.log.cut(index)
        self.roster.cut(index)

    def commit_to(self, index: int) -> None:
        """Learn that entries are decided up to `index`."""
        self.commit = max(self.commit, index)

    def install(self, snapshot: Snapshot, blob: bytes) -> None:
        """Take the leader's snapshot in place of the log."""
        self.log.reset(snapshot.index, snapshot.term)
        self.roster = Roster(snapshot.index, dict(snapshot.roster))
        self.snapshot, self.blob, self._installing = snapshot, blob, snapshot
        self.commit = self._handed = snapshot.index

    def compact(self, index: int, data: bytes, needed: int) -> Snapshot | None:
        """Make a snapshot of the applied entry `index` and cut the log a little behind it.

        Args:
            index: the last entry in it.
            data: the application's state.
            needed: an index behind which a peer still needs every entry.
        """
        if self.snapshot is not None and index <= self.snapshot.index:
            return None
        term = self.log.term_at(index)
        if term is None or index > min(self._handed, self.log.durable):
            raise Misuse(f"entry {index} is not one that was handed over and is durable")
        self.snapshot = Snapshot(index, term, self.roster.at(index), data)
        self.blob = encode_snapshot(self.snapshot)
        self.log.compact(min(needed, index - self.settings.trail_entries))
        self.roster.compact(self.log.base)
        return self.snapshot

    def take_ready(self) -> Ready | None:
        """The duties that have gathered, or None."""
        if self._ack is not None:
            self.say(*self._ack)
            self._ack = None
        if not self._has_duties():  # as it is most times, so nothing more is made
            return None
        ready = Ready(
            tuple(self._early),
            self._unsaved_ballot(),
            self._installing,
            self.log.unsaved(),
            tuple(self._after),
            self._uncovered(),
            tuple(self._reads),
        )
        self._handed += len(ready.committed)
        self._installing = None
        for gathered in (self._early, self._after, self._reads):
            gathered.clear()
        return ready

    def _has_duties(self) -> bool:
        return bool(
            self._early
            or self._after
            or self._reads
            or self._handed != self.commit
            or self.log.durable < self.log.last
            or self._installing
            or self._unsaved_ballot()
        )

    def _unsaved_ballot(self) -> Ballot | None:
        saved = self._ballot_saved
        if saved.term == self.term and saved.voted_for == self.voted_for:
            return None
        return Ballot(self.term, self.voted_for)

    def _uncovered(self) -> tuple[Entry, ...]:
        if self._handed == self.commit:
            return ()
        return self.log.between(
            self._handed + 1, min(self.commit, self._handed + APPLY_ENTRIES_MAX)
        )

    def persisted(self, ready: Ready) -> None:
        """Count as durable what that `Ready` held and the log still holds."""
        if ready.ballot is not None:
            self._ballot_saved = ready.ballot
        if ready.snapshot is not None:
            self.log.durable = max(self.log.durable, ready.snapshot.index)
        if ready.entries:
            self.log.saved(ready.entries[-1])
