"""Mistakes with sessions that an operator ends: only worlds with merged logs see them."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from rt.format.ranges import Range
from rt.node.agree import duties
from rt.node.ingest import dropped_copies
from rt.node.ingest.inboxes import Inboxes
from rt.node.ingest.session_state import SessionState
from rt.node.sessions import watch as session_watch
from rt.node.sessions.watch import SessionWatch
from sequencer.execution.executor import Executor
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.life import Life
from sequencer.ledger.session_facts import Ownership

from .mutants_merge import merging
from .mutation import Patch, noticed_by, rewritten

LAST = 1 << 62  # greater than every position and every instruction


@merging
def next_copy_dropped_by_the_repetition() -> list[Patch]:
    """After a crash, the instruction is repeated and ends the copy that was begun after it."""
    return [(Inboxes, "begun_after", lambda self, session: 0)]


@merging
def copies_survive_a_reset() -> list[Patch]:
    """The ledger begins again, and the nodes keep the copies of the last log."""
    return [(Inboxes, "drop_all", lambda self, ended, is_needed: None)]


@merging
def ended_copies_dropped_before_the_sync() -> list[Patch]:
    """What was merged of an ended session is in memory only when the nodes drop their copies."""
    _, name, drop = rewritten(dropped_copies, "drop_copies", "member.executor.sync()", "pass")
    return [(duties, name, drop)]


@merging
@noticed_by(
    "unit/test_node_inbox.py::test_a_copy_begun_after_an_instruction_that_is_to_be_repeated_is_kept"
)
def next_copy_removed_by_the_last_owner() -> list[Patch]:
    """After a crash, a name is bound to its last log again, and the next log's copy is removed."""
    right = Inboxes.bind

    def bind(self: Inboxes, changed: Mapping[str, Ownership | None], index: int) -> list[str]:
        return right(self, changed, LAST)

    return [(Inboxes, "bind", bind)]


@merging
@noticed_by(
    "unit/test_sequencing.py::test_a_repeated_instruction_leaves_the_copy_of_the_log_that_follows_alone"
)
def next_copy_compared_with_the_last_log() -> list[Patch]:
    """After a crash, a repeated instruction finds the next log's copy to differ from its own."""
    right = "if self.held.get(each.session, START) <= each.first:"
    return [rewritten(Executor, "_compare_copy", right, "if False:")]


@merging
def change_made_on_any_state() -> list[Patch]:
    """A reset that was decided for another state, or was made before, is made anyway."""
    return [(Ledger, "changes", lambda self, life: True)]


@merging
def numbers_survive_a_reset() -> list[Patch]:
    """The next log's messages are taken for repeats of the previous one's."""
    right = Ledger.change

    def change(self: Ledger, life: Life, merged: Range, size: int) -> None:
        watermarks = dict(self.watermarks)
        right(self, life, merged, size)
        self.watermarks.update(watermarks)

    return [(Ledger, "change", change)]


@merging
def merged_before_it_is_opened() -> list[Patch]:
    """A session's messages do not wait for its opening, which another order may delay."""
    return [(SessionWatch, "_may_be_merged", lambda self, session: True)]


@merging
def closed_by_each_nodes_clock() -> list[Patch]:
    """Each node's clock decides when a session was closed, and so when it expires."""
    right = Ledger.change_owner

    def change_owner(self: Ledger, life: Life, index: int, time_ns: int) -> None:
        right(self, life, index, time_ns + id(self) % 1_000)

    return [(Ledger, "change_owner", change_owner)]


@merging
def followers_let_sessions_expire() -> list[Patch]:
    """A follower forgets a session by its own clock, and not by an instruction."""
    right = SessionWatch.turn

    def turn(
        self: SessionWatch, now_s: float, changed: Collection[str], *, is_stirred: bool = False
    ) -> None:
        right(self, now_s, changed, is_stirred=is_stirred)
        ledger = self._member.executor.ledger
        for session, known in list(ledger.opened.items()):
            if known.closed_ns and self._is_over(session, known, self.policy):
                ledger.opened.pop(session)

    return [(SessionWatch, "turn", turn)]


@merging
def live_owner_displaced() -> list[Patch]:
    """A decision about an absent owner is carried out although it has returned."""
    right = Ledger.changes

    def changes(self: Ledger, life: Life) -> bool:
        known = self.opened.get(life.session)
        return right(self, replace(life, since=known.since) if known and life.since else life)

    return [(Ledger, "changes", changes)]


@merging
def pushed_here_is_not_seen() -> list[Patch]:
    """The leader closes sessions that are being pushed to itself."""
    return [(session_watch, "_pusher", lambda copy: None)]


@merging
def name_given_to_two() -> list[Patch]:
    """A node lets every publisher push that is granted the name."""
    return [(SessionState, "demand_owner", lambda self, peer: None)]
