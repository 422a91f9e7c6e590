"""The state that a Raft node holds in every role, and its pending duties."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rt.errors import Misuse
from sequencer.raft.codec import MessageCodec
from sequencer.raft.consensus import (
    FOUNDER,
    Ballot,
    Configuration,
    EngineState,
    Entry,
    EntryKind,
    LastChange,
    PeerMessage,
    Place,
    Read,
    Ready,
    Snapshot,
)
from sequencer.raft.entries import Log, unpack_configuration, unpack_member
from sequencer.raft.messages import BATCH_BYTES, CHUNK_BYTES, AnyMessage, AppendReply
from sequencer.raft.quorum import Roster, checked_members, is_suspended, suspended
from sequencer.raft.snapshots import SnapshotStore

APPLY_ENTRIES_MAX: Final = 4096  # per Ready: bounds the work between two reads of the network


class Chance(Protocol):
    """What an engine uses of `random.Random`, which is passed in so that a seed replays a run."""

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to `stop` - 1."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings: timeouts, and how much a node sends at once.

    Attributes:
        heartbeat_ticks: ticks between two heartbeats of a leader.
        election_ticks: the minimum election timeout; each timeout is random, from this to twice
            this.
        batch_bytes_max: bytes of commands in one message.
        window_entries_max: entries that may be sent to a peer before it acknowledges any of them.
        undecided_bytes_max: bytes of uncommitted commands; a proposal that exceeds them is refused.
        chunk_bytes: bytes of a snapshot in one message.
        trail_entries: entries up to a snapshot's index that are kept in memory, for peers that lag
            a little.
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
    """The state of a node, whatever its role.

    Attributes:
        name: this node.
        incarnation: the copy of this node's state that is running.
        founders: the addresses of the members that the cluster was founded with, by name.
        settings: timeouts and limits.
        term, voted_for: the ballot, which must be durable before it is acted on.
        leader: the leader of this term, or "".
        log: the entries.
        commit: the commit index: the last entry known to be committed.
        roster: which incarnation of each member counts.
        snapshots: the newest snapshot, and the one being received.
        outgoing: messages to send.
        announced: the term and index of the entry of a configuration that another node announced,
            then the configuration.
    """

    def __init__(
        self,
        name: str,
        members: Iterable[str],
        cluster: str,
        state: EngineState,
        settings: Settings,
    ) -> None:
        """Start from what the journal recovered; arguments and errors as for `Raft`."""
        addresses = members if isinstance(members, Mapping) else dict.fromkeys(members, "")
        self.name, self.incarnation, self.settings = name, state.incarnation, settings
        self.founders: Mapping[str, str] = state.founders or addresses
        is_founder = state.incarnation == FOUNDER
        if is_founder:
            checked = checked_members(state.founders or members)
            if name not in checked and state.snapshot is None:
                raise Misuse(f"node {name!r} is not one of the members {list(checked)}")
        names = tuple(sorted(self.founders)) if is_founder else ()
        self.outgoing = Outgoing(cluster, names, state.incarnation)
        self.term, self.voted_for = state.ballot.term, state.ballot.voted_for
        self._saved_ballot = state.ballot
        self.leader = ""
        self.announced: tuple[Place, Configuration] = ((0, 0), {})
        self._restore(state)
        self._reads: list[Read] = []

    def _restore(self, state: EngineState) -> None:
        snapshot = state.snapshot
        self.snapshots = SnapshotStore(snapshot)
        base, base_term, self.roster = 0, 0, Roster.founding(self.founders)
        if snapshot is not None:
            base, base_term = snapshot.index, snapshot.term
            self.roster = Roster(base, dict(snapshot.roster))
        self.log = Log(base, base_term)
        for entry in state.entries:
            self.append(entry)
        self.log.durable = self.log.last
        self.commit = self._delivered = base

    @property
    def is_voter(self) -> bool:
        """Whether this node's own log says that it votes and that this copy of it counts."""
        return self.roster.counts(self.name, self.incarnation)

    @property
    def may_vote(self) -> bool:
        """Whether to answer candidates: true if this copy counts, or if no copy of the node does.

        A candidate counts votes by its own roster, which may admit this copy before this node's log
        does. If a node waited for its own log to admit it, then a leader lost during an admission
        could leave the two live nodes of three unable to elect another.

        This node does not vote if its log says that another copy of it counts, or does not list the
        node. Such a log lacks committed entries, because a copy is admitted only once it holds the
        entry that suspends the copy before it, and a node is promoted only once it holds the entry
        that made it a learner.
        """
        seat = self.roster.now.get(self.name)
        return self.is_voter or (seat is not None and is_suspended(seat.incarnation))

    @property
    def last_change(self) -> LastChange:
        """The configuration, and the entry that made it."""
        roster, log = self.roster, self.log
        index = max(roster.changed_at, log.base)
        before = roster.before if self.commit < index else {}
        listed = roster.listed(self.commit)
        return LastChange(log.term_at(index) or 0, index, roster.now, before, listed)

    def elects(self, name: str) -> bool:
        """Whether a node may vote, campaign and lead, as far as this node knows.

        This does not depend on the copy of the node's state, because the log here may not say yet
        which copy counts.
        """
        seat = self.roster.now.get(name)
        if seat is not None and seat.votes:  # the usual case
            return True
        change = self.last_change
        place, announced = self.announced
        lists = [change.before, announced if place > (change.term, change.index) else {}]
        return any(seats[name].votes for seats in lists if name in seats)

    @property
    def is_disowned(self) -> bool:
        """Whether the log suspends this copy, because it lost entries that it had acknowledged."""
        return (self.name, suspended(self.incarnation)) in self.roster.suspended

    @property
    def is_removed(self) -> bool:
        """Whether the log removes this node, of which this copy has counted.

        A leader sends a node its own removal only once that is committed, so the removal is final.
        """
        roster = self.roster
        return self.name not in roster.now and roster.has_counted(self.name, self.incarnation)

    def set_ballot(self, term: int, voted_for: str) -> None:
        """Enter a term, or vote in it."""
        self.term, self.voted_for = term, voted_for

    def finish_read(self, ticket: int, index: int) -> None:
        """Have this node's application answer a read once it has applied the entry `index`."""
        self._reads.append(Read(ticket, index))

    def append(self, entry: Entry) -> None:
        """Add an entry to the end of the log."""
        self.log.append(entry)
        if entry.kind is EntryKind.MEMBER:
            self.roster.admit(entry.index, *unpack_member(entry.command))
        elif entry.kind is EntryKind.CONFIGURATION:
            self.roster.change(entry.index, unpack_configuration(entry.command)[0])

    def truncate(self, index: int) -> None:
        """Drop the entries from `index` on, which conflict with the leader's."""
        self.log.truncate(index)
        self.roster.truncate(index)

    def commit_to(self, index: int) -> None:
        """Advance the commit index; it never goes back."""
        self.commit = max(self.commit, index)

    def install(self, snapshot: Snapshot) -> None:
        """Replace the log with the leader's snapshot."""
        self.log.reset(snapshot.index, snapshot.term)
        self.roster = Roster(snapshot.index, dict(snapshot.roster))
        self.snapshots.newest = self.snapshots.to_install = snapshot
        self.commit = self._delivered = snapshot.index

    def may_compact(self, index: int) -> bool:
        """Whether this node knows the members as of the entry `index`."""
        return self.roster.is_known(index, self.name, self.incarnation)

    def compact(self, index: int, data: bytes, needed: int) -> Snapshot | None:
        """Make a snapshot as of the applied entry `index`, and drop entries that it covers.

        Args:
            index: the last entry that the snapshot covers.
            data: the application's state.
            needed: a peer may still need entries after this index, so they are kept.

        Returns:
            The snapshot. None if a snapshot as of `index` or later exists, or if `may_compact` is
            false.

        Raises:
            Misuse: the entry was not delivered to the application, or is not durable.
        """
        newest = self.snapshots.newest
        if (newest is not None and index <= newest.index) or not self.may_compact(index):
            return None
        term = self.log.term_at(index)
        if term is None or index > min(self._delivered, self.log.durable):
            raise Misuse(f"entry {index} was not delivered to the application, or is not durable")
        made = self.snapshots.newest = Snapshot(index, term, self.roster.at(index), data)
        self.log.compact(min(needed, index - self.settings.trail_entries))
        self.roster.compact(self.log.base)
        return made

    def take_ready(self) -> Ready | None:
        """Return the duties that have accumulated, or None."""
        # a copy that lost acknowledged entries must acknowledge nothing more
        if self.roster.suspended and self.is_disowned:
            return Ready(disowned=True)
        if self.name not in self.roster.now and self.is_removed:
            return Ready(removed=True)
        out, log, saved = self.outgoing, self.log, self._saved_ballot
        is_saved = saved.term == self.term and saved.voted_for == self.voted_for
        has_words = out.now or out.after_sync or out.append_reply or self._reads
        is_done = is_saved and self._delivered == self.commit and log.durable == log.last
        if is_done and not has_words and self.snapshots.to_install is None:
            return None  # the usual case, so build nothing
        now, after_sync = out.drain() if has_words else ((), ())
        end = min(self.commit, self._delivered + APPLY_ENTRIES_MAX)
        ready = Ready(
            now,
            None if is_saved else Ballot(self.term, self.voted_for),
            self.snapshots.to_install,
            log.between(log.durable + 1, log.last) if log.durable < log.last else (),
            after_sync,
            log.between(self._delivered + 1, end) if self._delivered < end else (),
            tuple(self._reads),
        )
        self._delivered += len(ready.committed)
        self.snapshots.to_install = None
        self._reads.clear()
        return ready

    def persisted(self, ready: Ready) -> None:
        """Record that what a `Ready` held is durable, except entries that were replaced since."""
        if ready.ballot is not None:
            self._saved_ballot = ready.ballot
        if ready.snapshot is not None:
            self.log.durable = max(self.log.durable, ready.snapshot.index)
        if ready.entries:
            last = ready.entries[-1]
            if self.log.term_at(last.index) == last.term:  # else another has replaced it since
                self.log.durable = max(self.log.durable, last.index)


class Outgoing:
    """Outgoing: gathers messages until the next `Ready`.

    Messages that promise nothing about this node's disk may be sent at once; all others wait until
    the entries and ballot they refer to are durable.

    Attributes:
        now, after_sync: the messages to send at once, and those to send after the sync.
        append_reply: the last reply to a leader, after its receiver; also sent after the sync. A
            later reply may be merged into it until then.
    """

    __slots__ = ("after_sync", "append_reply", "codec", "now")

    def __init__(self, cluster: str, founders: Sequence[str], incarnation: int) -> None:
        self.codec = MessageCodec(cluster, founders, incarnation)
        self.now: list[PeerMessage] = []
        self.after_sync: list[PeerMessage] = []
        self.append_reply: tuple[str, AppendReply] | None = None

    def send_now(self, to: str, message: AnyMessage) -> None:
        """Send without waiting for the disk."""
        self.now.append(PeerMessage(to, self.codec.encode(message)))

    def send_after_sync(self, to: str, message: AnyMessage) -> None:
        """Send once everything that this node holds now is durable."""
        self.after_sync.append(PeerMessage(to, self.codec.encode(message)))

    def reply_to_append(self, to: str, reply: AppendReply) -> None:
        """Reply to the leader; successes within one `Ready` are merged into one reply."""
        if self.append_reply is not None:
            before = self.append_reply[1]
            is_same = self.append_reply[0] == to and before.term == reply.term
            if is_same and before.success and reply.success:
                index, round_ = max(before.index, reply.index), max(before.round, reply.round)
                reply = AppendReply(reply.term, True, index, round_)
            else:
                self.send_after_sync(*self.append_reply)
        self.append_reply = (to, reply)

    def drain(self) -> tuple[tuple[PeerMessage, ...], tuple[PeerMessage, ...]]:
        """Remove and return the messages to send now, and those to send after the sync."""
        if self.append_reply is not None:
            to, reply = self.append_reply
            self.after_sync.append(PeerMessage(to, self.codec.encode(reply)))
            self.append_reply = None
        now, after_sync = tuple(self.now), tuple(self.after_sync)
        self.now.clear()
        self.after_sync.clear()
        return now, after_sync
