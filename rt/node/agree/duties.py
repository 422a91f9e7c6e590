"""Duties: a node's sequencing work, one step at a time."""

import logging
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rt.errors import (
    CorruptLog,
    DiskFailed,
    Diverged,
    PeerError,
    Refused,
    SessionDiverged,
    spoken,
)
from rt.format.manifest import FILE_NAME
from rt.log.notify.confirmations import Confirmations
from rt.log.write.appender import Appender
from rt.net.repeated import RepeatedLines
from rt.node.agree.dependencies import Dependencies
from rt.node.agree.fork_watch import ForkWatch
from rt.node.agree.idle_policy import IdlePolicy
from rt.node.agree.keep_up import KeepUp
from rt.node.agree.view import NodeView, Waiting
from rt.node.ingest.damage import ROLLED, DamageFound, is_elsewhere
from rt.node.ingest.dropped_copies import bind_copies, drop_copies
from rt.node.ingest.missing_sessions import MissingSessions
from rt.node.settings.node import NodeSettings
from rt.position import START
from sequencer.ledger.instruction import Instruction
from sequencer.ledger.seal import SEALED_NOTE, moved_away
from sequencer.member import WANT, Member
from sequencer.planning.holdings import decode_report
from sequencer.planning.session_records import Stuck
from sequencer.raft.consensus import Status, UnheardError

_log: Final = logging.getLogger("rt.node")
_FULL_DISK_S: Final = 0.5  # between attempts to merge while the disk is full
_LOOK_S: Final = 0.25  # between two searches for sessions that do not arrive
_REST_ALONE_S: Final = 4.0  # the most for `rest_s` of a single node, which no message wakes
_TICK_ALONE_S: Final = 0.02  # the most for `tick_s` of a single node, which sends no heartbeats
# Streams at rest step together, at whole multiples of this, so that only the first one finds the
# processor's caches cold.
_TOGETHER_S: Final = 1.0
_QUIESCENT_S: Final = 3.0  # bursts often pause for less, and each rest costs two messages


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing: how long the duties wait.

    Attributes:
        tick_s: unit of the consensus timers.
        missing_s: how long to wait for a session's bytes before copying the merged log.
        look_s: time between two searches for sessions that do not arrive.
        patience: how many searches in a row must find that a session has not grown before another
            node is asked for it.
        easy_ticks: how many ticks one step may advance while nothing happens.
        quiescent_s: how long a node must be idle before it rests.
        rest_s: time between steps at rest, which send reports and may archive files.
    """

    tick_s: float
    missing_s: float
    look_s: float
    patience: int
    easy_ticks: int = 1
    quiescent_s: float = _QUIESCENT_S
    rest_s: float = 10.0  # other nodes wait 15 s for a node's report of its publishers


def timing_of(settings: NodeSettings) -> Timing:
    """Return the timing for a node's settings.

    A node that lacks bytes of a session asks another node for them after half of `missing_s`.
    """
    patience = max(1, round(settings.agreement.missing_s / 2 / _LOOK_S))
    agreement = settings.agreement
    return Timing(
        agreement.tick_s, agreement.missing_s, _LOOK_S, patience, agreement.timers.heartbeat_ticks
    )


@dataclass(slots=True)
class Mail:
    """Mail: what arrived since the last step.

    Attributes:
        synced: sessions that were opened or synced further. The synced position is read from the
            copy itself, so late mail does no harm.
        received: sessions that received small updates, not synced yet.
        heard: messages of other nodes, with their senders.
        damaged: damage that connections or scrubs found.
        orders: instructions to propose, each with the term in which it was ordered.
        gone: members whose processes have ended.
        verdicts: for each member dialled, whether it refuses this node as a removed one.
        is_stirred: whether a publisher came or went, or a question was asked. What follows may
            depend on other nodes' reports, so the node must not rest.
    """

    synced: dict[str, None] = field(default_factory=dict)  # a dict, for its order
    received: dict[str, None] = field(default_factory=dict)
    heard: deque[tuple[str, bytes]] = field(default_factory=deque)
    damaged: deque[DamageFound] = field(default_factory=deque)
    orders: list[tuple[int, Instruction]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    verdicts: dict[str, bool] = field(default_factory=dict)
    is_stirred: bool = False

    def __bool__(self) -> bool:
        has_bytes = bool(self.synced or self.received)
        return has_bytes or bool(
            self.heard or self.damaged or self.orders or self.gone or any(self.verdicts.values())
        )


class Stepped(NamedTuple):
    """Stepped: the result of a step.

    Attributes:
        view: the node's state, for other threads.
        next_s: when to step again at the latest, even without mail.
    """

    view: NodeView
    next_s: float


class Duties:
    """Duties: a node's sequencing: receive, propose, tick, mend, merge, catch up, confirm, save.

    This class has no thread, lock, clock or socket and never sleeps, so a simulation drives the
    same code that a node runs (`rt.node.agree.sequencer.NodeSequencer`). Only one thread at a time
    may call it.
    """

    def __init__(self, member: Member, dependencies: Dependencies, timing: Timing) -> None:
        """Prepare, and let pullers read what was executed before the restart."""
        self._member = member
        self._executor, self._copies = member.executor, member.execution.copies
        self._records = member.executor.logs.records
        self._dependencies = dependencies
        self._timing = timing
        self._missing = MissingSessions(member, dependencies.sessions, timing.patience)
        self._keep_up = KeepUp(
            member, dependencies.snapshots, dependencies.copy_log, timing.missing_s,
            self._missing.feeder,
        )  # fmt: skip
        self._next_tick_s = self._next_look_s = float("-inf")
        self.idle_policy = IdlePolicy(
            member, dependencies.idle_heartbeat, dependencies.watch,
            quiescent_s=timing.quiescent_s, easy_ticks=timing.easy_ticks,
        )  # fmt: skip
        self._merge_again_s = float("-inf")  # when to retry after a full disk
        self._paused = ""  # why the merged log could not be written at the last attempt
        self._served = START
        self._forks = ForkWatch(member, dependencies.refuse)
        self._seal: str | None = None
        self._lines = RepeatedLines(_log)
        self._status = status = member.engine.status()
        self._waiting = self._look_at(_undecided(status, status.last))
        self._agreed_ns: tuple[int, ...] = ()
        member.handlers[WANT] = self._take_want
        self._serve()

    def step(self, now_s: float, mail: Mail) -> Stepped:
        """Do everything that can be done now.

        Args:
            now_s: a monotonic clock, in seconds.
            mail: what arrived since the last step.

        Raises:
            OSError: the disk of the journal or of the merged log failed.
            CorruptLog: a log is damaged, and no other node has its contents.
            WriterFailed: this node was removed from the cluster, or is an older copy of itself.
        """
        member, copies, rest = self._member, self._copies, self.idle_policy
        dependencies, watch = self._dependencies, self._dependencies.watch
        if copies.dropped or copies.owned or dependencies.sessions.is_removing:
            self._follow_lives()
        member.holdings.presence.now_s = now_s  # steps at rest are far apart
        self._take(now_s, mail)
        # A node at rest steps early if it hears from another node. So the nodes step together, and
        # each reports once per `rest_s` instead of once per report that it hears.
        early_s = self._timing.rest_s / 2 if rest.is_resting and mail.heard else 0.0
        is_tick = now_s >= self._next_tick_s - early_s
        # Sessions are opened before their first messages are merged, also by a new leader.
        is_called = bool(watch.fresh) or watch.led != member.engine.leads
        is_called = is_called or (is_tick and now_s >= watch.next_look_s)
        if is_called or mail.synced or mail.is_stirred:
            watch.turn(now_s, mail.synced, is_stirred=mail.is_stirred)
        if is_tick:
            self._next_tick_s = now_s + self._timing.tick_s
            for _ in range(rest.ticks):
                member.tick()
        self._advance(now_s, mail, is_tick=is_tick)
        if copies.dropped or copies.owned or dependencies.sessions.is_removing:
            self._follow_lives()  # before a snapshot covers the instructions that were executed
        if is_tick or self._served != self._executor.ledger.end:
            self._serve()
        if is_tick or dependencies.retention.is_called:
            dependencies.retention.turn(now_s)
        if is_tick:
            self._tick(now_s)
        is_loud = bool(mail.synced or mail.received or mail.orders or mail.damaged or mail.gone)
        is_loud = is_loud or mail.is_stirred
        if is_tick or rest.is_resting or (rest.is_quiet and (is_loud or rest.away)):
            self._look_at_rest(now_s, mail, is_tick=is_tick, is_loud=is_loud)
        execution = member.execution
        has_more = execution.queue and execution.can_continue and now_s >= self._merge_again_s
        return Stepped(self.view(), now_s if has_more else self._next_tick_s)

    def _look_at_rest(self, now_s: float, mail: Mail, *, is_tick: bool, is_loud: bool) -> None:
        """Schedule the next tick: later while the stream is quiet, and much later at rest.

        Mail that is not expected at rest (`is_loud`) ends the rest, and so does a message from a
        member that was away.
        """
        rest, timing = self.idle_policy, self._timing
        if rest.away and not is_loud:
            is_loud = any(sender in rest.away for sender, _ in mail.heard)
        if not (is_loud or is_tick or rest.is_resting):
            return
        before = rest.ticks
        rest.decide(now_s, is_loud=is_loud)
        ticks = rest.ticks
        if is_tick or ticks != before:
            rest_s, tick_s = timing.rest_s, timing.tick_s
            if not self._member.holdings.others:
                rest_s, tick_s = min(rest_s, _REST_ALONE_S), min(tick_s, _TICK_ALONE_S)
            if ticks:
                self._next_tick_s = now_s + ticks * tick_s
            else:
                due_s = now_s + rest_s
                self._next_tick_s = due_s - due_s % _TOGETHER_S

    def end(self) -> None:
        """Save a last snapshot of the state; errors as for `step`.

        If the merged log is being copied from another node, stop the copy. The log then stays
        closed, since the copy may still be writing to it.
        """
        if self._keep_up.copy is not None:
            self._keep_up.copy.stop()
        self._dependencies.snapshots.end()

    def _follow_lives(self) -> None:
        drop_copies(self._member, self._dependencies.sessions)
        bind_copies(self._member, self._dependencies.sessions)

    def view(self) -> NodeView:
        """Return the state for other threads; `step` returns it as well."""
        member, ledger = self._member, self._executor.ledger
        engine, has_queue = member.engine, bool(member.execution.queue)
        if self._status.leader != engine.leader:
            self._status = engine.status()
        # A full disk may leave an instruction half executed. It does not count as executed yet, so
        # a latest read that must include it keeps waiting.
        executed = ledger.index - self._executor.is_half_done
        return NodeView(
            self._status, self._waiting, self._agreed_ns, engine.leads, executed, ledger.end,
            ledger.number, ledger.time_ns, ledger.digest, ledger.archived_to, ledger.notes,
            has_queue or member.proposals.undecided is not None,
            has_queue or self._executor.lacks_log, member.proposals.carries,
        )  # fmt: skip

    def _take(self, now_s: float, mail: Mail) -> None:
        member = self._member
        for session in mail.synced:
            held = self._dependencies.sessions.copy_as_of(session, self._executor.ledger.index)
            if held is not None:  # the copy may have been set aside
                member.record_durable(session, held.durable)
        if mail.received and member.engine.leads:
            member.proposals.waiting.notice(mail.received)
        for sender, data in mail.heard:
            try:
                member.hear(sender, data)
            except UnheardError as error:
                self._lines.warn(f"unheard {sender}", f"a message of a node is refused: {error}")
            except PeerError as error:
                self._lines.warn(f"{sender} {error}", f"from node {sender}: {error}")
            except Diverged as difference:
                self._forks.stop_for_difference(now_s, difference)
        for each in mail.gone:  # after their last messages
            member.gone(each)
        for term, instruction in mail.orders:
            self._order(term, instruction)

    def _order(self, term: int, instruction: Instruction) -> None:
        """Propose an instruction, unless the term in which it was ordered has ended.

        In a later term, the instruction could undo newer ones.
        """
        engine = self._member.engine
        if engine.leads and engine.status().term == term:
            self._member.order(instruction)

    def _tick(self, now_s: float) -> None:
        member, before = self._member, self._waiting
        self._status = status = member.engine.status()
        self._waiting = waiting = self._look_at(_undecided(status, before.undecided))
        self._agreed_ns = tuple(member.proposals.agreed_ns)
        for session, stuck in waiting.stuck.items():
            self._report_stuck(session, stuck, is_new=session not in before.stuck)
        if member.engine.fork is not None:
            self._forks.stop_for_fork(now_s, member.engine.fork)
        if self._executor.ledger.notes.get(SEALED_NOTE) != self._seal:
            self._look_at_seal(self._executor.ledger.notes)
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + self._timing.look_s
            self._lines.flush()
            if (
                not self._dependencies.is_full()
            ):  # on a full disk, a session that was asked for would be refused
                self._missing.request(waiting.missing)
        self._dependencies.snapshots.turn(now_s)
        self._executor.rest()

    def _look_at_seal(self, notes: Mapping[str, str]) -> None:
        """Refuse readers while the ledger's seal says that another cluster continues the log."""
        self._seal = notes.get(SEALED_NOTE)
        self._dependencies.turn_away(moved_away(notes))

    def _report_stuck(self, session: str, stuck: Stuck, *, is_new: bool) -> None:
        """Log why a session is not merged; refuse its publisher if it can never be merged."""
        if is_new:
            _log.warning("%s", stuck.words)
        held = self._dependencies.sessions.get(session) if stuck.is_refused else None
        if held is not None:
            held.refuse(Refused(stuck.code, stuck.words))

    def _look_at(self, undecided: int) -> Waiting:
        restart_check, execution = self._member.restart_check, self._member.execution
        return Waiting(
            execution.missing if execution.queue else None, self._keep_up.copy,
            restart_check.waits_for, undecided, restart_check.finding, self._forks.found,
            dict(self._member.proposals.stuck), self._paused, dict(self._member.unheard),
            self._member.proposals.unreadable,
        )  # fmt: skip

    def _advance(self, now_s: float, mail: Mail, *, is_tick: bool) -> None:
        """Handle reported damage, then let the member propose, persist and merge if it can."""
        if mail.verdicts:
            self._member.take_verdicts(mail.verdicts)
        for found in mail.damaged:
            self._take_report(found)
        may_merge = now_s >= self._merge_again_s
        try:
            try:
                merged = self._member.run() if may_merge else self._run_suspended()
            except OSError as error:
                self._pause(now_s, error)
                merged = self._run_suspended()
            else:
                if self._paused and may_merge:
                    self._resume()
            self._serve()  # before confirmations, since readers wait for the messages
            for session in dict.fromkeys([*mail.synced, *merged]):
                self._confirm(session)
            if is_tick and self._member.holdings.others:
                self._keep_up.turn(
                    now_s, is_forked=self._forks.found is not None,
                    is_full=self._dependencies.is_full(), paused=self._paused,
                )  # fmt: skip
        except Diverged as difference:
            self._forks.stop_for_difference(now_s, difference)
        except CorruptLog as damage:
            self._mend(damage)

    def _run_suspended(self) -> list[str]:
        """Propose, persist and reply as `Member.run` does, but merge nothing: the disk is full."""
        was_suspended, self._member.execution.suspended = self._member.execution.suspended, True
        try:
            return self._member.run()
        finally:
            self._member.execution.suspended = was_suspended

    def _pause(self, now_s: float, error: OSError) -> None:
        """Pause merging for a while; raise the error if a pause cannot help."""
        if isinstance(error, DiskFailed) or now_s < self._merge_again_s:
            raise error
        self._merge_again_s = now_s + _FULL_DISK_S
        why = spoken(error)
        if not error.filename:
            why = f"{self._executor.appender.directory}: {why}"
        if why != self._paused:  # merging is tried again twice a second
            _log.error("merging pauses: %s; it resumes when the disk has room", why)
        self._paused = why

    def _resume(self) -> None:
        """Report that merging has resumed, unless it is suspended for another reason.

        A run that may not merge does not show whether the disk has room again.
        """
        if not self._member.execution.suspended:
            _log.warning("merging goes on, after it had paused: %s", self._paused)
            self._paused = ""

    def _confirm(self, session: str) -> None:
        ledger = self._executor.ledger
        held = self._dependencies.sessions.copy_as_of(session, ledger.index)
        if held is None:
            return
        known, merged = held.confirmations, ledger.sessions.get(session, START)
        held.merge_to(merged, is_carried=session in self._member.execution.carried)
        if session not in self._records.checked:
            return  # the copy, and the publisher's log, may differ from what was merged
        self._dependencies.sessions.proved(session, merged)
        merged_at = ledger.end if merged > known.merged else known.merged_at
        replicated = max(known.replicated, self._member.holdings.agreed(session), merged)
        held.confirm(Confirmations(held.safe, replicated, merged, merged_at))

    def _take_report(self, found: DamageFound) -> None:
        """Set aside a file that was reported damaged, unless its log was reopened since.

        While the merged log is copied from another node, the log's files are left alone: the copy
        would not fill the gap that a set-aside file leaves. Damage in a rolled file of the merged
        log is only logged. Damage that a scrub found in a session's copy is ignored if the copy
        may be the only one.
        """
        damage = found.damage
        if not self._is_merged(damage):
            held = self._dependencies.sessions.get(found.log.identity.name)
            if held is None or held.appender is not found.log:
                return
            if not found.scrubbed or held.is_fed or is_elsewhere(found, self._member.holdings):
                self._mend(damage)
        elif self._may_mend(found.log):
            if self._executor.is_rolled(damage.path):
                _log.error("%s; %s", damage, ROLLED)
            else:
                self._mend(damage)
                self._serve()  # limit pullers to what is left, before a copy begins

    def _may_mend(self, log: Appender) -> bool:
        """Whether the merged log is still the one found damaged, and may be set aside."""
        is_free = self._forks.found is None and self._keep_up.copy is None
        return is_free and log is self._executor.appender

    def _is_merged(self, damage: CorruptLog) -> bool:
        return os.path.dirname(damage.path) == self._executor.appender.directory

    def _mend(self, damage: CorruptLog) -> None:
        """Set aside the damaged files if other nodes or the publisher can replace them.

        Otherwise raise `damage`.
        """
        diverged = isinstance(damage, SessionDiverged)
        if not (self._member.holdings.others or diverged):
            raise damage
        _log.error("%s; it is set aside and fetched again", damage)
        if self._is_merged(damage):
            self._dependencies.snapshots.drop()
            self._executor.discard(damage.path)
        else:
            session = os.path.basename(os.path.dirname(damage.path))
            is_placed = os.path.basename(damage.path) != FILE_NAME  # manifests have no position
            damaged_at = damage.position if is_placed and not diverged else None
            self._dependencies.sessions.give_up(session, diverged=diverged, damaged_at=damaged_at)
            self._member.lose(session)

    def _take_want(self, sender: str, body: bytes) -> None:
        for session in decode_report(body).items:
            if self._dependencies.sessions.get(session) is not None:
                self._dependencies.pass_on(sender, session)

    def _serve(self) -> None:
        """Let pullers read the merged log up to where this node has executed it.

        The limit stays the same while the log is copied from another node, and after a fork. It
        falls if a file at the log's end was set aside. A complete copy is served immediately, since
        the next instruction may come hours later.
        """
        executor = self._executor
        end, written = executor.ledger.end, executor.appender.end
        if end == self._served <= written:
            return  # the usual case: nothing was executed or set aside
        if self._keep_up.copy is not None or self._forks.found is not None:
            return
        if executor.lacks_log:  # perhaps a damaged file was set aside
            end = min(self._served, executor.appender.next_place)
        if end != self._served:
            self._served = end
            self._dependencies.serve(end)


def _undecided(status: Status, first_last: int) -> int:
    """Return the Raft entry that must be decided before the merged log's end is known; 0 if none.

    A restarted node may have lost entries, and receives them again one by one. The node does not
    know where the merged log ends until it has every entry that a leader calls committed.

    Args:
        status: the engine's status.
        first_last: at first, the last Raft entry that this node had at its start; later, the result
            of the previous call.
    """
    if not status.last or not status.is_current:
        return max(status.last, 1)
    last = min(first_last, status.last)  # replaced entries were not committed
    return last if last > status.commit else 0
