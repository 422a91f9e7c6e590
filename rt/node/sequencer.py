"""NodeSequencer: who does a node's sequencing duties, and when."""

import logging
import os
import threading
import time
from collections import deque
from typing import Final

from rt.errors import CorruptLog, DiskFailed, Diverged, PeerError, SessionDiverged
from rt.log.appender import Durable
from rt.log.confirmations import Confirmations
from rt.node.catch_up import CatchUp
from rt.node.guard import DiskGuard
from rt.node.inbox import Inboxes
from rt.node.relay import NodeRelay
from rt.node.retention import Retention
from rt.node.settings import NodeSettings
from rt.node.snapshots import NodeSnapshots
from rt.position import Position
from sequencer.ledger import Ledger
from sequencer.member import Member

_log: Final = logging.getLogger("rt.node")
_RETRY_S: Final = 0.5  # after a full disk
_TURNS_MAX: Final = 4  # under load `run` takes over, so that connections go back to receiving


class NodeSequencer:
    """Drives a `Member`, one thread at a time.

    Whoever brings news does what follows from it, by `turn`, if no other thread is at it: a
    message alone then goes from the socket into the merged log and on to who pulls it without
    waiting for another thread. Under load the news pile up in `_held` (what became durable) and
    `_heard` (what other nodes said), and `run`, in a thread of its own, works them off.
    """

    def __init__(
        self,
        settings: NodeSettings,
        member: Member,
        inboxes: Inboxes,
        archiver: Retention,
        snapshots: NodeSnapshots,
        *,
        relay: NodeRelay,
        guard: DiskGuard,
    ) -> None:
        """Stand ready; nothing is done before `run` is called."""
        self.catch_up: CatchUp | None = None
        # as `Member.missing` was at the last tick: that reads files which are one thread's
        self.missing: tuple[str, Position] | None = None
        self._settings = settings
        self._member = member
        self._inboxes = inboxes
        self._archiver = archiver
        self._snapshots = snapshots
        self._relay = relay
        self._guard = guard
        self._alone = len(settings.member_names) == 1
        self._busy = threading.Lock()
        self._news = threading.Condition()
        self._held: dict[str, Durable] = {}
        self._heard: deque[tuple[str, bytes]] = deque()
        self._damaged: deque[CorruptLog] = deque()
        self._stopping = False
        self._next_tick = time.monotonic()
        self._missing_since: float | None = None
        self._is_copying_over = False

    def hold(self, end: Durable, session: str) -> None:
        """Take note that a session has become durable here; `turn` or `wake` makes use of it."""
        with self._news:
            self._held[session] = end

    def hear(self, sender: str, messages: list[bytes]) -> None:
        """Take note of what a member said; `turn` or `wake` makes use of it."""
        with self._news:
            self._heard.extend((sender, message) for message in messages)

    def mend(self, damage: CorruptLog) -> None:
        """Set aside, soon, a session's copy that a connection has found damaged."""
        self._damaged.append(damage)
        self.wake()

    def turn(self) -> None:
        """Do what the news ask for, here and now, or leave it to who is at it; errors as `run`."""
        for _ in range(_TURNS_MAX):
            if not self._busy.acquire(blocking=False):
                return  # who is at it looks for news once more after it has let go
            try:
                if not self._stopping:
                    self._step()
            finally:
                self._busy.release()
            if not self._has_news:
                return
        self.wake()

    def wake(self) -> None:
        """Let `run` do what the news ask for."""
        with self._news:
            self._news.notify()

    def run(self) -> None:
        """Do what is to be done until stopped, and save a last snapshot. For a thread of its own.

        Raises:
            OSError: the journal's disk, or the merged log's, failed.
            CorruptLog: the merged log is damaged, and there is no other node to copy it from.
        """
        while not self._stopping or self._held:
            with self._news:
                if not (self._has_news or self._stopping):
                    self._news.wait(max(0.0, self._next_tick - time.monotonic()))
            with self._busy:
                self._step()
        with self._busy:  # a turn that began before `stop` may still be at it
            if self.catch_up is not None:
                self.catch_up.stop()  # the log stays closed: the copy may be at the disk still
            self._snapshots.end()

    def stop(self) -> None:
        """Let `run` execute what was decided, and end; no other thread does anything from now."""
        with self._news:
            self._stopping = True
            self._news.notify()

    def close(self) -> None:
        """Release the merged log, when `run` has ended."""
        with self._busy:
            self._snapshots.close()
            self._member.executor.close()

    @property
    def _has_news(self) -> bool:
        return bool(self._held or self._heard or self._damaged)

    def _step(self) -> None:
        member = self._member
        with self._news:
            held, self._held = self._held, {}
            heard, self._heard = self._heard, deque()
        for session, end in held.items():
            member.hold(session, end)
        for sender, data in heard:
            self._hear(sender, data)
        now = time.monotonic()
        is_tick = now >= self._next_tick
        if is_tick:
            self._next_tick = now + self._settings.tick_s
            member.tick()
        while self._damaged:
            self._mend(self._damaged.popleft())
        try:
            self._advance(set(held))
            if is_tick:
                self._keep_up(now)
        except CorruptLog as damage:
            self._mend(damage)
        self._archiver.turn(now)
        if is_tick:
            self.missing = member.missing
            self._relay.turn(now, self.missing)
            self._snapshots.turn(now)

    def _hear(self, sender: str, data: bytes) -> None:
        try:
            self._member.hear(sender, data)
        except PeerError as error:
            _log.warning("from node %s: %s", sender, error)

    def _advance(self, changed: set[str]) -> None:
        try:
            merged = self._member.run()
        except DiskFailed:
            raise  # what is on the disk is not known any more: a start finds out
        except OSError as error:
            _log.error("merging pauses: %s; it goes on when the disk has room", error)
            time.sleep(_RETRY_S)
            return
        for session in changed.union(merged):
            self._confirm(session, self._member.executor.ledger)

    def _confirm(self, session: str, ledger: Ledger) -> None:
        inbox = self._inboxes.get(session)
        if inbox is None or not self._member.vouches_for(session):
            return  # what is here may not be what was merged
        known, merged = inbox.confirmations, ledger.merged_to(session)
        merged_at = ledger.end if merged > known.merged else known.merged_at
        replicated = max(known.replicated, self._member.holdings.agreed(session), merged)
        inbox.confirm(Confirmations(inbox.durable, replicated, merged, merged_at))

    def _mend(self, damage: CorruptLog) -> None:
        """Set aside what is damaged, if another node or the publisher has what it held."""
        diverged = isinstance(damage, SessionDiverged)
        if isinstance(damage, Diverged) or (self._alone and not diverged):
            raise damage
        _log.error("%s; it is set aside and fetched again", damage)
        directory = os.path.dirname(damage.path)
        if directory == self._member.executor.appender.directory:
            self._snapshots.drop()
            self._member.executor.discard(damage.path)
        else:
            session = os.path.basename(directory)
            self._inboxes.give_up(session, diverged=diverged)
            with self._news:
                self._held.pop(session, None)  # of the copy that was given up
            self._member.lose(session)

    def _keep_up(self, now: float) -> None:
        """Copy the merged log from another node where this one cannot make it itself."""
        if self._alone:
            return
        member = self._member
        if self.catch_up is None:
            if not member.executor.lacks_log and not self._waited_too_long(now):
                return
            _log.warning("copying the merged log from other nodes: %s", self._reason())
            member.suspended = True
            self._snapshots.await_sync()
            member.executor.close()
            begin = member.executor.appender.next_place - member.executor.lacks_lines
            self.catch_up = CatchUp(
                self._settings, Position(begin), self._guard, self._relay.contexts
            )
        elif self._ends_copy(self.catch_up):
            self.catch_up = None
            member.executor.reopen()
            member.suspended = False
            self._missing_since = None
            _log.warning("the merged log is copied up to %s; merging", member.executor.appender.end)

    def _ends_copy(self, copy: CatchUp) -> bool:
        """End the copying where it is of no more use; whether it has ended, and nobody writes."""
        if not self._is_copying_over:
            end = self._member.executor.ledger.end
            self._is_copying_over = copy.is_done(end) or self._needs_no_copy
        if not (self._is_copying_over and copy.stop(self._settings.tick_s)):
            return False  # it may be dialling a machine that is not there: asked again next tick
        self._is_copying_over = False
        return True

    @property
    def _needs_no_copy(self) -> bool:
        """Whether what was missing has come meanwhile: the others may be waiting for this node."""
        return not self._member.executor.lacks_log and self._member.missing is None

    def _waited_too_long(self, now: float) -> bool:
        if self._member.missing is None:
            self._missing_since = None
            return False
        if self._missing_since is None:
            self._missing_since = now
        return now - self._missing_since > self._settings.missing_s

    def _reason(self) -> str:
        missing = self._member.missing
        if missing is None:
            return "the leader's snapshot is ahead of the merged log here"
        return f"session {missing[0]} did not come up to {missing[1]}"
