"""Mistakes in elections and replication."""

from typing import Any

from sequencer.journal import recovery as recoveries
from sequencer.journal.journal import Journal
from sequencer.raft import engine as rafts
from sequencer.raft import follower as followers
from sequencer.raft import quorum as quorums
from sequencer.raft.consensus import Ballot
from sequencer.raft.core import Core
from sequencer.raft.engine import Raft
from sequencer.raft.follower import Election
from sequencer.raft.leader import Leader
from sequencer.raft.messages import AppendEntries, AppendReply

from .mutation import Patch, mutant, noticed_by, rewritten

# Elections


@mutant
def vote_forgotten_on_restart() -> list[Patch]:
    """A restarted node has forgotten its vote (raftos erases the vote at every start)."""
    right = recoveries.checked_ballot

    def checked(ballot: Ballot | None, *rest: Any) -> Ballot:
        return Ballot(right(ballot, *rest).term, "")

    return [(recoveries, "checked_ballot", checked)]


@mutant
def ballot_not_written() -> list[Patch]:
    """Term and vote live in memory only."""
    persist, checked = Journal.persist, recoveries.checked_ballot

    def forget(ballot: Ballot | None, entries: Any, snapshot: Any) -> Ballot:
        newest = max([e.term for e in entries[-1:]] + [snapshot.term if snapshot else 0])
        return checked(Ballot(newest), entries, snapshot)

    return [
        (Journal, "persist", lambda self, ready: persist(self, ready._replace(ballot=None))),
        (recoveries, "checked_ballot", forget),
    ]


@mutant
def two_votes_in_a_term() -> list[Patch]:
    """A node grants every request, whatever it has voted."""
    return [(followers, "may_vote_for", lambda core, candidate: True)]


@mutant
def candidate_keeps_the_term() -> list[Patch]:
    """A candidate campaigns in the current term instead of the next."""
    right = Election.__init__

    def begin(self: Election, core: Core, *, pre_vote: bool, transfer: bool = False) -> None:
        if not pre_vote and core.term:
            core.term -= 1
        right(self, core, pre_vote=pre_vote, transfer=transfer)

    return [(Election, "__init__", begin)]


@mutant
def incomplete_logs_may_lead() -> list[Patch]:
    """A vote is granted without comparing logs."""
    return [(followers, "is_up_to_date", lambda core, ask: True)]


@mutant
def longer_log_wins() -> list[Patch]:
    """A vote compares the lengths of logs, not the terms first."""
    return [(followers, "is_up_to_date", lambda core, ask: ask.last_index >= core.log.last)]


@mutant
def votes_counted_not_voters() -> list[Patch]:
    """A duplicate of a vote counts again (raftos counts datagrams)."""
    wrong = 'self._votes.add(f"{voter} {len(self._votes)}")'
    return [rewritten(Election, "count", "self._votes.add(voter)", wrong)]


@mutant
def stale_votes_counted() -> list[Patch]:
    """A vote of an older term counts in this one."""
    right = "    core = self.core\n"
    wrong = f"""{right}
    if isinstance(message, VoteReply) and self._election is not None and message.granted:
        self._election._votes.add(sender)
        self._check_election()
"""
    return [rewritten(Raft, "_reject_stale", right, wrong)]


@mutant
def pre_votes_elect() -> list[Patch]:
    """A granted pre-vote counts as a vote."""
    right = "is_ours = vote.term == self.term and vote.pre_vote == self.pre_vote"
    return [rewritten(Election, "count", right, "is_ours = True")]


@mutant
def half_is_a_majority() -> list[Patch]:
    """A quorum is one member too small."""
    return [(quorums, "majority_of", lambda count: max(1, count // 2))]


@mutant
def voters_consult_their_own_role() -> list[Patch]:
    """A node that its own log does not admit yet ignores candidates whose log does (etcd 10998)."""
    return [(Core, "may_vote", Core.is_voter)]


# Replication


@mutant
def late_rejections_suspend() -> list[Patch]:
    """A rejection below what a follower acknowledged proves a loss, however old it is."""
    right = "    core = self._core\n"
    return [rewritten(Leader, "_suspect", right, f"{right}    peer.suspicion = -1\n")]


@mutant
def conflict_by_message_term() -> list[Patch]:
    """Entries of a lower term than the message's are truncated as conflicts (raftos 0.2.6)."""

    def take(core: Core, message: AppendEntries) -> AppendReply:
        if message.entries and core.log.term_at(message.entries[0].index) not in {
            None,
            message.term,
        }:
            core.truncate(message.entries[0].index)
            core.commit = min(core.commit, core.log.last)
        return right(core, message)

    right = followers.take_append
    return [(rafts, "take_append", take)]


@mutant
def any_append_cuts_the_log() -> list[Patch]:
    """Everything after a message's entries is truncated, even by a late duplicate (pysyncobj)."""
    right = "core.snapshots.is_followed = core.snapshots.is_followed or message.commit <= end"
    wrong = f"""{right}
    end = message.prev_index + len(message.entries)
    if core.log.base < end < core.log.last:
        core.truncate(end + 1)
        core.commit = min(core.commit, end)
        core._delivered = min(core._delivered, end)
"""
    return [rewritten(rafts, "take_append", right, wrong)]


@mutant
def previous_term_not_compared() -> list[Patch]:
    """The index before the entries is checked, and not its term."""
    return [rewritten(rafts, "take_append", "== message.prev_term", "is not None")]


@mutant
def acknowledges_its_whole_log() -> list[Patch]:
    """The reply names the follower's last entry, whether it matches or not (raftos HEAD)."""
    take = rewritten(
        rafts, "take_append", "True, end, message.round", "True, core.log.last, message.round"
    )
    trusting = rewritten(
        Leader, "on_append_reply",
        "if message.success and message.index > self._core.log.last:", "if False:",
        "peer.acknowledge(message.index)",
        "peer.acknowledge(min(message.index, self._core.log.last))",
    )  # fmt: skip
    return [take, trusting]


@mutant
def commits_an_unverified_tail() -> list[Patch]:
    """A follower commits up to the leader's index, whatever its own entries are (raftos HEAD)."""
    right, wrong = "min(message.commit, end)", "min(message.commit, core.log.last)"
    return [rewritten(rafts, "take_append", right, wrong)]


@mutant
def older_terms_committed_by_count() -> list[Patch]:
    """A majority commits an entry of an older term (figure 8 of the paper)."""
    return [rewritten(Leader, "advance_commit", " and log.term_at(index) == core.term", "")]


@mutant
@noticed_by("unit/test_raft.py::test_entries_of_a_deposed_leader_are_refused_and_not_appended")
def stale_append_taken() -> list[Patch]:
    """Entries of a deposed leader are appended."""
    right = "    core = self.core\n"
    wrong = f"""{right}
    if isinstance(message, AppendEntries) and self._leader is None:
        core.outgoing.reply_to_append(sender, take_append(core, message))
"""
    return [rewritten(Raft, "_reject_stale", right, wrong)]


@mutant
def deaf_leader_leads_on() -> list[Patch]:
    """A leader that hears no majority keeps leading, and so keeps its hearers from electing."""
    right = "len(self.heard_voters()) >= self._core.roster.majority"
    return [rewritten(Leader, "tick", right, "True")]
