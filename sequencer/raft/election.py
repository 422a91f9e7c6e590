"""Elections: campaigning, and granting votes."""

from sequencer.raft.core import Core
from sequencer.raft.messages import RequestVote, VoteReply


class Election:
    """One campaign of this node; a pre-vote only asks whether a real one would succeed.

    A pre-vote changes no node's term, so a node that was partitioned away does not disrupt the
    leader when it returns.
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
        """Count a vote in this election, once per member, if that copy of the member counts.

        This node's configuration decides that, not the voter's.
        """
        is_ours = vote.term == self.term and vote.pre_vote == self.pre_vote
        if is_ours and vote.granted and self._core.roster.counts(voter, incarnation):
            self._votes.add(voter)

    @property
    def is_won(self) -> bool:
        """Whether a majority has voted for this node."""
        return len(self._votes) >= self._core.roster.majority


def reply_to_request(core: Core, candidate: str, request: RequestVote) -> VoteReply:
    """Decide on a request of the current or a later term; persist a vote before sending it."""
    if request.pre_vote:
        granted = request.term > core.term and is_up_to_date(core, request)
        return VoteReply(request.term if granted else core.term, granted, True)
    granted = may_vote_for(core, candidate) and is_up_to_date(core, request)
    if granted:
        core.set_ballot(core.term, candidate)
    return VoteReply(core.term, granted)


def may_vote_for(core: Core, candidate: str) -> bool:
    """Whether this node's vote in this term is still free, or already the candidate's."""
    if core.voted_for:
        return core.voted_for == candidate
    return not core.leader


def is_up_to_date(core: Core, request: RequestVote) -> bool:
    """Whether the candidate's log holds everything this log may have helped to commit."""
    return (request.last_term, request.last_index) >= (core.log.last_term, core.log.last)
