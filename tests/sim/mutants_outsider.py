"""Mistakes in telling members from outsiders, which worlds with an outsider show."""

from sequencer.membership import Membership
from sequencer.proposals import Proposals
from sequencer.raft.core import Core
from sequencer.raft.engine import Raft

from .mutants_members import changing
from .mutants_merge import merging
from .mutation import Patch, mutant, rewritten


@mutant
def engine_hears_anyone() -> list[Patch]:
    """The engine handles a message without checking whether its sender is a member."""
    return [(Raft, "_demand_say", lambda self, sender, message: None)]


@changing
def engine_takes_append_from_a_learner() -> list[Patch]:
    """The engine treats a learner's messages like a voter's."""
    return [(Core, "elects", lambda self, name: name in self.roster.now)]


@changing
def removed_node_still_heard() -> list[Patch]:
    """A node that once voted is heard as long as the log remembers it."""
    right = "seat = self.roster.now.get(name)"
    wrong = "seat = next((each[name] for _, each in self.roster._history if name in each), None)"
    return [rewritten(Core, "elects", right, wrong, "seat.votes", "True")]


@changing
def later_term_taken_from_anyone() -> list[Patch]:
    """A message that must not be handled moves the term all the same."""
    right = "    core = self.core\n"
    wrong = (
        f"{right}    if message.term > core.term:\n        self._become_follower(message.term)\n"
    )
    return [rewritten(Raft, "_demand_say", right, wrong)]


@merging
def hear_does_not_ask_for_membership() -> list[Patch]:
    """Reports are accepted from any node."""
    return [(Membership, "demand", lambda self, sender: None)]


@merging
def entry_that_cannot_be_decoded_ends_the_node() -> list[Patch]:
    """A committed entry that no node can decode ends the node that executes it."""
    right, wrong = "except PeerError as error:", "except ZeroDivisionError as error:"
    return [rewritten(Proposals, "decode", right, wrong)]


@merging
def announcements_are_believed() -> list[Patch]:
    """The newest configuration counts, even if a stranger has announced it."""
    return [(Membership, "_believes", lambda self, announced: True)]


@mutant
def older_announcements_vouch() -> list[Patch]:
    """A node is known by what was announced before the log removed it."""
    right = " and known.place > (change.term, change.index)"
    return [rewritten(Membership, "_is_known", right, "")]
