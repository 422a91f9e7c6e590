"""Node: composes a stream's server, its copies of sessions and its sequencer into one process."""

import json
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from random import SystemRandom
from typing import Any, Final

from replicator.host import Bell
from replicator.server import Handler, Server
from rt.errors import CorruptLog, Refused, RtError, spoken
from rt.format.manifest import MERGED, LogIdentity
from rt.log.disk import OsDisk
from rt.log.identity import new_identity
from rt.names import stream_directory
from rt.net.admin import ADMIN_ALPN
from rt.net.certificates import certificate_files, renewal_warning
from rt.net.exchange import send_all
from rt.net.tls import Contexts, client_context, offering, server_context
from rt.node.admin import NodeAdmin
from rt.node.audit import AuditLog
from rt.node.catch_up import CatchUp
from rt.node.duties import Duties, Ports, timing_of
from rt.node.engine import engine_of
from rt.node.feed import NodeFeed, NodeFeeds
from rt.node.guard import DiskGuard
from rt.node.inbox import NodeInbox
from rt.node.inboxes import Inboxes
from rt.node.relay import NodeRelay
from rt.node.retention import Retention
from rt.node.sequencer import NodeSequencer
from rt.node.settings import NodeSettings
from rt.node.snapshots import NodeSnapshots
from rt.node.state import claim_directory, open_state
from rt.node.status import STATUS_ALPN, STATUS_S, node_status
from rt.node.sweep import Sweep
from rt.node.sweeper import NodeSweeper
from rt.position import START, Position
from rt.subscriber import MERGED_NAME
from sequencer.executor import Executor
from sequencer.journal.journal import Opened
from sequencer.ledger import Ledger, decode_ledger
from sequencer.member import Member
from sequencer.peers import ALPN, Peers
from sequencer.planner import Planner
from sequencer.raft.consensus import Snapshot
from sequencer.session_log import SessionLogs

_log: Final = logging.getLogger("rt.node")


class Node:
    """One node of a stream: serves its pushers and pullers, and takes part in the sequencing.

    Threads: one a connection (replicator), one that syncs, one that sequences. What is little is
    synced and sequenced by the connection that brought it (`settle`).
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
        engine_of(settings.agreement.consensus)  # fails before a lock is taken if not installed
        self.settings = settings
        self.failure: Exception | None = None  # what ended it
        self._disk = OsDisk()
        self._alone = settings.is_alone
        self._top = stream_directory(settings.root, settings.stream)
        self._stopped = threading.Event()
        self._feeds = NodeFeeds(os.path.join(self._top, MERGED_NAME))
        self._lock_fd = claim_directory(self._disk, settings, self._top)
        try:
            self._recover(open_state(self._disk, settings, self._top, founding=founding))
        except BaseException:
            os.close(self._lock_fd)
            raise

    def _recover(self, opened: Opened) -> None:
        settings, storage = self.settings, self.settings.storage
        self._guard = guard = DiskGuard(settings.name, self._top, storage.reserve)
        self._inboxes = Inboxes(
            self._disk, os.path.join(self._top, "in"), self.stream,
            self._hold, guard, alone=self._alone, damaged=self._mend,
        )  # fmt: skip
        self._member = self._make_member(opened)
        self._sweeper = NodeSweeper(Sweep(self._disk, self._inboxes, fold_s=storage.fold_s))
        if opened.state.snapshot is not None and not self._member.executor.lacks_log:
            self._sweeper.saved(opened.state.snapshot.data)
        self.archiver = Retention(settings, self._member, self._sweeper)
        self._snapshots = NodeSnapshots(
            self._member, opened.journal, self._sweeper, self.archiver, pause_s=storage.snapshot_s
        )
        contexts = Contexts(certificate_files(settings.certs, settings.name), client_context)
        self._relay = NodeRelay(settings, self._inboxes, contexts)
        self._sequencer = NodeSequencer(
            Duties(
                self._member,
                Ports(
                    self._inboxes, self._snapshots, self.archiver,
                    lambda begin: CatchUp(settings, begin, guard, contexts),
                    self._relay.pass_on, self._feeds.grown,
                ),
                timing_of(settings),
            )
        )  # fmt: skip
        self._peers = self._make_peers()
        others: dict[str, Handler] = {ALPN: self._peers.serve} if self._peers else {}
        audit = AuditLog(f"{self._top}.audit.jsonl")
        admin = NodeAdmin(settings, self._sequencer, self._member, self.archiver, audit)
        others |= {STATUS_ALPN: self._tell, ADMIN_ALPN: admin.serve}
        self._server = Server(
            settings.address, _contexts(settings), self, settings.limits.server(), others
        )
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            for name, work in (("sync", self._sync), ("sequence", self._sequencer.run))
        ]

    def start(self) -> list[str]:
        """Begin to serve; return a sentence for each session that is damaged."""
        ledger = self._member.executor.ledger
        damaged = self._inboxes.open_all(ledger.merged_to)
        for words in damaged:
            _log.error("%s", words)
        for thread in self._threads:
            thread.start()
        self._sweeper.start(self._end)
        self._server.start()
        return damaged

    @property
    def stream(self) -> str:
        """The stream that it serves."""
        return self.settings.stream

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the real port where port 0 was asked for."""
        return self._server.address

    @property
    def merged_end(self) -> Position:
        """Where the merged log that is served ends."""
        return self._feeds.end

    def is_member(self, name: str) -> bool:
        """Whether a node belongs to this cluster (`replicator.host.Host`)."""
        return name in self.settings.member_names

    def claim(self, identity: LogIdentity, peer: str, wake: Bell, *, relays: bool) -> NodeInbox:
        """Give a pushing connection the copy it fills (`replicator.host.Host`)."""
        if relays and peer not in self.settings.member_names:
            raise Refused("role", f"{peer!r} is not a node of this cluster")
        inbox = self._inboxes.claim(
            identity, peer, wake, self._merged_to(identity.name), relays=relays
        )
        self._sequencer.wake()  # it may have been opened just now, with bytes to be merged
        _log.info("session %s is pushed by %s from %s", inbox.session, peer, inbox.appender.end)
        return inbox

    @property
    def is_first(self) -> bool:
        """Whether it leads, and so merges before the others (`replicator.host.Host`)."""
        return self._sequencer.view.leads

    def settle(self) -> None:
        """A connection has appended what had come (`replicator.host.Host`)."""
        self._guarded(self._settle)

    def feed(self, wake: Bell) -> NodeFeed:
        """Give a pulling connection the merged log (`replicator.host.Host`)."""
        return self._feeds.open(wake)

    def damaged(self, error: CorruptLog, growing: bool) -> None:
        """Mend the merged log, if it was found damaged in its active file (`Host`)."""
        if self._alone or not growing:
            _log.error("%s; nothing after it is served from here; run `rt verify`", error)
        else:
            self._mend(error)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the node has stopped; False if the time ran out first."""
        return self._stopped.wait(timeout_s)

    def stop(self) -> None:
        """Hang up, sync what was received, execute what was decided, save a snapshot."""
        self._server.stop()
        self._relay.stop()
        if self._peers is not None:
            self._peers.stop()
        for stop, thread in zip(
            (self._inboxes.stop, self._sequencer.stop), self._threads, strict=True
        ):
            stop()
            thread.join()
        self._sweeper.stop()
        self._inboxes.close()
        self._sequencer.close(self._release)
        os.close(self._lock_fd)
        self._stopped.set()

    def _release(self) -> None:
        self._snapshots.close()
        self._member.executor.close()

    def _merged_to(self, session: str) -> Position:
        """Up to where a session was merged: proof that it was durable, on a node alone."""
        if not self._alone:
            return START
        return self._sequencer.ask(lambda: self._member.executor.ledger.merged_to(session))

    def _make_member(self, opened: Opened) -> Member:
        settings, state = self.settings, opened.state
        ledger = _ledger_of(state.snapshot, settings.storage.file_bytes)
        logs = SessionLogs(self._disk, os.path.join(self._top, "in"))
        identity = self._merged_identity()
        members = settings.member_names
        return Member(
            settings.name,
            members,
            engine=engine_of(settings.agreement.consensus)(
                settings.name, members, chance=SystemRandom(), state=state,
                cluster=settings.cluster_id or self.stream, settings=settings.agreement.timers,
            ),
            journal=opened.journal,
            executor=Executor(
                self._disk, os.path.join(self._top, MERGED_NAME), identity, ledger, logs,
                alone=self._alone,
            ),
            planner=Planner(logs),
            send=self._send,
            now_ns=time.time_ns,
            merged=lambda: self._feeds.grown(self._member.executor.ledger.end),
        )  # fmt: skip

    def _merged_identity(self) -> LogIdentity:
        """All nodes of a cluster write the same log, so its id is the cluster's."""
        if self.settings.cluster_id:
            return LogIdentity(MERGED, self.stream, MERGED_NAME, self.settings.cluster_id, 0)
        return new_identity(MERGED, self.stream, MERGED_NAME, created_ns=time.time_ns())

    def _make_peers(self) -> Peers | None:
        if self._alone:
            return None
        settings = self.settings
        files = certificate_files(settings.certs, settings.name)
        contexts = Contexts(files, lambda *paths: offering(client_context(*paths), ALPN))
        return Peers(settings.name, settings.addresses, contexts.current, self._hear)

    def _send(self, to: str, data: bytes) -> None:
        if self._peers is not None:
            self._peers.send(to, data)

    def _hear(self, sender: str, messages: list[bytes]) -> None:
        self._sequencer.hear(sender, messages)
        self._guarded(self._sequencer.turn)

    def _hold(self, _end: Position, session: str) -> None:
        self._sequencer.hold(session)

    def _mend(self, damage: CorruptLog) -> None:
        self._sequencer.mend(damage)

    def _settle(self) -> None:
        if self._inboxes.settle():
            self._sequencer.turn()

    def _sync(self) -> None:
        self._inboxes.run(self._sequencer.wake)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (RtError, OSError) as error:
            self._end(error)
        except Exception as error:  # half a node would take what it will never merge
            self._end(error)
            raise

    def _end(self, error: Exception) -> None:
        is_ours = not isinstance(error, RtError | OSError)
        kind = f"internal error: {type(error).__name__}: " if is_ours else ""
        _log.critical("this node stops: %s%s", kind, spoken(error))
        self.failure = error
        self._inboxes.stop()
        self._sequencer.stop()
        self._stopped.set()

    def _tell(self, sock: ssl.SSLSocket, _identity: object) -> None:
        """Answer any peer that was let in with this node's status (`rt status`)."""
        with sock:
            send_all(sock, json.dumps(self.status()).encode(), time.monotonic() + STATUS_S)

    def status(self) -> dict[str, Any]:
        """How this node stands, as `rt status --json` shows it."""
        shown = node_status(
            self._sequencer.view, self._inboxes.every(), self._peers, self.settings, self._guard
        )
        files = certificate_files(self.settings.certs, self.settings.name)
        return shown | {
            "certificate": renewal_warning(files), "diverged": self._inboxes.diverged,
        }  # fmt: skip


def _contexts(settings: NodeSettings) -> Contexts:
    files = certificate_files(settings.certs, settings.name)
    return Contexts(
        files, lambda *paths: offering(server_context(*paths), ALPN, STATUS_ALPN, ADMIN_ALPN)
    )


def _ledger_of(snapshot: Snapshot | None, file_bytes: int) -> Ledger:
    if snapshot is None:
        return Ledger(file_bytes_max=file_bytes)
    return decode_ledger(snapshot.data)
