"""Mistakes in planning, merging, copying and reporting; only worlds with merged logs show them."""

from collections.abc import Callable
from typing import Any

from rt.format.recovery import judge
from rt.log.write import active_file as active_files
from rt.log.write.appender import Appender, Durable
from rt.node.agree.keep_up import KeepUp
from rt.node.ingest.inbox import NodeInbox
from rt.node.ingest.inbox_syncer import InboxSyncer
from rt.node.ingest.inboxes import Inboxes
from rt.position import Position
from sequencer.execution import executor as executors
from sequencer.execution.execution import Execution
from sequencer.execution.executor import Executor
from sequencer.hand_over import HandOver
from sequencer.ledger.instruction import Instruction, Merge, Slice
from sequencer.ledger.ledger import Ledger
from sequencer.planning.carried import Carrier
from sequencer.planning.holdings import Holdings
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLog
from sequencer.planning.session_records import SessionRecords
from sequencer.planning.wants import Wants

from .mutation import MUTANTS, Patch, mutant, noticed_by, rewritten

MERGING: set[str] = set()


def merging(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is looked for in worlds with merged logs."""
    mutant(make)
    MERGING.update(name for name, each in MUTANTS.items() if each is make)
    return make


# Planning


@merging
def plans_what_it_holds_alone() -> list[Patch]:
    """A leader plans what it holds itself, whether others do or not."""
    return [(Holdings, "agreed", lambda self, session: self.own.get(session, Position(0)))]


@merging
def slices_merged_on_any_state() -> list[Patch]:
    """A slice that was planned on another state is merged anyway."""
    return [(Ledger, "accepts", lambda self, each: True)]


@merging
def group_is_no_group() -> list[Patch]:
    """Each redundant publisher has a watermark of its own."""
    return [
        (Slice, "watermark_name", property(lambda self: self.session)),
        rewritten(Planner, "_slice", "(identity.group, ", '("", '),
    ]


@merging
def watermark_forgotten() -> list[Patch]:
    """Merged messages are remembered by position and not by number."""
    right = "self.watermarks[each.watermark_name] = each.next_sequence"
    return [rewritten(Ledger, "pass_over", right, "pass")]


@merging
def next_file_guessed() -> list[Patch]:
    """The file after a rolled one is taken to be the next roll of the same run."""

    def next_place(self: SessionLog, after: Position) -> Position:
        self.log.refresh()
        rolled = self.log.manifest.rolled_end(after.file)
        return after.next_file() if rolled == after.offset else after

    return [(SessionLog, "next_place", next_place)]


@merging
def merge_time_goes_back() -> list[Patch]:
    """Each leader's clock is believed."""
    plan, range_of = Planner.plan, Ledger.range_of

    def planned(self: Planner, ledger: Ledger, durable: Any, time_ns: int) -> Merge | None:
        made = plan(self, ledger, durable, time_ns)
        return made and Merge(time_ns, made.slices)

    def ranged(self: Ledger, each: Slice, term: int, time_ns: int) -> Any:
        return range_of(self, each, term, time_ns)._replace(time_ns=time_ns)

    return [(Planner, "plan", planned), (Ledger, "range_of", ranged)]


# Executing


@merging
def executes_without_inputs() -> list[Patch]:
    """An instruction is executed whether its bytes are here or not."""
    return [(Executor, "lacking", lambda self, merge: None)]


@merging
def rolls_at_a_start() -> list[Patch]:
    """A node ends its active merged file when it starts, as a publisher does."""
    right = "    appender.sync()\n"
    wrong = f"{right}    if appender.is_open:\n        appender.roll(0)\n"
    return [rewritten(Executor, "_opened", right, wrong)]


@merging
def not_cut_on_repeat() -> list[Patch]:
    """Half a range that a crash left stays where its instruction is repeated."""
    return [(Appender, "cut", lambda self, position: None)]


@merging
def repeat_appends_again() -> list[Patch]:
    """Bytes that are there already are not compared but appended again."""

    def execute(self: Executor, merged: Any, each: Slice) -> tuple[Any, bytes]:
        headings = self.logs[each.session].headers(each.first, each.end, each.length)
        raw = b"".join(heading.raw for heading in headings)
        return merged.digested(self.ledger.digest, self.ledger.end, b""), raw

    return [(Executor, "_compare", execute)]


@merging
def half_done_is_done() -> list[Patch]:
    """An instruction that a full disk cut short is included in a snapshot."""
    right = Executor.execute

    def execute(self: Executor, index: int, term: int, instruction: Instruction) -> None:
        try:
            right(self, index, term, instruction)
        finally:
            self.is_half_done = False

    return [(Executor, "execute", execute)]


@merging
def slice_digest_not_compared() -> list[Patch]:
    """A copy is merged though its frames are not those that were agreed on."""
    return [(Slice, "agrees_with", lambda self, headers: True)]


@merging
def copy_begun_again_is_believed() -> list[Patch]:
    """A restarted copy is trusted, whatever was merged of its session before."""
    return [(Executor, "check_copy", lambda self, session, known=None: None)]


@merging
def copies_are_checked_once() -> list[Patch]:
    """A copy stays trusted although more of its session was merged from elsewhere."""
    return [(SessionRecords, "doubt", lambda self, session, last_frame: None)]


@merging
def frames_not_checked() -> list[Patch]:
    """Data that rotted after its arrival is merged."""
    return [(executors, "changed_frame", lambda data, frames: None)]


@merging
def rolled_log_is_short() -> list[Patch]:
    """After a roll the ledger is in the next file but the log is not, so it is called short."""
    return [(Appender, "next_place", property(lambda self: self.end))]


@merging
def short_log_goes_on() -> list[Patch]:
    """A node that took over the leader's state executes although it lacks what came before."""
    return [(Executor, "lacks_log", property(lambda self: False))]


# Reports and snapshots


@merging
def snapshot_before_the_merged_log_is_synced() -> list[Patch]:
    """A snapshot names merged bytes that are only in memory."""
    return [(Executor, "sync", lambda self: Durable(self.appender.end))]


@merging
def holds_before_the_sync() -> list[Patch]:
    """A node reports what it has written and not yet synced."""

    def sync(self: InboxSyncer, batch: list[NodeInbox]) -> None:
        for inbox in batch:
            inbox.durable = Durable(inbox.appender.end)
            self._synced(inbox, inbox.durable)

    return [(InboxSyncer, "sync", sync)]


@merging
def copy_believes_its_frames() -> list[Patch]:
    """The durable positions in a copy's frames are taken for this disk's."""
    right = judge
    return [(active_files, "judge", lambda *args, **named: right(*args, **{**named, "own": True}))]


@merging
def short_leader_leads_on() -> list[Patch]:
    """A leader that lacks what a majority holds keeps the lead."""
    return [(HandOver, "tick", lambda self: None)]


@merging
def lacking_and_not_asking() -> list[Patch]:
    """No node requests a session whose publisher reaches too few nodes."""
    return [(Wants, "choose", lambda self, *_, **named: {})]


@merging
@noticed_by(
    "unit/test_node_inbox.py::test_a_copy_that_its_source_doubts_is_checked_and_its_damage_named"
)
def doubted_and_believed() -> list[Patch]:
    """A copy whose source has different bytes is not checked, so both keep theirs for ever."""
    return [(NodeInbox, "doubted", lambda self, why="": None)]


@merging
def suspended_and_executes() -> list[Patch]:
    """Instructions are executed while the merged log is being copied."""
    return [(Execution, "suspended", property(lambda self: False, lambda self, value: None))]


# Instructions that carry bytes


@merging
def plans_what_it_received_without_its_bytes() -> list[Patch]:
    """A leader forgets to put into an instruction what no majority holds."""
    return [(Carrier, "fill", lambda self, merge, agreed: merge)]


@merging
@noticed_by("unit/test_carried.py::test_a_copy_that_was_not_compared_is_not_carried_from")
def carries_from_a_copy_that_may_differ() -> list[Patch]:
    """A leader carries from a copy that was not compared with what was merged of its session."""
    return [rewritten(Carrier, "ends", " and session in checked", "")]


@merging
@noticed_by(
    "unit/test_carried.py::test_a_node_without_a_copy_merges_what_is_carried_and_vouches_for_nothing"
)
def what_was_carried_vouches_for_the_copy() -> list[Patch]:
    """A copy counts as verified because an instruction carried the same bytes."""
    return [rewritten(Executor, "_frames", "found, carried, False", "found, carried, True")]


@merging
@noticed_by("unit/test_carried.py::test_a_copy_that_differs_from_what_is_carried_is_found")
def a_copy_of_the_next_log_is_read() -> list[Patch]:
    """A copy is read without checking that it is of the log that an instruction names."""
    return [(Executor, "copy_end", lambda self, session: self._received(session))]


@merging
@noticed_by(
    "unit/test_node_inbox.py::test_a_flush_makes_what_copies_received_durable_and_reports_nothing"
)
def snapshot_before_the_copies_are_synced() -> list[Patch]:
    """Instructions are dropped that carried what copies hold only in memory."""
    return [(Inboxes, "flush", lambda self: None)]


@merging
def copies_the_log_because_sessions_arrive_one_after_another() -> list[Patch]:
    """A node copies the merged log if bytes of any session are missing at each tick for a while."""
    right = " or execution.done_index >= self._missing_to"
    return [rewritten(KeepUp, "_waited_too_long", right, "")]
