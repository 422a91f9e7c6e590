"""Mistakes in archiving, which only worlds with merged logs can show."""

from typing import Any

from archiver import decide as decisions
from replicator.source.channel import SourceChannel
from rt.node.retain.reports import RetentionReports
from rt.node.retain.retention import MergedGrowth, Retention
from rt.node.retain.sweep import Sweep
from rt.node.retain.sweeper import NodeSweeper
from rt.position import Position
from sequencer.execution.execution import Execution
from sequencer.execution.executor import Executor
from sequencer.ledger.ledger import Ledger, decode_ledger

from .mutants_merge import merging
from .mutation import Patch


@merging
def inputs_archived_by_one() -> list[Patch]:
    """Inputs are archived once a single node has their output durably."""

    def latest(self: RetentionReports) -> int:
        return max(report.durable_index for report in self._latest.values())

    return [(RetentionReports, "_majority_durable", latest)]


@merging
def archived_before_a_majority_has_the_state() -> list[Patch]:
    """Merged files are archived as soon as a rule asks for it."""
    return [(NodeSweeper, "settled_end", lambda self, index: Position(1 << 62))]


@merging
def snapshot_saved_by_one() -> list[Patch]:
    """A snapshot is saved, and instructions are forgotten, once it is durable here."""
    return [(Retention, "settled_index", property(lambda self: 1 << 62))]


@merging
def fullest_disk_decides() -> list[Patch]:
    """One full disk archives the files of all nodes."""

    def most(disks: Any, percent: int, nodes: int) -> int:
        return max((disk.excess(percent) for disk in disks), default=0)

    return [(decisions, "agreed_excess", most)]


@merging
def archived_bytes_stay() -> list[Patch]:
    """The lines are written, and the bytes are kept."""
    return [(Sweep, "_empty", lambda self, *_: setattr(self, "emptied_to", 1 << 62))]


@merging
def archived_is_not_told() -> list[Patch]:
    """A copier does not learn which files were archived after it copied them."""
    return [(SourceChannel, "_tell_archived", lambda self, send, source: None)]


@merging
def emptied_file_compared() -> list[Patch]:
    """A node continues from a state whose bytes the others have archived."""
    return [(Executor, "is_stranded", property(lambda self: False))]


@merging
def state_taken_back() -> list[Patch]:
    """A snapshot older than the state replaces it."""
    right = Execution.restore

    def restore(self: Execution, snapshot: Any) -> None:
        right(self, snapshot)
        self.executor.ledger = decode_ledger(snapshot.data)
        self.executor.is_half_done = False

    return [(Execution, "restore", restore)]


@merging
def a_file_is_as_old_as_the_machine() -> list[Patch]:
    """A log's first file is taken to have been there since the machine was started."""

    def age_ns(self: MergedGrowth, ledger: Ledger, now_ns: int, steady_ns: int) -> int:
        is_first = ledger.active_since_ns and not ledger.end.file
        return steady_ns if is_first else 0

    return [(MergedGrowth, "active_age_ns", age_ns)]
