"""Elections: standing for one, and giving a vote."""

from sequencer.raft.core import Core
from sequencer.raft.messages import AskVote, Vote


class Election:
    """One attempt of this node to lead; `pre` only asks whether a real one would succeed.

    A pre-election changes nobody's term, so a node that was cut off does not disturb a leader
    when it comes back.
    """

    __slots__ = ("_core", "_votes", "pre", "term")

    def __init__(self, core: Core, *, pre: bool, forced: bool = False) -> None:
        self._core = core
        self._votes = {core.name}
        self.pre = pre
        self.term = core.term + 1
        if not pre:
            core.ballot(self.term, core.name)
        self._ask(forced)

    def _ask(self, forced: bool) -> None:
        log = self._core.log
        message = AskVote(self.term, log.last, log.last_term, self.pre, forced)
        say = self._core.say_early if self.pre else self._core.say
        for other in self._core.others:
            say(other, message)

    def count(self, voter: str, incarnation: int, vote: Vote) -> None:
        """Count a vote of this election, once per member, if that copy of the member counts."""
        ours = vote.term == self.term and vote.pre == self.pre
        if ours and vote.granted and self._core.roster.now[voter] == incarnation:
            self._votes.add(voter)

    @property
    def won(self) -> bool:
        """Whether a majority is for this node."""
        return len(self._votes) >= self._core.majority


def give_vote(core: Core, candidate: str, ask: AskVote) -> Vote:
    """Decide on a request whose term is not behind; a vote is remembered before it is sent."""
    if ask.pre:
        granted = ask.term > core.term and complete(core, ask)
        return Vote(ask.term if granted else core.term, granted, True)
    granted = free(core, candidate) and complete(core, ask)
    if granted:
        core.ballot(core.term, candidate)
    return Vote(core.term, granted)


def free(core: Core, candidate: str) -> bool:
    """Whether this node's vote in this term is not another's already."""
    if core.voted_for:
        return core.voted_for == candidate
    return not core.leader


def complete(core: Core, ask: AskVote) -> bool:
    """Whether the candidate's log holds all that this log might have helped to commit."""
    return (ask.last_term, ask.last_index) >= (core.log.last_term, core.log.last)
