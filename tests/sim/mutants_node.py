"""Mistakes in what a node decides around sequencing: only worlds with merged logs see them."""

from replicator.push import progress
from replicator.wire.messages import Ack
from rt.log.notify.confirmations import Confirmations
from rt.log.write.active_file import ActiveFile
from rt.log.write.appender import Appender
from rt.node.agree import duties
from rt.node.agree.duties import Duties
from rt.node.agree.view import NodeView
from rt.node.ingest import relay
from rt.node.retain.retention import Retention
from rt.node.retain.snapshots import NodeSnapshots
from sequencer.execution.execution import Execution
from sequencer.member import Member
from sequencer.peers import restart_check
from sequencer.peers.restart_check import RestartCheck
from sequencer.planning import holdings
from sequencer.planning.holdings import Report, ReportKind, decode_report
from sequencer.raft.leader import Leader

from .mutants_merge import merging
from .mutation import Patch, mutant, noticed_by, rewritten

# only a rolled-back node shows these
RESTORING = {"older-copies-speak", "start-needs-no-confirmation"}


@merging
def relays_what_is_not_durable() -> list[Patch]:
    """A node relays what it has written and not yet synced."""
    return [rewritten(relay, "relayed_end", "return inbox.durable", "return inbox.appender.end")]


@merging
def replicated_by_one() -> list[Patch]:
    """A node confirms as replicated what it alone holds."""
    right = "max(known.replicated, self._member.holdings.agreed(session), merged)"
    return [rewritten(Duties, "_confirm", right, "held.safe")]


@merging
def last_snapshot_not_synced() -> list[Patch]:
    """A stopping node saves its state without syncing the merged log."""
    right = "durable, plan = self._sync_all(), self._member.plan_snapshot()"
    wrong = "plan = self._member.plan_snapshot(); durable = plan and Durable(plan.end)"
    return [rewritten(NodeSnapshots, "end", right, wrong)]


@merging
def leases_ignored() -> list[Patch]:
    """Files are archived though a reader holds them."""
    return [(Retention, "leases", property(lambda self: []))]


@merging
def reports_only_add() -> list[Patch]:
    """A full report of holdings does not retract what an older one claimed."""

    def decode(data: bytes) -> Report:
        return decode_report(data)._replace(kind=ReportKind.CHANGES)

    return [(holdings, "decode_report", decode)]


@mutant
def admitted_without_suspension() -> list[Patch]:
    """A node that lost its state is admitted in one step, and its old copy not suspended first."""
    return [rewritten(Leader, "_update_roster", "if not is_suspended(now):", "if False:")]


@merging
def publisher_takes_one_for_all() -> list[Patch]:
    """A publisher records as replicated what one node has durably."""
    right = progress.merged_confirmations

    def merged(known: Confirmations, ack: Ack) -> Confirmations:
        return right(known, ack._replace(replicated=ack.durable))

    return [(progress, "merged_confirmations", merged)]


@merging
def hold_survives_its_copy() -> list[Patch]:
    """A copy is set aside, and what it held is still reported."""
    return [rewritten(Member, "lose", "self.record_durable(session, START)", "pass")]


@merging
def copied_and_not_served() -> list[Patch]:
    """A node that copied the merged log serves it only from the next instruction on."""
    right = "    executor = self._executor\n"
    wrong = f"""{right}
    if executor.lacks_log:
        self.__dict__["lacked"] = executor.ledger.index
    if self.__dict__.get("lacked") == executor.ledger.index:
        return
"""
    return [rewritten(Duties, "_serve", right, wrong)]


@merging
def copies_synced_again() -> list[Patch]:
    """What a failed sync left of a log's last file is only synced at the start, not rewritten."""
    return [(ActiveFile, "_write_again", lambda self, verdict, proven: None)]


@merging
def lines_synced_again() -> list[Patch]:
    """What a failed sync left of a manifest is only synced at the start, not rewritten."""
    return [rewritten(Appender, "_mend_manifest", "file.write_again(0)", "pass")]


@mutant
def older_copies_speak() -> list[Patch]:
    """A node does not compare what it remembers of another with what that one reports."""
    return [(restart_check, "contradiction", lambda memory, claim: "")]


@mutant
def start_needs_no_confirmation() -> list[Patch]:
    """A node takes part in the consensus before the others have compared its start."""
    return [(RestartCheck, "is_over", property(lambda self: True))]


@merging
def state_taken_over_drops_all_that_waits() -> list[Patch]:
    """A node that copies drops instructions that the state it took over does not contain."""
    right = "    self._sessions += "
    wrong = f"""    if self.queue:
        self.done_index = self.queue[-1].entry.index
        self.executor.ledger.index = self._adopted_index = self.done_index
        self.queue.clear()
{right}"""
    return [rewritten(Execution, "_pass_adopted", right, wrong)]


@merging
def state_taken_over_keeps_its_instructions() -> list[Patch]:
    """A node that copies executes again what led to the state that it took over."""
    right = Execution.adopt

    def adopt(self: Execution, data: bytes) -> None:
        right(self, data)
        self._adopted_index = 0

    return [(Execution, "adopt", adopt), (Execution, "_pass_adopted", lambda _self: None)]


@merging
def complete_wherever_it_ends() -> list[Patch]:
    """A node tells each puller that has all it serves that nothing more exists."""
    return [(NodeView, "is_whole", property(lambda self: True))]


@merging
def complete_without_what_was_decided() -> list[Patch]:
    """A node that waits for bytes of what was decided calls a puller complete."""
    return [(Member, "is_behind", property(lambda self: False))]


@merging
@noticed_by("integration/test_node_pipeline.py::test_a_puller_is_complete_only_where_the_node_is")
def complete_while_it_learns() -> list[Patch]:
    """A node that was wiped takes pullers, and calls them complete."""
    return [(NodeView, "_is_learning", property(lambda self: False))]


@merging
def complete_before_its_log_is_decided() -> list[Patch]:
    """After a start a node calls a puller complete that has what its last snapshot covers."""
    return [(duties, "_undecided", lambda status, first_last: 0)]


@merging
def complete_nowhere() -> list[Patch]:
    """A node never tells a puller that nothing more exists, so pullers wait for ever."""
    return [(NodeView, "is_whole", property(lambda self: False))]
