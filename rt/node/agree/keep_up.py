"""KeepUp: copies the merged log, and hands leadership over, while a node cannot merge."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from rt.errors import Refused
from rt.log.write.appender import Appender
from rt.node.retain.snapshots import NodeSnapshots
from rt.position import Position
from sequencer.member import Member
from sequencer.planning.wants import PATIENCE_WITH_PUBLISHERS

_log: Final = logging.getLogger("rt.node")
_HAND_OVER_PART: Final = 4  # a quarter of `missing_s`: by default 0.5 s, enough to elect


class LogCopy(Protocol):
    """Copies another node's merged log into this node's; meanwhile, only the copy has it open."""

    @property
    def log(self) -> Appender | None:
        """The log that is being written; None while it is not open. Any thread may read this."""

    @property
    def position(self) -> Position:
        """The position up to which the log is copied; any thread may read it."""

    @property
    def waits_for(self) -> str:
        """What the copy waits for, as text for messages, or ""; any thread may read it."""

    def is_done(self, ledger_end: Position) -> bool:
        """Whether merging can resume: the copy has `ledger_end` and everything its source had."""

    def end(self) -> bool:
        """Request the end of the copy without waiting; True once it has released the log."""

    def stop(self) -> object:
        """End the copy, and wait a moment until it has ended."""


CopyLog = Callable[[Position], LogCopy]


class KeepUp:
    """KeepUp: copies the merged log from other nodes while this node cannot go on merging.

    Merging is suspended until the copy is complete. A leader that cannot merge hands leadership
    over.
    """

    def __init__(
        self,
        member: Member,
        snapshots: NodeSnapshots,
        copy_log: CopyLog,
        missing_s: float,
        feeder: Callable[[str], str],
    ) -> None:
        """Prepare.

        Args:
            member: this node's member, which merges nothing while the log is copied.
            snapshots: saves snapshots; while one of them syncs the log, the log is not closed.
            copy_log: starts copying, given the position where this node's log ends; the copy is
                useful only once it is longer.
            missing_s: how long to wait for a session's bytes before copying; four times as long
                while the session's publisher seems connected.
            feeder: returns the publisher of a session if it seems connected, else "".
        """
        self.copy: LogCopy | None = None
        self._member = member
        self._snapshots = snapshots
        self._copy_log = copy_log
        self._missing_s, self._feeder = missing_s, feeder
        self._missing_since_s: float | None = None
        self._missing_to = 0  # the last instruction that was committed then
        self._hesitates = False
        self._is_over = False  # whether the copy was asked to end
        self._next_hand_over_s = float("-inf")
        self._hand_overs = 0

    def turn(
        self, now_s: float, *, is_forked: bool = False, is_full: bool = False, paused: str = ""
    ) -> None:
        """Start or end a copy, and hand leadership over meanwhile; called on every tick.

        Args:
            now_s: a monotonic clock, in seconds.
            is_forked: whether this node's log differs from the agreed one, and so must not change.
            is_full: whether the disk has too little room to accept anything new.
            paused: why the merged log cannot be written now; "" if it can.
        """
        executor, engine = self._member.executor, self._member.engine
        is_copying, lacks_log = self.copy is not None, executor.lacks_log
        hesitates = is_forked or is_full or bool(paused) or is_copying or lacks_log
        if hesitates != self._hesitates:
            self._hesitates = hesitates
            engine.hesitate(yes=hesitates)
        if is_copying or is_forked:
            self._hand_over(now_s, [peer.name for peer in engine.status().peers if peer.counts])
        elif paused:
            self._hand_over(now_s, self._further(), paused)
        if self.copy is not None:
            if self._has_ended(self.copy):
                self._resume(is_forked=is_forked)
        elif not self._member.execution.queue and not lacks_log:
            self._missing_since_s = None  # the usual case
        elif not is_forked and (lacks_log or self._waited_too_long(now_s)):
            self._start()

    def _further(self) -> list[str]:
        """Return the members that have merged more than this node, whose disk is full.

        If there are none, all disks may be full, and handing leadership over would not help.
        """
        holdings, index = self._member.holdings, self._member.executor.done_index
        peers = [peer.name for peer in self._member.engine.status().peers if peer.counts]
        return [name for name in peers if holdings.executed_by(name) > index]

    def _hand_over(self, now_s: float, peers: Sequence[str], why: str = "") -> None:
        """Hand leadership to one of `peers`, if this node leads and has not tried that just now.

        A leader that cannot execute proposes nothing. The next leader may not be able to merge
        either, so each attempt goes to another member.
        """
        engine = self._member.engine
        if not engine.leads or now_s < self._next_hand_over_s or not peers:
            return
        self._next_hand_over_s = now_s + self._missing_s / _HAND_OVER_PART
        peer = peers[self._hand_overs % len(peers)]
        if why:
            _log.warning("%s is to lead, since this node cannot merge: %s", peer, why)
        with suppress(Refused):  # it has just stopped leading
            engine.transfer(peer)
        self._hand_overs += 1

    def _start(self) -> None:
        member, executor = self._member, self._member.executor
        _log.warning("copying the merged log from other nodes: %s", self._reason())
        member.execution.suspended = True
        self._snapshots.await_sync()
        executor.close()
        self.copy = self._copy_log(Position(executor.appender.next_place - executor.lacks_lines))

    def _has_ended(self, copy: LogCopy) -> bool:
        """End the copy if it is complete or not needed; return whether it has released the log."""
        if not self._is_over:
            end = self._member.executor.ledger.end
            self._is_over = copy.is_done(end) or self._needs_no_copy
        return self._is_over and copy.end()

    def _resume(self, *, is_forked: bool) -> None:
        member = self._member
        self.copy, self._is_over, self._missing_since_s = None, False, None
        member.executor.reopen()
        member.execution.suspended = is_forked
        _log.warning("the merged log is copied up to %s; merging", member.executor.appender.end)

    @property
    def _needs_no_copy(self) -> bool:
        """Whether the missing bytes have arrived, so that merging can resume without a copy.

        Waiting for the copy could take forever, since its source may be waiting for this node.
        """
        return not self._member.executor.lacks_log and self._member.execution.missing is None

    def _waited_too_long(self, now_s: float) -> bool:
        """Whether an instruction has waited for a session's bytes for longer than `missing_s`.

        With many sessions, some bytes are missing at nearly every tick, though each instruction
        waits for a moment only. So the time begins again once all that was committed when it began
        is executed.
        """
        execution = self._member.execution
        if (missing := execution.missing) is None:
            self._missing_since_s = None
            return False
        if self._missing_since_s is None or execution.done_index >= self._missing_to:
            self._missing_since_s, self._missing_to = now_s, execution.queue[-1].entry.index
        times = PATIENCE_WITH_PUBLISHERS if self._feeder(missing[0]) else 1
        return now_s - self._missing_since_s > times * self._missing_s

    def _reason(self) -> str:
        missing = self._member.execution.missing
        if missing is None:
            return "the leader's snapshot is ahead of the merged log here"
        return f"session {missing[0]} did not arrive up to {missing[1]}"
