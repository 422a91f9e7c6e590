"""Node: composes a stream's server, its copies of sessions and its sequencer into one process."""

import json
import logging
import os
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from random import SystemRandom
from typing import Any, Final

from replicator.host import Bell
from replicator.server import Handler, Server
from rt.admin import ADMIN_ALPN
from rt.appender import Durable
from rt.certificates import certificate_files
from rt.confirmations import Confirmations
from rt.disk import OsDisk
from rt.errors import CorruptLog, DiskFailed, Diverged, PeerError, RtError
from rt.manifest import MERGED, Identity, new_identity
from rt.names import stream_directory
from rt.node_admin import NodeAdmin
from rt.node_archive import NodeArchiver
from rt.node_catch_up import CatchUp
from rt.node_engine import engine_of
from rt.node_feed import NodeFeed
from rt.node_guard import DiskGuard
from rt.node_inbox import Inboxes, NodeInbox
from rt.node_settings import NodeSettings
from rt.node_state import claim_directory, open_state
from rt.node_status import STATUS_ALPN, node_status
from rt.node_sweeper import NodeSweeper
from rt.position import Position
from rt.subscriber import MERGED_NAME
from rt.tls import Contexts, client_context, offering, server_context
from sequencer.consensus import Snapshot
from sequencer.executor import Executor
from sequencer.journal import Opened
from sequencer.ledger import Ledger, decode_ledger
from sequencer.member import Member, SnapshotPlan
from sequencer.peers import ALPN, Peers
from sequencer.planner import Planner
from sequencer.session_log import SessionLogs

_log: Final = logging.getLogger("rt.node")
_RETRY_S: Final = 0.5  # after a full disk


class Node:
    """One node of a stream: serves its pushers and pullers, and takes part in the sequencing.

    Threads: one a connection (replicator), one that syncs, one that sequences. They meet in
    `_held` (what became durable) and `_heard` (what other nodes said), and in nothing else.
    """

    def __init__(self, settings: NodeSettings, *, founding: bool = False) -> None:
        """Recover what is on the disk; `start` begins to serve.

        Args:
            settings: of this node.
            founding: this is the first start of a member of a new cluster, whose empty state may
                vote. A node alone founds itself where nothing is there at all.

        Raises:
            Misuse: the directories do not belong together, another node runs on them, or the
                engine is not installed.
            CorruptLog: the merged log is damaged.
            Refused: the state directory is another node's, or the engine is not as audited.
        """
        self._engine = engine_of(settings.consensus)
        self.settings = settings
        self.stream = settings.stream
        self.failure: RtError | OSError | None = None
        self._disk = OsDisk()
        self._alone = len(settings.member_names) == 1
        self._top = stream_directory(settings.root, settings.stream)
        self._stopping = False
        self._stopped = threading.Event()
        self._events = threading.Condition()
        self._held: dict[str, Durable] = {}
        self._heard: deque[tuple[str, bytes]] = deque()
        self._feeds: set[NodeFeed] = set()
        self._pool = ThreadPoolExecutor(1, "snapshot")
        self._missing_since: float | None = None
        self._snapshot: tuple[SnapshotPlan, Future[Durable]] | None = None
        self._lock_fd = claim_directory(self._disk, settings, self._top)
        try:
            self._recover(open_state(self._disk, settings, self._top, founding=founding))
        except BaseException:
            os.close(self._lock_fd)
            raise

    def _recover(self, opened: Opened) -> None:
        settings = self.settings
        guard = self._guard = DiskGuard(settings.name, self._top, settings.reserve)
        self._inboxes = Inboxes(
            self._disk, os.path.join(self._top, "in"), self.stream, self._hold, guard,
            alone=self._alone,
        )  # fmt: skip
        self._member = self._make_member(opened)
        self._sweeper = NodeSweeper(self._disk, self._inboxes, fold_s=settings.fold_s)
        if opened.state.snapshot is not None and not self._member.executor.lacks_log:
            self._sweeper.saved(opened.state.snapshot.data)
        self.archiver = NodeArchiver(settings, self._member, self._sweeper, guard)
        self.merged_end = self._member.executor.ledger.end
        self._peers = self._make_peers()
        self._catch_up: CatchUp | None = None
        others: dict[str, Handler] = {ALPN: self._peers.serve} if self._peers else {}
        admin = NodeAdmin(self.stream, self._member, self.archiver)
        others |= {STATUS_ALPN: self._tell, ADMIN_ALPN: admin.serve}
        self._server = Server(settings.address, _contexts(settings), self, others=others)
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            for name, work in (("sync", self._inboxes.run), ("sequence", self._sequence))
        ]

    def start(self) -> list[str]:
        """Begin to serve; return a sentence for each session that is damaged."""
        ledger = self._member.executor.ledger
        damaged = self._inboxes.open_all(ledger.merged_to)
        for sentence in damaged:
            _log.error("%s", sentence)
        for thread in self._threads:
            thread.start()
        self._sweeper.start()
        self._server.start()
        return damaged

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the real port where port 0 was asked for."""
        return self._server.address

    def claim(self, identity: Identity, peer: str, wake: Bell) -> NodeInbox:
        """Give a pushing connection the copy it fills (`replicator.host.Host`)."""
        merged_to = self._member.executor.ledger.merged_to(identity.name)
        inbox = self._inboxes.claim(identity, peer, wake, merged_to)
        _log.info("session %s is pushed by %s from %s", inbox.session, peer, inbox.appender.end)
        return inbox

    def feed(self, wake: Bell) -> NodeFeed:
        """Give a pulling connection the merged log (`replicator.host.Host`)."""
        directory = os.path.join(self._top, MERGED_NAME)
        feed = NodeFeed(directory, wake, lambda: self.merged_end, self.forget)
        with self._events:
            self._feeds.add(feed)
        return feed

    def forget(self, feed: NodeFeed) -> None:
        """A pulling connection has ended."""
        with self._events:
            self._feeds.discard(feed)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the node has stopped; False if the time ran out first."""
        return self._stopped.wait(timeout_s)

    def stop(self) -> None:
        """Hang up, sync what was received, execute what was decided, save a snapshot."""
        self._server.stop()
        if self._peers is not None:
            self._peers.stop()
        self._inboxes.stop()
        for thread in self._threads[:1]:
            thread.join()
        with self._events:
            self._stopping = True
            self._events.notify()
        for thread in self._threads[1:]:
            thread.join()
        self._sweeper.stop()
        self._pool.shutdown()
        self._inboxes.close()
        self._member.executor.close()
        os.close(self._lock_fd)
        self._stopped.set()

    def _make_member(self, opened: Opened) -> Member:
        settings, state = self.settings, opened.state
        ledger = _ledger_of(state.snapshot, settings.file_bytes)
        logs = SessionLogs(self._disk, os.path.join(self._top, "in"))
        identity = self._merged_identity()
        members = settings.member_names
        return Member(
            settings.name,
            members,
            engine=self._engine(
                settings.name, members, chance=SystemRandom(), state=state,
                cluster=settings.cluster_id or self.stream, settings=settings.timers,
            ),
            journal=opened.journal,
            executor=Executor(
                self._disk, os.path.join(self._top, MERGED_NAME), identity, ledger, logs,
                alone=self._alone,
            ),
            planner=Planner(logs),
            send=self._send,
            now_ns=time.time_ns,
            merged=self._serve_more,
        )  # fmt: skip

    def _merged_identity(self) -> Identity:
        """All nodes of a cluster write the same log, so its id is the cluster's."""
        if self.settings.cluster_id:
            return Identity(MERGED, self.stream, MERGED_NAME, self.settings.cluster_id, 0)
        return new_identity(MERGED, self.stream, MERGED_NAME, created_ns=time.time_ns())

    def _make_peers(self) -> Peers | None:
        if self._alone:
            return None
        settings = self.settings
        files = certificate_files(settings.certs, settings.name)
        contexts = Contexts(files, lambda *paths: offering(client_context(*paths), ALPN))
        return Peers(settings.name, settings.addresses, contexts.current, self._hear_later)

    def _send(self, to: str, data: bytes) -> None:
        if self._peers is not None:
            self._peers.send(to, data)

    def _hear_later(self, sender: str, data: bytes) -> None:
        with self._events:
            self._heard.append((sender, data))
            self._events.notify()

    def _hold(self, end: Durable, session: str) -> None:
        with self._events:
            self._held[session] = end
            self._events.notify()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (RtError, OSError) as error:
            _log.critical("this node stops: %s", error)
            self.failure = error
            self._inboxes.stop()
            with self._events:
                self._stopping = True
                self._events.notify()
            self._stopped.set()

    def _sequence(self) -> None:
        member, tick_s = self._member, self.settings.tick_s
        next_tick = next_snapshot = time.monotonic()
        while not self._stopping or self._held:
            held, heard = self._await_events(next_tick - time.monotonic())
            for session, end in held.items():
                member.hold(session, end)
            for sender, data in heard:
                self._hear(sender, data)
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + tick_s
                member.tick()
            try:
                self._advance(set(held))
                self._keep_up(now)
            except CorruptLog as damage:
                self._mend(damage)
            self.archiver.turn(now)
            waits = self._sweeper.lacks_snapshot(member.executor.ledger.archived_to)
            if now >= next_snapshot or self._snapshot or waits:
                next_snapshot = self._take_snapshot(now, next_snapshot)
        if self._catch_up is not None:
            self._catch_up.stop()
            member.executor.reopen()
        self._save_last_snapshot()

    def _await_events(self, timeout_s: float) -> tuple[dict[str, Durable], list[tuple[str, bytes]]]:
        with self._events:
            if not (self._held or self._heard or self._stopping):
                self._events.wait(max(0.0, timeout_s))
            held, self._held = self._held, {}
            heard = list(self._heard)
            self._heard.clear()
        return held, heard

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

    def _serve_more(self) -> None:
        """The merged log has grown: let those who pull it know at once."""
        self.merged_end = self._member.executor.ledger.end
        with self._events:
            feeds = list(self._feeds)
        for feed in feeds:
            feed.wake.set()

    def _mend(self, damage: CorruptLog) -> None:
        """Set aside what is damaged, if another node or the publisher has what it held."""
        if self._alone or isinstance(damage, Diverged):
            raise damage
        _log.error("%s; it is set aside and fetched again", damage)
        directory = os.path.dirname(damage.path)
        if directory == self._member.executor.appender.directory:
            self._member.executor.discard(damage.path)
        else:
            session = os.path.basename(directory)
            self._inboxes.give_up(session)
            self._member.lose(session)

    def _keep_up(self, now: float) -> None:
        """Copy the merged log from another node where this one cannot make it itself."""
        if self._alone:
            return
        member = self._member
        if self._catch_up is None:
            if not member.executor.lacks_log and not self._waited_too_long(now):
                return
            _log.warning("copying the merged log from other nodes: %s", self._reason())
            member.suspended = True
            member.executor.close()
            begin = member.executor.appender.next_place - member.executor.lacks_lines
            self._catch_up = CatchUp(self.settings, Position(begin), self._guard)
        elif self._catch_up.is_done(member.executor.ledger.end) or self._needs_no_copy:
            self._catch_up.stop()
            self._catch_up = None
            member.executor.reopen()
            member.suspended = False
            self._missing_since = None
            _log.warning("the merged log is copied up to %s; merging", member.executor.appender.end)

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
        return now - self._missing_since > self.settings.missing_s

    def _reason(self) -> str:
        missing = self._member.missing
        if missing is None:
            return "the leader's snapshot is ahead of the merged log here"
        return f"session {missing[0]} did not come up to {missing[1]}"

    def _confirm(self, session: str, ledger: Ledger) -> None:
        inbox = self._inboxes.get(session)
        if inbox is None:
            return
        known, merged = inbox.confirmations, ledger.merged_to(session)
        merged_at = ledger.end if merged > known.merged else known.merged_at
        replicated = max(known.replicated, self._member.holdings.agreed(session), merged)
        inbox.confirm(Confirmations(inbox.durable, replicated, merged, merged_at))

    def _take_snapshot(self, now: float, due: float) -> float:
        """Start a snapshot when it is due; save it once the merged log is durable so far."""
        if self._snapshot is None:
            plan = self._member.plan_snapshot()
            if plan is not None:
                self._snapshot = (plan, self._pool.submit(self._member.executor.sync))
            return now + self.settings.snapshot_s
        planned, durable = self._snapshot
        if durable.done():
            self._snapshot = None
            if durable.result() >= planned.end:  # an OSError here ends the node
                self._member.save_snapshot(planned)
                self._sweeper.saved(planned.data)
        return due

    def _save_last_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot[1].result()
        durable, plan = self._member.executor.sync(), self._member.plan_snapshot()
        if plan is not None and durable >= plan.end:
            self._member.save_snapshot(plan)

    def _tell(self, sock: ssl.SSLSocket, _identity: object) -> None:
        """Tell whoever has a certificate of ours how this node stands (`rt status`)."""
        sock.sendall(json.dumps(self.status()).encode())
        sock.close()

    def status(self) -> dict[str, Any]:
        """How this node stands, as `rt status --json` shows it."""
        shown = node_status(
            self._member, self._inboxes.every(), self._peers, self.settings, self._catch_up
        )
        return shown | self.archiver.status()


def _contexts(settings: NodeSettings) -> Contexts:
    files = certificate_files(settings.certs, settings.name)
    return Contexts(
        files, lambda *paths: offering(server_context(*paths), ALPN, STATUS_ALPN, ADMIN_ALPN)
    )


def _ledger_of(snapshot: Snapshot | None, file_bytes: int) -> Ledger:
    if snapshot is None:
        return Ledger(file_bytes_max=file_bytes)
    return decode_ledger(snapshot.data)
