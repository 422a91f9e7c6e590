"""Mistakes in changing the members of a cluster; most of them were made by others first."""

from collections.abc import Callable

from sequencer.peers.departed import Departed, RemovalVerdicts
from sequencer.raft.changes import MemberChanges
from sequencer.raft.consensus import Configuration, Entry, EntryKind
from sequencer.raft.core import Core
from sequencer.raft.engine import Raft
from sequencer.raft.entries import unpack_configuration
from sequencer.raft.leader import Leader
from sequencer.raft.progress import Progress
from sequencer.raft.quorum import Roster

from .mutation import MUTANTS, Patch, mutant, noticed_by, rewritten

CHANGING: set[str] = set()


def changing(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that only worlds whose members change can notice."""
    before = set(MUTANTS)
    mutant(make)
    CHANGING.update(set(MUTANTS) - before)
    return make


@changing
def two_changes_at_once() -> list[Patch]:
    """A second change is appended while the first is not committed (nats-server 7565)."""
    return [
        (Leader, "is_settled", property(lambda self: self._core.commit >= self._no_op)),
    ]


@changing
def change_before_an_own_commit() -> list[Patch]:
    """A new leader changes members before it has committed anything (Ongaro's correction, 2015)."""
    settled = property(lambda self: self._core.commit >= self._core.roster.changed_at)
    return [(Leader, "is_settled", settled)]


@changing
def removed_leader_carries_on() -> list[Patch]:
    """A leader removes itself, goes on leading, and counts itself (canonical/raft 231)."""
    is_removed = property(lambda self: False)
    return [
        rewritten(MemberChanges, "remove", "if name == self._core.name:", "if len(now) == 1:"),
        (Core, "is_removed", is_removed),
    ]


@changing
def learner_counts() -> list[Patch]:
    """A learner's acknowledgement and vote count towards a majority of the voters."""
    right = "seat.votes and seat.incarnation == incarnation"
    wrong = "(not seat.votes or seat.incarnation == incarnation)"
    return [rewritten(Roster, "counts", right, wrong)]


@changing
def quorum_of_the_old_list() -> list[Patch]:
    """The size of a majority is that of the members at the start."""
    right = "majority_of(len(self.voters))"
    wrong = "majority_of(sum(seat.votes for seat in self._history[0][1].values()))"
    return [rewritten(Roster, "_changed", right, wrong)]


@changing
def configuration_taken_on_commit() -> list[Patch]:
    """A configuration takes effect when its entry is committed, with no further rules."""
    append, commit_to = Core.append, Core.commit_to

    def appended(self: Core, entry: Entry) -> None:
        if entry.kind is EntryKind.CONFIGURATION:
            self.log.append(entry)
        else:
            append(self, entry)

    def committed(self: Core, index: int) -> None:
        for entry in self.log.between(self.commit + 1, index):
            if entry.kind is EntryKind.CONFIGURATION:
                self.roster.change(entry.index, unpack_configuration(entry.command)[0])
        commit_to(self, index)

    return [(Core, "append", appended), (Core, "commit_to", committed)]


@changing
def configuration_outlives_its_entry() -> list[Patch]:
    """A configuration stays when its entry is truncated (nats-server 8332)."""
    return [(Roster, "truncate", lambda self, index: None)]


@changing
def appended_configuration_forgotten_on_restart() -> list[Patch]:
    """A restart takes its members from the snapshot and not from the log (camunda 57389)."""
    right = "self.log.durable = self.log.last"
    wrong = f"{right}; self.roster = Roster(*self.roster._history[0])"
    return [rewritten(Core, "_restore", right, wrong)]


@changing
def several_members_in_one_entry() -> list[Patch]:
    """A member is swapped for another in one step: old and new majorities need not meet."""
    right = MemberChanges.promote

    def promote(self: MemberChanges, name: str) -> Entry:
        entry = right(self, name)
        now: Configuration = self._core.roster.now
        others = [each for each in now if each not in {name, self._core.name}]
        if not others:
            return entry
        self._core.truncate(entry.index)
        return self._leader.change({each: now[each] for each in now if each != others[0]})

    return [(MemberChanges, "promote", promote)]


@changing
def removal_believed_before_it_is_decided() -> list[Patch]:
    """A node is sent its own removal at once, and ends although it may be undone."""
    right = "last if peer.name in core.roster.now else core.commit"
    return [rewritten(Leader, "flush", right, "last")]


@changing
def removed_node_disrupts() -> list[Patch]:
    """A node that does not know of its removal stands for election, and voters that hear a leader
    take up its term (logcabin 56).
    """
    right = "if hears_leader and not message.transfer:"
    says = "if core.elects(sender)"
    wrong = f"if message.term <= self.core.term and {right.removeprefix('if ')}"
    return [
        rewritten(Raft, "_campaign", "pre_vote=pre_vote", "pre_vote=False"),
        rewritten(Raft, "_admit_term", right, wrong),
        rewritten(Raft, "_demand_say", says, f"{says} or isinstance(message, RequestVote)"),
    ]


@changing
def promoted_without_its_log() -> list[Patch]:
    """A learner votes as soon as it is added, whatever it lacks (etcd 3477)."""

    def add(self: MemberChanges, name: str, address: str) -> Entry:
        entry = right(self, name, address)
        seats = self._core.roster.now
        self._core.truncate(entry.index)
        peer: Progress | None = self._leader.peer(name)
        incarnation = peer.incarnation if peer and peer.incarnation > 0 else 1
        seat = seats[name]
        voter = type(seat)(incarnation, True, seat.address)
        return self._leader.change({**seats, name: voter})

    right = MemberChanges.add
    return [(MemberChanges, "add", add)]


@changing
def candidate_counts_itself_though_it_is_no_voter() -> list[Patch]:
    """A node campaigns, and counts its own vote, though by its own log it has none.

    See scylladb 10618 and nats-server 8332.
    """
    return [(Core, "is_voter", property(lambda self: True))]


@changing
def snapshot_holds_the_configuration_before() -> list[Patch]:
    """A snapshot gives an older configuration its own index, so that it looks newest.

    See dragonboat 414.
    """
    return [rewritten(Roster, "at", "before[-1]", "before[max(0, len(before) - 2)]")]


@changing
def removed_by_the_configuration_file() -> list[Patch]:
    """A node that joins takes living members for removed, which its log does not list yet."""
    return [rewritten(Roster, "listed", "if 0 < start <= index", "")]


@changing
def removed_while_its_promotion_is_undecided() -> list[Patch]:
    """A node that was removed and does not know it never believes it: it voted in one list only."""
    return [
        rewritten(RemovalVerdicts, "_is_majority", "name in seats and", "name in voters and"),
    ]


@noticed_by("unit/test_departed.py::test_no_single_member_ends_a_node_by_calling_it_removed")
@changing
def removed_by_one_member() -> list[Patch]:
    """A node ends because one member calls it removed, which has not heard of its return."""
    majority = "> len(voters) // 2"
    return [rewritten(RemovalVerdicts, "_is_majority", majority, "> 0")]


@noticed_by(
    "unit/test_member.py::test_what_others_say_before_a_node_is_added_again_does_not_end_it_later"
)
@changing
def removed_before_it_is_added_again() -> list[Patch]:
    """A node that waits to be added again counts those that remember its removal."""
    right = "if not engine.core.is_voter:"
    votes = "any(name in each and each[name].votes for each in lists)"
    return [
        rewritten(RemovalVerdicts, "convict", right, "if False:"),
        rewritten(RemovalVerdicts, "are_decisive", votes, "True"),
    ]


@changing
def removed_nodes_are_forgotten() -> list[Patch]:
    """Members that start again take a removed node for a stranger, so it never ends."""
    return [rewritten(Departed, "follow", "self._save(sorted(names), members)", "pass")]
