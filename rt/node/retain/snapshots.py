"""NodeSnapshots: saves a node's state regularly, and drops the instructions that led to it."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from rt.log.write.appender import Durable
from rt.node.retain.retention import Retention
from rt.node.retain.sweeper import NodeSweeper
from sequencer.execution.execution import SnapshotPlan
from sequencer.journal.journal import Journal
from sequencer.member import Member

_log: Final = logging.getLogger("rt.node")
# Bytes of instructions kept until a majority has merged them; memory holds as many. With 1,000
# instructions a second of 200 bytes each, this covers five minutes, in which a node that was away
# can copy tens of gigabytes.
KEPT_BYTES_MAX: Final = 64 << 20


class NodeSnapshots:
    """NodeSnapshots: saves one snapshot of the state after another, each once the log is synced.

    A snapshot is saved only once a majority durably has the merged bytes that it refers to. Saving
    it drops the instructions that led to it. A node that lacks those instructions receives the
    state instead, which has positions of bytes but not the bytes. If a snapshot were saved earlier,
    one disk could hold the only copy of the bytes.

    Threads:
        Every method is called by the thread that steps the duties. A thread of `_pool` syncs the
        merged log and touches nothing here; its result arrives through `_synced`.
    """

    def __init__(
        self,
        member: Member,
        journal: Journal,
        sweeper: NodeSweeper,
        archiver: Retention,
        *,
        flush: Callable[[], None],
        pool: ThreadPoolExecutor,
        pause_s: float,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        """Prepare; nothing is planned before the first `turn`.

        Args:
            member: this node's member, whose state is saved.
            journal: the journal, which keeps instructions until a snapshot includes them.
            sweeper: is notified of saved snapshots, and may ask for one early.
            archiver: reports what is durable here, and knows what a majority has.
            flush: makes the copies of sessions durable, before instructions that carried their
                bytes are dropped.
            pool: its threads sync. A step may wait for a sync, so these threads must never wait for
                a step.
            pause_s: time between two snapshots.
            kept_bytes_max: bytes of instructions above which a snapshot no longer waits for a
                majority.
        """
        self._member = member
        self._journal = journal
        self._sweeper = sweeper
        self._archiver = archiver
        self._flush = flush
        self._pause_s = pause_s
        self._kept_bytes_max = kept_bytes_max
        self._pool = pool
        self._next_s = 0.0
        self._plan: SnapshotPlan | None = None
        self._synced: Future[Durable] | None = None  # None once it is durable
        self._has_complained = False

    def turn(self, now_s: float) -> None:
        """Do the next part of a snapshot, without waiting; an `OSError` stops the node."""
        if self._plan is not None and not (self._plan.has_log or self._member.execution.suspended):
            self._plan = None  # the log is here now, but its end is not reported yet
        if self._plan is None:
            end = self._member.executor.ledger.end
            if self._is_time(now_s) or self._sweeper.lacks_snapshot(end.file):
                self._begin(now_s)
        elif self._synced is None:
            self._save_if_settled(self._plan)
        elif self._synced.done():
            self._take_synced(self._plan, self._synced.result())

    def await_sync(self) -> None:
        """Wait for a running sync before the log is closed: a closed log cannot be synced.

        The next turn uses the result; errors as for `turn`.
        """
        if self._synced is not None:
            self._synced.result()

    def drop(self) -> None:
        """Abandon the planned snapshot, before a file that it covers is set aside."""
        self.await_sync()
        self._plan = self._synced = None

    def end(self) -> None:
        """Save a last snapshot, if a majority durably has what it covers; errors as for `turn`."""
        self.await_sync()
        durable, plan = self._sync_all(), self._member.plan_snapshot()
        if plan is not None and plan.has_log:
            self._take_synced(plan, durable)

    def _begin(self, now_s: float) -> None:
        self._next_s = now_s + self._pause_s
        self._plan = self._member.plan_snapshot()
        if self._plan is not None and self._plan.has_log:
            self._synced = self._sync()

    def _is_time(self, now_s: float) -> bool:
        return now_s >= self._next_s

    def _sync(self) -> Future[Durable]:
        return self._pool.submit(self._sync_all)

    def _sync_all(self) -> Durable:
        self._flush()
        return self._member.executor.sync()

    def _take_synced(self, plan: SnapshotPlan, durable: Durable) -> None:
        self._plan = self._synced = None
        if durable >= plan.end:
            self._plan = plan
            self._archiver.has_durable(plan.index)
            self._save_if_settled(plan)

    def _save_if_settled(self, plan: SnapshotPlan) -> None:
        if plan.index <= self._archiver.settled_index:
            self._has_complained = False
        elif self._journal.size < self._kept_bytes_max:
            return
        elif not self._has_complained:
            self._has_complained = True
            _log.error(
                "no majority has merged up to instruction %d; %d bytes of instructions are dropped "
                "anyway, and until other nodes have copied the result, it is on one disk only",
                plan.index, self._journal.size,
            )  # fmt: skip
        self._plan = None
        self._member.save_snapshot(plan)
        if plan.has_log:  # otherwise this node may still lack bytes that its state calls merged
            self._sweeper.saved(plan.merged)
