"""Raft: the default engine, a pure function from messages, ticks and proposals to duties."""

from collections.abc import Callable, Iterable, Set
from typing import Any, Final

from rt.errors import Misuse, PeerError, Refused
from sequencer.raft.changes import MemberChanges
from sequencer.raft.consensus import (
    Configuration,
    EngineRole,
    EngineState,
    Entry,
    Fork,
    LastChange,
    Place,
    Quiescence,
    Ready,
    Snapshot,
    Status,
    UnheardError,
)
from sequencer.raft.core import Chance, Core, Settings
from sequencer.raft.follower import (
    Election,
    forked_at,
    reply_to_request,
    take_append,
    take_snapshot,
)
from sequencer.raft.leader import READS_MAX, Leader
from sequencer.raft.messages import (
    AnyMessage,
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
)
from sequencer.raft.quiescence import members_away, quiescent_place, vouch

# How many election timeouts a node that cannot merge lets pass before it campaigns. Nodes that can
# merge campaign at the first one. If none of them has been elected after this many, even a leader
# that cannot merge is needed.
RELUCTANCE_TIMEOUTS: Final = 4


class Raft:
    """One node's engine; see `sequencer.raft.consensus` for how to drive it.

    A node leads (`_leader`), campaigns (`_election`) or does neither. The rules are those of
    Ongaro's thesis, with pre-vote (section 9.6), check quorum (6.2), ReadIndex (6.4) and leadership
    transfer (3.10).

    Args:
        name: this node.
        members: the 1, 3, 5 or 7 founding nodes: their names, or their addresses by name. A
            configuration in `state` takes precedence.
        cluster: the cluster's id; messages of another cluster are refused.
        chance: randomizes the election timeouts.
        state: what the journal recovered.
        settings: timeouts and limits.

    Attributes:
        core: the state that all roles share, for checks and display; only the engine changes it.
        leads: whether this node leads, as far as it knows; only the engine changes it.

    Raises:
        Misuse: the founding members are not 1, 3, 5 or 7 distinct names, or lack this node.
    """

    def __init__(
        self,
        name: str,
        members: Iterable[str],
        *,
        chance: Chance,
        cluster: str = "",
        state: EngineState | None = None,
        settings: Settings | None = None,
    ) -> None:
        state = state or EngineState()
        self._chance, self._settings = chance, settings or Settings()
        self.core = Core(name, members, cluster, state, self._settings)
        self._leader: Leader | None = None
        self.leads = False
        self._election: Election | None = None
        self._out: Ready | None = None
        self.fork: Fork | None = None
        self._is_reluctant, self._timeouts = False, 0  # timeouts since there was a leader
        self._refusals: dict[str, str] = {}  # by sender, until its messages are accepted again
        self._handlers: dict[type, Callable[[str, int, Any], None]] = {
            RequestVote: self._on_request_vote,
            VoteReply: self._on_vote_reply,
            AppendEntries: self._on_append_entries,
            AppendReply: self._on_append_reply,
            InstallSnapshot: self._on_install_snapshot,
            SnapshotReply: self._on_snapshot_reply,
            TimeoutNow: self._on_timeout_now,
            ReadIndex: self._on_read_index,
            ReadIndexReply: self._on_read_index_reply,
        }
        self._begin()

    def _begin(self) -> None:
        self._reset_election_timer()
        if self.core.is_voter and self.core.roster.majority == 1:
            self._campaign(pre_vote=False)

    # The interface

    @property
    def leader(self) -> str:
        """The leader of the newest known term, or "" if none is known."""
        return self.core.leader

    @property
    def quiescence(self) -> Quiescence | None:
        """The end of the log if this node is quiescent (has nothing left to agree on), or None.

        While all members except those in `away` are quiescent at the same position and known to be
        alive, no engine needs ticks. A leader is quiescent only while a majority answers it.
        """
        if self._election is not None or self._out is not None or self.fork is not None:
            return None
        return quiescent_place(self.core, self._leader)

    @property
    def away(self) -> Set[str]:
        """The members that this leader has not heard from for an election timeout.

        Empty unless this node leads. When one of these members is heard from again, ticks must
        resume, since it may lack entries.
        """
        return members_away(self._leader) if self._leader is not None else frozenset()

    def vouch(self, members: Set[str]) -> None:
        """Count these members as heard from now, since their processes report being idle."""
        if self._leader is not None:
            vouch(self._leader, members)
        elif self.core.leader in members:
            self._elapsed_ticks = 0

    def propose(self, command: bytes) -> Entry:
        """Append a command; it is decided once its index and term appear in `Ready.committed`.

        Raises:
            Refused: `not-leader` (names the leader), `busy` (too much is uncommitted already),
                `moving` (leadership is being handed over), `too-large`.
        """
        return (self._leader or self._leading()).propose(command)

    @property
    def members(self) -> Configuration:
        """The configuration as of the last entry of the log; the mapping is never changed."""
        return self.core.roster.now

    @property
    def last_change(self) -> LastChange:
        """The configuration, and the entry that made it."""
        return self.core.last_change

    def elects(self, name: str) -> bool:
        """Whether a node may vote, campaign and lead, as far as this node knows; see `step`."""
        return self.core.elects(name)

    def announce(self, place: Place, seats: Configuration) -> None:
        """Also let the voters of an announced configuration lead, if it is newer than this node's.

        Without this, a node that was away while the others were replaced would refuse its leader.

        Args:
            place: term and index of the configuration's entry.
            seats: the configuration.
        """
        self.core.announced = place, seats

    @property
    def changes(self) -> MemberChanges:
        """The object that changes the members; `Refused` (`not-leader`) unless this node leads.

        Each change is decided once its entry's index and term appear in `Ready.committed`.
        """
        return MemberChanges(self.core, self._leading())

    def hesitate(self, *, yes: bool) -> None:
        """If `yes`, leave campaigns to the other nodes for some election timeouts.

        For a node that cannot merge now; see `RELUCTANCE_TIMEOUTS`.
        """
        self._is_reluctant = yes

    def transfer(self, to: str) -> None:
        """Hand leadership to a member; given up if that takes longer than an election timeout.

        Raises:
            Refused: `not-leader`, or `not-a-member`.
        """
        leader = self._leading()
        if to != self.core.name:
            leader.transfer(to)

    def _leading(self) -> Leader:
        if self._leader is None:
            raise Refused("not-leader", f"the leader is {self.core.leader or 'not known'}")
        return self._leader

    def read_index(self, ticket: int) -> None:
        """Request the index from which a read is linearizable; a later `Ready` holds the `Read`.

        If no `Read` comes, leadership has moved or a message was lost; call this again with a new
        ticket.

        Raises:
            Refused: `no-leader`, or `busy`.
        """
        if self._leader is not None:
            if self._leader.reads.full:
                raise Refused("busy", f"{READS_MAX} reads are waiting already")
            self._leader.reads.ask(self.core.name, ticket)
        elif self.core.leader:
            self.core.outgoing.send_now(self.core.leader, ReadIndex(self.core.term, ticket))
        else:
            raise Refused("no-leader", "no leader is known")

    def step(self, sender: str, data: bytes) -> None:
        """Handle a message of `sender`, whose name the transport has authenticated.

        Only a voter may campaign, vote, lead, or bring a later term. A sender is a voter if it
        votes in this node's configuration, in the previous one while the change is undecided, or in
        an announced newer one (see `elects`). Other senders may only acknowledge what this node
        sent them as leader or, if they are members, request reads from it.

        Raises:
            UnheardError: the sender may not send such a message.
            PeerError: the bytes are malformed, break the protocol, or come from a node of another
                cluster or with other founders.
        """
        if self.fork is not None:
            return
        core = self.core
        if sender == core.name:
            raise PeerError(f"a message of a node that calls itself {sender!r}, as this one does")
        try:
            incarnation, message = core.outgoing.codec.decode(data)
            seat = core.roster.now.get(sender)
            if seat is None or not seat.votes:  # nearly always the sender is a voter
                self._demand_say(sender, message)
            if message.term == core.term or self._admit_term(sender, message):
                self._handlers[type(message)](sender, incarnation, message)
        except UnheardError:
            raise
        except PeerError as error:
            if core.elects(sender):
                named = str(error).startswith(f"{sender} ")
                self._refusals[sender] = str(error) if named else f"{sender}: {error}"
            raise
        if sender in self._refusals and core.roster.counts(sender, incarnation):
            del self._refusals[sender]

    def tick(self) -> None:
        """Advance time by one unit."""
        if self.fork is not None:
            return
        if self._leader is not None:
            if not self._leader.tick():
                self._become_follower(self.core.term)
            return
        self._elapsed_ticks += 1
        if self._elapsed_ticks >= self._timeout_ticks:
            self.core.leader = ""
            self._reset_election_timer()
            if self.core.is_voter and self.may_campaign():
                self._campaign(pre_vote=True)

    def gone(self, member: str) -> None:
        """Record that a member's process has ended, as its machine reports.

        If that member led, this node soon campaigns. A false report costs at most an election.
        """
        core, settings = self.core, self._settings
        if self._leader is not None or member != core.leader or not core.is_voter:
            return
        turn = sorted({*core.roster.voters} - {member}).index(core.name)
        self._elapsed_ticks = settings.election_ticks  # so that it may vote for another node now
        self._timeout_ticks = self._elapsed_ticks + 1 + turn * settings.heartbeat_ticks

    def ready(self) -> Ready | None:
        """Return the next duties; None if there are none, or the last are not `persisted` yet."""
        if self._out is not None:
            return None
        if self._leader is not None:
            self._leader.flush()
        self._out = self.core.take_ready()
        return self._out

    def persisted(self, ready: Ready) -> None:
        """Record that the ballot, entries and snapshot in `ready` are durable now."""
        if ready is not self._out:
            raise Misuse("persisted() is called once, with the Ready that was taken last")
        self._out = None
        self.core.persisted(ready)
        if self._leader is not None:
            self._leader.advance_commit()

    def may_compact(self, index: int) -> bool:
        """Whether this node knows the members as of the entry `index`; a snapshot must list them.

        A node that joins, or has lost its state, knows them only from its log.
        """
        return self.core.may_compact(index)

    def compact(self, index: int, data: bytes) -> Snapshot | None:
        """Make a snapshot of the application's state as of the applied entry `index`.

        Returns:
            The snapshot, for the journal to save; until that is done, a restart uses the older one.
            None if a snapshot as of `index` or later exists, such as one just received, or if
            `may_compact` is false.
        """
        needed = index if self._leader is None else self._leader.needed(index)
        return self.core.compact(index, data, needed)

    def status(self) -> Status:
        """Return a view of the engine; takes a few microseconds per peer."""
        core = self.core
        return Status(
            name=core.name,
            role=self._role(),
            term=core.term,
            leader=core.leader,
            commit=core.commit,
            last=core.log.last,
            durable=core.log.durable,
            peers=tuple(self._leader.peers()) if self._leader else (),
            refusal="; ".join(self._refusals.values()),
            members=core.roster.now,
            is_current=self._leader is not None or core.snapshots.is_followed,
        )

    def _role(self) -> EngineRole:
        if self._leader is not None:
            return EngineRole.LEADER
        if self._election is not None:
            return EngineRole.PRE_CANDIDATE if self._election.pre_vote else EngineRole.CANDIDATE
        return EngineRole.FOLLOWER if self.core.is_voter else EngineRole.LEARNER

    # Terms

    def _demand_say(self, sender: str, message: AnyMessage) -> None:
        """Raise `UnheardError` unless the sender may send such a message.

        A voter may send any. To a leader, a peer that it replicates to may acknowledge entries and
        snapshots, and a learner may also request reads; but neither may bring a later term.
        """
        core = self.core
        if core.elects(sender):
            return
        if message.term <= core.term and self._leader is not None:
            if isinstance(message, ReadIndex) and sender in core.roster.now:
                return
            if isinstance(message, AppendReply | SnapshotReply) and self._leader.peer(sender):
                return
        raise UnheardError(f"{sender!r} does not vote, as far as this node knows")

    def _admit_term(self, sender: str, message: AnyMessage) -> bool:
        """Adopt a message's later term; return False if the message must not be handled."""
        if message.term < self.core.term:
            self._reject_stale(sender, message)
            return False
        if isinstance(message, RequestVote):
            hears_leader = self._leader is not None or (
                self.core.leader and self._elapsed_ticks < self._settings.election_ticks
            )
            if hears_leader and not message.transfer:  # leader stickiness
                return False
            if message.pre_vote:
                return True
        if isinstance(message, VoteReply) and message.pre_vote and message.granted:
            return True
        self._become_follower(message.term)
        return True

    def _reject_stale(self, sender: str, message: AnyMessage) -> None:
        """Inform a candidate or leader of an older term of the present one; ignore the rest."""
        core = self.core
        if isinstance(message, AppendEntries | InstallSnapshot):
            core.outgoing.send_after_sync(sender, AppendReply(core.term, False, 0, 0))
        elif isinstance(message, RequestVote):
            core.outgoing.send_after_sync(sender, VoteReply(core.term, False, message.pre_vote))

    def _become_follower(self, term: int) -> None:
        """Stop leading and campaigning; in a new term, this node has not voted yet."""
        if term != self.core.term:
            self.core.set_ballot(term, "")
        self._leader = self._election = None
        self.leads = False
        self.core.leader = ""
        self._reset_election_timer()

    def _reset_election_timer(self) -> None:
        """Draw a new timeout, from the minimum election timeout to twice that."""
        self._elapsed_ticks = 0
        least = self._settings.election_ticks
        self._timeout_ticks = least + self._chance.randrange(least)

    # Elections

    def may_campaign(self) -> bool:
        """Whether to campaign, now that an election timeout has passed without a leader."""
        self._timeouts += 1
        return not self._is_reluctant or self._timeouts > RELUCTANCE_TIMEOUTS

    def _campaign(self, *, pre_vote: bool, transfer: bool = False) -> None:
        self.core.leader = ""
        self._election = Election(self.core, pre_vote=pre_vote, transfer=transfer)
        self._check_election()

    def _check_election(self) -> None:
        """If the election is won, act on it; if it never is, the election timeout ends it."""
        election = self._election
        if election is None:
            return
        if election.is_won and election.pre_vote:
            self._reset_election_timer()
            self._campaign(pre_vote=False)
        elif election.is_won:
            self._election = None
            self._leader = Leader(self.core)
            self.leads = True

    def _on_request_vote(self, sender: str, _incarnation: int, message: RequestVote) -> None:
        if not self.core.may_vote:
            return
        vote = reply_to_request(self.core, sender, message)
        if vote.granted and not vote.pre_vote:
            self._reset_election_timer()
        self.core.outgoing.send_after_sync(sender, vote)

    def _on_vote_reply(self, sender: str, incarnation: int, message: VoteReply) -> None:
        if self._election is not None:
            self._election.count(sender, incarnation, message)
            self._check_election()

    def _on_timeout_now(self, sender: str, _incarnation: int, _message: TimeoutNow) -> None:
        if sender == self.core.leader and self.core.is_voter:
            self._campaign(pre_vote=False, transfer=True)

    # Following

    def _on_append_entries(self, sender: str, _incarnation: int, message: AppendEntries) -> None:
        self._follow_leader(sender)
        core, before = self.core, message.prev_index
        # If the logs match at or after this node's commit index, later entries cannot be a fork.
        is_new = before >= core.commit and core.log.term_at(before) == message.prev_term
        if not is_new and (index := forked_at(core, message)):
            self.fork = Fork(index, sender, message.term)
            return
        reply = take_append(core, message)
        if not (message.no_reply and reply.success):
            core.outgoing.reply_to_append(sender, reply)

    def _on_install_snapshot(
        self, sender: str, _incarnation: int, message: InstallSnapshot
    ) -> None:
        self._follow_leader(sender)
        reply = take_snapshot(self.core, message)
        if isinstance(reply, AppendReply):
            self.core.outgoing.reply_to_append(sender, reply)
        else:
            self.core.outgoing.send_after_sync(sender, reply)

    def _follow_leader(self, sender: str) -> None:
        """Recognize the sender as the leader of this term."""
        if self._leader is not None or self.core.leader not in {"", sender}:
            raise PeerError(f"{sender} and {self.core.leader} both lead term {self.core.term}")
        self.core.leader = sender
        self._timeouts = 0
        self._election = None
        self._elapsed_ticks = 0

    # Leading

    def _on_append_reply(self, sender: str, incarnation: int, message: AppendReply) -> None:
        if self._leader is not None:
            self._leader.on_append_reply(sender, incarnation, message)

    def _on_snapshot_reply(self, sender: str, incarnation: int, message: SnapshotReply) -> None:
        if self._leader is not None:
            self._leader.on_snapshot_reply(sender, incarnation, message)

    def _on_read_index(self, sender: str, _incarnation: int, message: ReadIndex) -> None:
        if self._leader is not None and not self._leader.reads.full:
            self._leader.reads.ask(sender, message.ticket)

    def _on_read_index_reply(self, sender: str, _incarnation: int, message: ReadIndexReply) -> None:
        if sender == self.core.leader:
            self.core.finish_read(message.ticket, message.index)
