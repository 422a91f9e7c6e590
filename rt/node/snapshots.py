"""NodeSnapshots: when a node saves the state that its instructions led to, and forgets these."""

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from rt.log.appender import Durable
from rt.node.retention import Retention
from rt.node.sweeper import NodeSweeper
from sequencer.execution import SnapshotPlan
from sequencer.journal.journal import Journal
from sequencer.member import Member

_log: Final = logging.getLogger("rt.node")
# Of instructions that wait for a majority: as many again are in memory. At 1,000 a second of 200
# bytes that is five minutes, in which a node that was away copies tens of gigabytes.
KEPT_BYTES_MAX: Final = 64 << 20


class NodeSnapshots:
    """Takes one snapshot after the other: plans it, has the merged log synced, saves it.

    It is saved once a majority has durably what it stands for, and not before: instructions go
    with it, and whoever lacks them is handed the state, which says where bytes stand and not what
    they are. Were it saved earlier, one disk could hold the only bytes.
    """

    def __init__(
        self,
        member: Member,
        journal: Journal,
        sweeper: NodeSweeper,
        archiver: Retention,
        *,
        pause_s: float,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        """Stand ready.

        Args:
            member: whose state it is.
            journal: keeps the instructions until then.
            sweeper: is told what was saved, and asks for a snapshot before its time.
            archiver: tells the others what is durable here, and knows what a majority has.
            pause_s: from one to the next.
            kept_bytes_max: of instructions; with more a snapshot waits for nobody.
        """
        self._member = member
        self._journal = journal
        self._sweeper = sweeper
        self._archiver = archiver
        self._pause_s = pause_s
        self._kept_bytes_max = kept_bytes_max
        self._pool = ThreadPoolExecutor(1, "snapshot")
        self._next_s = 0.0
        self._plan: SnapshotPlan | None = None
        self._synced: Future[Durable] | None = None  # None once it is durable
        self._has_complained = False

    def turn(self, now_s: float) -> None:
        """Do what can be done without waiting; an `OSError` ends the node."""
        if self._plan is None:
            self._begin(now_s)
        elif self._synced is None:
            self._save_if_settled(self._plan)
        elif self._synced.done():
            self._take_synced(self._plan, self._synced.result())

    def await_sync(self) -> None:
        """Wait for the sync that was begun, before the log is closed: a closed one is not synced.

        What it made durable is taken by the next turn; errors as `turn`.
        """
        if self._synced is not None:
            self._synced.result()

    def drop(self) -> None:
        """Let go of what is planned: a file that it stands on is about to be set aside."""
        self.await_sync()
        self._plan = self._synced = None

    def end(self) -> None:
        """Save a last one, if the others have it all; errors as `turn`."""
        self.await_sync()
        durable, plan = self._member.executor.sync(), self._member.plan_snapshot()
        if plan is not None:
            self._take_synced(plan, durable)

    def close(self) -> None:
        """Release the thread that syncs."""
        self._pool.shutdown()

    def _begin(self, now_s: float) -> None:
        end = self._member.executor.ledger.end
        if self._is_time(now_s) or self._sweeper.lacks_snapshot(end.file):
            self._next_s = now_s + self._pause_s
            self._plan = self._member.plan_snapshot()
            if self._plan is not None:
                self._synced = self._sync()

    def _is_time(self, now_s: float) -> bool:
        return now_s >= self._next_s

    def _sync(self) -> Future[Durable]:
        return self._pool.submit(self._member.executor.sync)

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
                "no majority has merged up to instruction %d; with %d bytes of instructions waiting"
                " for it they go, and until others have copied what they made, it is on one disk",
                plan.index, self._journal.size,
            )  # fmt: skip
        self._plan = None
        self._member.save_snapshot(plan)
        self._sweeper.saved(plan.data)
