"""The side that does not lead: campaigns, votes, and receives entries and snapshots."""

from rt.errors import PeerError
from sequencer.raft.core import Core
from sequencer.raft.messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    RequestVote,
    SnapshotReply,
    VoteReply,
)
from sequencer.raft.snapshots import SNAPSHOT_BYTES_MAX, decode_snapshot


class Election:
    """One campaign of this node for votes, or for pre-votes.

    A pre-vote only says whether a vote would be granted, and changes no node's term. So a node that
    was partitioned away does not disrupt the leader when it returns.
    """

    __slots__ = ("_core", "_votes", "pre_vote", "term")

    def __init__(self, core: Core, *, pre_vote: bool, transfer: bool = False) -> None:
        self._core = core
        self._votes = {core.name}
        self.pre_vote = pre_vote
        self.term = core.term + 1
        if not pre_vote:
            core.set_ballot(self.term, core.name)
        request = RequestVote(self.term, core.log.last, core.log.last_term, pre_vote, transfer)
        send = core.outgoing.send_now if pre_vote else core.outgoing.send_after_sync
        for voter in core.roster.voters:
            if voter != core.name:
                send(voter, request)

    def count(self, voter: str, incarnation: int, vote: VoteReply) -> None:
        """Count a vote if it was granted in this election; each member's votes count as one.

        This node's configuration, not the voter's, decides whether the voter's copy counts.
        """
        is_ours = vote.term == self.term and vote.pre_vote == self.pre_vote
        if is_ours and vote.granted and self._core.roster.counts(voter, incarnation):
            self._votes.add(voter)

    @property
    def is_won(self) -> bool:
        """Whether a majority has voted for this node."""
        return len(self._votes) >= self._core.roster.majority


def reply_to_request(core: Core, candidate: str, request: RequestVote) -> VoteReply:
    """Return the reply to a request for a vote of the current or a later term.

    A granted vote must be durable before the reply is sent.
    """
    if request.pre_vote:
        granted = request.term > core.term and is_up_to_date(core, request)
        return VoteReply(request.term if granted else core.term, granted, True)
    granted = may_vote_for(core, candidate) and is_up_to_date(core, request)
    if granted:
        core.set_ballot(core.term, candidate)
    return VoteReply(core.term, granted)


def may_vote_for(core: Core, candidate: str) -> bool:
    """Whether this node may still vote in this term, or has voted for this candidate."""
    if core.voted_for:
        return core.voted_for == candidate
    return not core.leader


def is_up_to_date(core: Core, request: RequestVote) -> bool:
    """Whether the candidate's log ends at this log's end or later, compared by term, then index.

    If so, it holds every entry that this node may have helped to commit.
    """
    return (request.last_term, request.last_index) >= (core.log.last_term, core.log.last)


def take_append(core: Core, message: AppendEntries) -> AppendReply:
    """Append a message's entries if the log matches at the entry before them; return the reply.

    This log is known to match the leader's up to the commit index, so entries up to there, which an
    old message may hold, are skipped.
    """
    end = max(message.prev_index + len(message.entries), core.commit)
    is_match = core.log.term_at(message.prev_index) == message.prev_term
    if message.prev_index >= core.commit and not is_match:
        hint = core.log.last_possible_match(message.prev_index, message.prev_term)
        return AppendReply(message.term, False, message.prev_index, message.round, *hint)
    for entry in message.entries:
        if entry.index <= core.commit:
            continue
        term = core.log.term_at(entry.index)
        if term == entry.term:
            continue
        if term is not None:  # an entry of another term: drop it and all after it
            core.truncate(entry.index)
        core.append(entry)
    core.commit_to(min(message.commit, end))
    core.snapshots.is_followed = core.snapshots.is_followed or message.commit <= end
    return AppendReply(message.term, True, end, message.round)


def forked_at(core: Core, message: AppendEntries) -> int:
    """Return the index of the first entry committed here that differs in the message; 0 if none.

    Entries that were committed in earlier terms are in every later leader's log. If one differs
    there, a majority has lost it: nodes were restored from older copies, or disks lost what they
    had synced.
    """
    if message.prev_index > core.commit:
        return 0
    if core.log.contradicts(message.prev_index, message.prev_term):
        return message.prev_index
    for entry in message.entries:
        if entry.index > core.commit:
            break
        if core.log.contradicts(entry.index, entry.term):
            return entry.index
    return 0


def take_snapshot(core: Core, message: InstallSnapshot) -> AppendReply | SnapshotReply:
    """Add a part of the leader's snapshot, install the snapshot once it is complete, and reply.

    Raises:
        PeerError: the snapshot is too large, malformed, or not the one that was announced.
    """
    if message.last_index <= core.commit:
        return AppendReply(message.term, True, core.commit, message.round)
    if message.total > SNAPSHOT_BYTES_MAX:
        raise PeerError(f"snapshot of {message.total} bytes; the limit is {SNAPSHOT_BYTES_MAX}")
    key = (message.term, message.last_index, message.last_term, message.total)
    assembly = core.snapshots.assembly
    received = assembly.add(key, message.offset, message.data)
    if received < message.total:
        return SnapshotReply(message.term, message.last_index, received, message.round)
    _install(core, message, assembly.finish())
    return AppendReply(message.term, True, message.last_index, message.round)


def _install(core: Core, message: InstallSnapshot, blob: bytes) -> None:
    try:
        snapshot = decode_snapshot(blob)
    except ValueError as error:
        raise PeerError(str(error)) from None
    if (snapshot.index, snapshot.term) != (message.last_index, message.last_term):
        raise PeerError("the snapshot is not the one that was announced")
    if core.log.term_at(snapshot.index) == snapshot.term:
        core.commit_to(snapshot.index)
    else:
        core.install(snapshot)
        core.snapshots.is_followed = False
