"""NodePipeline: the path of messages through a node."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from replicator.host import Bell
from replicator.serve.feeds import LogFeeds
from rt.errors import CorruptLog
from rt.format.manifest import LogIdentity
from rt.log.write.recent_frames import FrameMemory
from rt.net.loop.event_loop import EventLoop
from rt.node.agree.dependencies import Dependencies
from rt.node.agree.duties import Duties, timing_of
from rt.node.agree.duty_turns import DutyTurns
from rt.node.agree.idle_policy import IdleHeartbeat
from rt.node.agree.keep_up import CopyLog
from rt.node.agree.sequencer import NodeSequencer
from rt.node.agree.view import NodeView
from rt.node.host.assembly import build_member
from rt.node.host.ending import Ending
from rt.node.host.note_kinds import demand_note
from rt.node.ingest.damage import DamageFound
from rt.node.ingest.inbox import NodeInbox
from rt.node.ingest.inbox_syncer import Started
from rt.node.ingest.inboxes import Inboxes
from rt.node.ingest.restore_from_journal import restore_from_journal
from rt.node.notes.pins import may_lease_on
from rt.node.resources.node_directory import NodeDirectory
from rt.node.retain.retention import Retention
from rt.node.retain.snapshots import NodeSnapshots
from rt.node.retain.sweep import Sweep
from rt.node.retain.sweeper import NodeSweeper
from rt.node.sessions.watch import SessionWatch
from rt.node.settings.node import NodeSettings
from rt.position import START, Position
from sequencer.execution.execution import Readers
from sequencer.journal.journal import Opened
from sequencer.ledger.ledger import decode_ledger
from sequencer.membership import Dial
from sequencer.peers.notes import is_commit_note, is_plain_success

_log: Final = logging.getLogger("rt.node")
_LAG_MAX: Final = 2  # entries in flight to a member that keeps up


@dataclass(frozen=True, slots=True)
class Links:
    """Links: how a pipeline reaches the other nodes.

    Attributes:
        pass_on, copy_log, idle_heartbeat: as in `Dependencies`.
        dial: called with the addresses of all other nodes, by name, whenever they change.
    """

    pass_on: Callable[[str, str], None]
    copy_log: CopyLog
    dial: Dial
    idle_heartbeat: IdleHeartbeat


class NodePipeline:
    """NodePipeline: brings messages from copies of sessions into the merged log, and archives it.

    Small batches are synced and sequenced in the turn of the event loop that received them
    (`handle_appends`). All other work is done later; what waits for a disk runs on a thread.

    Threads: every field is set once. Any thread may use inboxes, feeds, sequencer and sweeper.
    While the node runs, only the thread that runs the duties may use member, retention, watch and
    _snapshots; other threads use them through `sequencer.ask`.
    """

    def __init__(
        self,
        settings: NodeSettings,
        directory: NodeDirectory,
        opened: Opened,
        links: Links,
        ending: Ending,
        *,
        loop: EventLoop,
        memory: FrameMemory,
    ) -> None:
        """Recover the merged log and the state; nothing runs before `start`.

        Args:
            settings: the node's settings.
            directory: the node's directory.
            opened: the journal and the state it recovered.
            links: how to reach the other nodes.
            ending: ends the node on an error.
            loop: the event loop that runs the duties.
            memory: the memory for the process's received frames.

        Raises:
            CorruptLog: the merged log is damaged.
        """
        disk, guard, storage = directory.disk, directory.guard, settings.storage
        self._merges_own_copies, self._journal = settings.merges_own_copies, opened.journal
        # The copies of sessions may lack bytes that these entries carry.
        self._carried = opened.state.entries if settings.is_alone else ()
        self._ending, self._loop = ending, loop
        self.feeds = self._make_feeds(directory.merged)
        self.inboxes = Inboxes(
            directory.copies_disk, directory.inputs, settings.stream,
            lambda _end, session: self.sequencer.record_synced(session), guard,
            # The session watch must know soon that a publisher has left.
            alone=lambda: self.member.is_alone, left=lambda: self.sequencer.stir(),
            damaged=lambda found: self.sequencer.mend(found), memory=memory,
        )  # fmt: skip
        self.member = build_member(
            settings, directory, opened,
            dial=links.dial, received=self.inboxes.received,
            copy=self.inboxes.appender_of, memory=memory,
            readers=Readers(self._serve_merged, lambda: self.feeds.has_readers),
        )  # fmt: skip
        self.sweeper = NodeSweeper(Sweep(disk, self.inboxes, fold_s=storage.fold_s))
        if opened.state.snapshot is not None and not self.member.executor.lacks_log:
            self.sweeper.saved(decode_ledger(opened.state.snapshot.data).merged_ends)
        self.retention = Retention(
            settings, self.member, self.sweeper, may_lease=may_lease_on(settings)
        )
        self._snapshots = NodeSnapshots(
            self.member, opened.journal, self.sweeper, self.retention,
            flush=self.inboxes.flush, pool=self.inboxes.syncer.pool, pause_s=storage.snapshot_s,
        )  # fmt: skip
        self.watch = SessionWatch(self.member, self.inboxes, self.retention)
        dependencies = Dependencies(
            self.inboxes, self._snapshots, self.retention, self.watch, links.copy_log,
            links.pass_on, self._serve, self.feeds.refuse, links.idle_heartbeat,
            lambda: guard.is_closed, self.feeds.turn_away,
        )  # fmt: skip
        duties = Duties(self.member, dependencies, timing_of(settings))
        self.sequencer = NodeSequencer(duties, demand_note)
        pool = self.inboxes.syncer.pool
        self._duty_turns = DutyTurns(loop, self.sequencer, ending.fail, pool=pool)

    def _make_feeds(self, merged: str) -> LogFeeds:
        return LogFeeds(
            merged, lambda: self.sequencer.view.refusal, lambda: self.sequencer.view.is_whole,
            lambda: self.member.executor.appender.recent,
        )  # fmt: skip

    def start(self) -> list[str]:
        """Open the copies and begin to sync and sequence; return a sentence per damaged copy."""
        ledger = self.member.executor.ledger
        damaged = self.inboxes.open_all(
            ledger.merged_to if self._merges_own_copies else lambda _session: START, ledger.index
        )
        for sentence in damaged:
            _log.error("%s", sentence)
        restore_from_journal(self.inboxes, self._carried)
        self._carried = ()
        work, fail = self._ending.guarded, self._ending.fail
        self.inboxes.syncer.start(Started(self._loop, work, fail, self.sequencer.ring))
        self._duty_turns.join()
        self.sweeper.start(self._loop, self._ending.fail)
        return damaged

    def claim(self, identity: LogIdentity, peer: str, wake: Bell, *, relays: bool) -> NodeInbox:
        """Return the copy of a session that a connection will fill; see `Inboxes.claim`."""
        inbox = self.inboxes.claim(
            identity, peer, wake, self._merged_to(identity.name), relays=relays
        )
        self.sequencer.stir()  # the copy may be newly opened and hold bytes to merge
        return inbox

    def handle_appends(self) -> None:
        """Sync and sequence what a connection has appended.

        If instructions carry small updates, a small append is not synced: the leader puts it into
        an instruction, and a follower waits for that instruction. Any other append is synced, now
        if it is small, else by a thread. An error must end the node: call this with
        `Ending.guarded`.
        """
        view = self.sequencer.view
        if view.carries and (sessions := self.inboxes.syncer.put_off()) is not None:
            if view.leads and sessions:
                self.sequencer.receive(sessions)
                self.sequencer.ring()
        elif self.inboxes.syncer.sync_if_small():
            self.sequencer.ring()

    def hear(self, sender: str, messages: list[bytes]) -> None:
        """Record another node's messages; unless they can wait, request a step now."""
        self.sequencer.hear(sender, messages)
        if not can_wait(
            sender, messages, self.sequencer.view, is_pulled=self.feeds.has_readers,
            is_reading=bool(self.member.reads.waiting),
        ):  # fmt: skip
            self.sequencer.ring()

    def mend_merged(self, damage: CorruptLog) -> None:
        """Request that a file of the merged log be set aside, as a connection found damage in it.

        This thread first checks that the damage is still there: several connections may report it,
        and the file may have been mended by now.
        """
        log = self.member.executor.appender
        try:
            log.verify_file(damage.position)
        except CorruptLog as found:
            self.sequencer.mend(DamageFound(found, log))
        except OSError as error:
            _log.warning("the merged log cannot be checked for damage: %s", error)

    def halt(self) -> None:
        """Stop sequencing, and let received bytes be synced, without waiting for either."""
        self.inboxes.syncer.stop()
        self.sequencer.stop()

    def stop(self) -> None:
        """Sync received bytes, execute what was decided, save a snapshot and close all files."""
        self._ending.guarded(self.inboxes.syncer.finish)
        self.sequencer.stop()
        self._duty_turns.leave()
        if self._ending.failure is None:
            self._ending.guarded(self.sequencer.finish)
        self.sweeper.stop()
        self.inboxes.close()
        self.member.executor.close()
        self._journal.close()

    def _merged_to(self, session: str) -> Position:
        """Return a session's merged end if its copy must be durable up to there; else `START`."""
        if not self._merges_own_copies:
            return START
        return self.sequencer.ask(lambda: self.member.executor.ledger.merged_to(session))

    def _serve_merged(self) -> None:
        """Serve what was just merged to a few pullers; `_serve` serves the others after the step.

        So a publisher's confirmation does not have to wait until all pullers got the message.
        """
        end = self.member.executor.ledger.end
        if end != self.feeds.end:
            self.feeds.begin(end)

    def _serve(self, end: Position) -> None:
        """Serve up to `end` to all pullers not served yet."""
        if end != self.feeds.end:
            self.feeds.grown(end)
        else:
            self.feeds.go_on()


def can_wait(
    sender: str, messages: Sequence[bytes], view: NodeView, *, is_pulled: bool, is_reading: bool
) -> bool:
    """Whether `messages` may be handled later: with the sender's next ones, or at a tick.

    A commit notice may wait if no puller reads here, since the leader has already served and
    acknowledged the entry. A follower's reply may wait if no proposal is undecided and no read is
    pending, since the reply then completes no majority, and if the follower keeps up.
    """
    [message, *others] = messages
    if others:
        return False
    if is_commit_note(message):
        return not is_pulled
    if view.is_executing or is_reading or not (view.leads and is_plain_success(message)):
        return False
    for each in view.engine.peers:  # as of the last tick; a follower that lags needs entries now
        if each.name == sender:
            return each.lag <= _LAG_MAX
    return False
