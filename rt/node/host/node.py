"""Node: one stream's server, pipeline and links to other nodes, in one process."""

import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from replicator.host import Bell
from replicator.limits.quotas import Quota
from replicator.serve.client_record import ServerRecord
from replicator.serve.feeds import LogFeed
from replicator.serve.streams import Handler, ServedStream
from rt.about import speaking
from rt.config.settings import changed, kinds_of
from rt.errors import CorruptLog, Misuse, Refused, spoken
from rt.format.manifest import LogIdentity
from rt.names import PeerName
from rt.net.addresses import Address
from rt.net.admin import ADMIN_ALPN
from rt.net.authority.certificates import (
    CertificateFiles,
    certificate_files,
    days_left,
    renewal_warning,
)
from rt.net.authority.grants import grants_path, read_grants
from rt.net.authority.identity import PeerIdentity
from rt.net.loop.event_loop import EventLoop
from rt.net.question import STATUS_ALPN
from rt.net.status import STATUS_S
from rt.net.tls import Contexts, client_context, offering, server_context
from rt.node.admin.answers import AnswerMeter, SharedAnswers, dated, encoded
from rt.node.admin.audit import AuditLog
from rt.node.admin.node_admin import NodeAdmin
from rt.node.admin.node_successions import NodeSuccessions
from rt.node.agree.catch_up import CatchUp
from rt.node.agree.idle_heartbeat import StreamHeartbeat
from rt.node.agree.leadership import Leadership, OnRole
from rt.node.agree.leadership_handover import hand_over
from rt.node.agree.level_gate import LevelGate
from rt.node.host.ending import Ending
from rt.node.host.node_admission import NodeAdmission, demand_own
from rt.node.host.pipeline import Links, NodePipeline
from rt.node.host.port import NodePort
from rt.node.host.scrubbing import node_scrubber
from rt.node.host.state import open_state
from rt.node.ingest.inbox import NodeInbox
from rt.node.ingest.relay import NodeRelay
from rt.node.observe.periodic_sampler import PeriodicSampler
from rt.node.observe.sampler import NodeSampler, Watched
from rt.node.observe.status import for_clients, node_status
from rt.node.resources.node_directory import JOURNAL, NodeDirectory
from rt.node.resources.peer_addresses import PeerAddresses
from rt.node.sessions.quotas import quotas_of_notes
from rt.node.settings.agreement import engine_of
from rt.node.settings.limits import NodeLimits
from rt.node.settings.node import NodeSettings
from rt.position import Position
from sequencer.journal.journal import Opened
from sequencer.ledger.format_level import demand_readable_level
from sequencer.ledger.seal import moved_away, seal_of
from sequencer.peers.connections import Peers
from sequencer.peers.versions import alpns_of

_log: Final = logging.getLogger("rt.node")
STUCK_S: Final = 30.0  # a loop that has not run for so long needs a restart
_LIVE: Final = {"reserve", "streams", *kinds_of(NodeLimits)}  # settings that `reload` changes


class Node:
    """Node: serves the pushers and pullers of one stream, and takes part in sequencing the stream.

    Threads: every field is set once, in `__init__`. The port's loop does the work, with threads of
        its own pool and of a pool for this stream's disk. Any thread may call any method except
        `start` and `stop`, which belong to the owner.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        founding: bool = False,
        on_role: OnRole | None = None,
        port: Callable[[], NodePort] | None = None,
        about: str = "",
    ) -> None:
        """Recover what is on disk; `start` begins to serve.

        Args:
            settings: this node's settings.
            founding: whether this is the first start of a member of a new cluster, whose empty
                state may vote. A single node founds itself if its directory is empty.
            on_role: called on a separate thread when this node becomes the leader or a follower.
            port: returns the port that several streams share, and opens it if it is not open yet;
                None for a port of this node's own.
            about: prefix of the node's log lines, if the process serves other streams too.

        Raises:
            Misuse: the directories do not belong together, another node runs on them, or the
                engine is not installed.
            CorruptLog: the merged log is damaged.
            Refused: the state directory is another node's, or the installed consensus engine
                differs from the audited one.
        """
        engine_of(settings.agreement.consensus)  # if not installed, fail before a lock is taken
        _check_files(settings)  # fail before a state is created: half a state would be in the way
        self.settings = settings
        self._about = about
        self._ending = Ending(self._halt, about)
        self._answers = SharedAnswers()
        self._meter = AnswerMeter(lambda: self.port.server)
        self._leadership = Leadership(settings.name, settings.stream, on_role)
        self.directory = directory = NodeDirectory(settings)
        try:
            opened = open_state(
                directory.disk_of(JOURNAL), settings, directory.path, founding=founding
            )
            self._compose(opened, port, about)
        except BaseException:
            directory.close()
            raise

    def _compose(self, opened: Opened, opens: Callable[[], NodePort] | None, about: str) -> None:
        """Connect the node to its port; if that fails, close the port unless streams share it."""
        port = NodePort(self.settings) if opens is None else opens()
        idle_heartbeat = port.idle_heartbeat.join(
            self.settings.founding_name, lambda: self.pipeline.sequencer.ring(), self._ending.fail
        )
        try:
            self._build(opened, port, idle_heartbeat, about, is_whole=opens is None)
        except BaseException:
            idle_heartbeat.leave()
            if opens is None:
                port.stop()
                port.loop.stop()
            raise

    def _build(
        self, opened: Opened, port: NodePort, idle_heartbeat: StreamHeartbeat, about: str, *,
        is_whole: bool,
    ) -> None:  # fmt: skip
        settings, directory = self.settings, self.directory
        self._places = places = PeerAddresses(settings)
        contexts = Contexts(certificate_files(settings.certs, settings.name), client_context)
        links = Links(
            lambda node, session: self.relay.pass_on(node, session),
            lambda begin: CatchUp(
                settings, places, begin, directory.guard, contexts,
                suspect=lambda damage: self.scrubber.suspect(damage),
                loop=self.port.loop,
            ),
            places.follow, idle_heartbeat,
        )  # fmt: skip
        self.peers: Peers | None = None  # made below, because peers call the pipeline
        self.pipeline = NodePipeline(
            settings, directory, opened, links, self._ending, loop=port.loop, memory=port.frames
        )  # fmt: skip
        member, sequencer = self.pipeline.member, self.pipeline.sequencer
        self._admission = NodeAdmission(settings, member.membership, sequencer)
        self.relay = NodeRelay(settings.stream, places, self.pipeline.inboxes, contexts)
        self._successions = self._make_successions(contexts.files, port.loop)
        self._lost = opened.damage
        self._levels = self._make_levels()
        self.peers = self._make_peers(idle_heartbeat, port.loop)
        if self.peers is not None:
            member.transmit = self.peers.send
        self.scrubber = node_scrubber(settings, directory, self.pipeline, places, contexts)
        self.port, self._idle_heartbeat, self._is_whole = port, idle_heartbeat, is_whole
        self._served = self._make_served(about)
        # Syncs and sequences what a connection has appended (`replicator.host.Host`).
        self.handle_appends: Callable[[], None] = partial(
            self._ending.guarded, self.pipeline.handle_appends
        )
        self.pipeline.sequencer.on_status = self._leadership.saw
        self.periodic_sampler = PeriodicSampler(
            NodeSampler(self._watched()), self._agree_on_members, loop=port.loop
        )

    def _agree_on_members(self) -> None:
        """Once all members' certificates name the cluster, propose to admit only such ones."""
        if self.pipeline.sequencer.view.leads and self.peers is not None:
            self._admission.bind(self.peers.holders, self.pipeline.sequencer.order)

    def _watched(self) -> Watched:
        pipeline, member = self.pipeline, self.pipeline.member
        return Watched(
            lambda: pipeline.sequencer.view, pipeline.inboxes.every,
            member.executor.traffic, self._served.record, self.peers, self.directory.guard,
            self._leadership, {"agreement": member.proposals.agreement, **self.directory.syncs},
            lambda: self.scrubber.state, self.port.late,
        )  # fmt: skip

    def _make_levels(self) -> LevelGate:
        """Return the gate for format levels; a new cluster begins by agreeing on its level.

        Raises:
            Misuse: this version of rt may not be able to read what the cluster writes.
        """
        member, sequencer, name = self.pipeline.member, self.pipeline.sequencer, self.settings.name
        demand_readable_level(sequencer.view.notes, self.directory.path)
        levels = LevelGate(
            name, lambda: member.membership.doors.members - {name}, lambda: self.peers,
            lambda: sequencer.view,
        )  # fmt: skip
        if member.executor.ledger.is_new:
            member.proposals.founding = levels.first_note
        return levels

    def _make_peers(self, idle_heartbeat: StreamHeartbeat, loop: EventLoop) -> Peers | None:
        settings = self.settings
        if settings.is_alone:
            return None
        files = certificate_files(settings.certs, settings.name)
        contexts = Contexts(
            files, lambda *paths: offering(client_context(*paths), *_peer_alpns(settings))
        )
        peers = Peers(
            loop, settings.name, self._places.now, contexts.current, self.pipeline.hear,
            gone=self.pipeline.sequencer.gone, objection=self._admission.objection,
            removed=self.pipeline.sequencer.told_removed,
            outdated=self._levels.objection,
        )  # fmt: skip
        idle_heartbeat.follow(self._places.now)

        def follow(places: Mapping[str, Sequence[Address]]) -> None:
            peers.follow(places)
            idle_heartbeat.follow(places)

        self._places.listener = follow
        return peers

    def _make_served(self, about: str) -> ServedStream:
        """Return the object through which the port's server serves this stream."""
        peers, is_own = _peer_alpns(self.settings), self.port.own_stream == self.stream
        others: dict[str, Handler] = {}
        if self.peers is not None:
            others = dict.fromkeys(peers, self.peers.serve)
        record = ServerRecord(logging.getLogger("replicator.server"), about)
        return ServedStream(
            self, record, others, peers,
            {STATUS_ALPN: self._serve_status, ADMIN_ALPN: self._admin(is_own=is_own).serve},
            is_own=is_own, door=self._admission.objection, outdated=self._levels.objection,
            says=self._successions.say, hears=self._successions.hear,
        )  # fmt: skip

    def _make_successions(self, files: CertificateFiles, loop: EventLoop) -> NodeSuccessions:
        def nodes() -> list[Address]:
            others = [each for places in self._places.now.values() for each in places]
            return [self.settings.addresses.get(self.settings.name, self.address), *others]

        log = self.pipeline.member.executor.appender.identity.id
        return NodeSuccessions(
            files, self.stream, log, nodes, loop=loop, directory=self.directory.path,
            is_sealed=lambda: moved_away(self.pipeline.sequencer.view.notes) is not None,
        )  # fmt: skip

    def _admin(self, *, is_own: bool) -> NodeAdmin:
        pipeline = self.pipeline
        return NodeAdmin(
            self.settings, pipeline.sequencer, pipeline.member, pipeline.retention,
            AuditLog(self.directory.audit), copies=pipeline.inboxes, is_own=is_own,
            server=lambda: self.port.server,
            votes=self._admission.votes, served=lambda: pipeline.feeds.end,
            gate=self._levels, successions=self._successions,
        )  # fmt: skip

    def start(self) -> list[str]:
        """Begin to serve; return a sentence for each damaged session."""
        with speaking(self._about):
            self._leadership.start()
            damaged = self.pipeline.start()
            self.port.loop.call(lambda: self.port.streams.add(self._served))
            if self._is_whole:
                self.port.start()
            self.scrubber.start(self.port.loop, self.pipeline.inboxes.syncer.pool)
            self.periodic_sampler.start()
            self._successions.start()
        return damaged

    @property
    def failure(self) -> Exception | None:
        """The error that ended the node, if one did."""
        return self._ending.failure

    @property
    def stream(self) -> str:
        """The stream that the node serves."""
        return self.settings.stream

    @property
    def address(self) -> tuple[str, int]:
        """The address that the node listens on, with the actual port if port 0 was requested."""
        return self.port.server.address

    @property
    def merged_end(self) -> Position:
        """The end of the merged log that is served."""
        return self.pipeline.feeds.end

    def is_member(self, name: str) -> bool:
        """Whether a node belongs to this cluster (`replicator.host.Host`)."""
        return self._admission.is_member(name)

    def quota(self, publisher: PeerName) -> Quota:
        """The quota of a publisher in this stream (`replicator.host.Host`)."""
        return quotas_of_notes(self.pipeline.sequencer.view.notes).of(publisher)

    def claim(self, identity: LogIdentity, peer: str, wake: Bell, *, relays: bool) -> NodeInbox:
        """Return the copy that a pushing connection fills (`replicator.host.Host`)."""
        if relays and not self.is_member(peer):
            raise Refused("role", f"{peer!r} is not a node of this cluster")
        if not relays:
            self._successions.demand_current()
            if (seal := seal_of(self.pipeline.sequencer.view.notes)) is not None:
                raise seal.refusal
        inbox = self.pipeline.claim(identity, peer, wake, relays=relays)
        words = "session %s is pushed by %s from %s"
        _log.info(words, inbox.session, peer, inbox.appender.end)
        return inbox

    def why_no_headers(self) -> str:
        """Return why publishers may not write headers yet, or "" (`replicator.host.Host`)."""
        return self._levels.why_no_headers()

    @property
    def is_first(self) -> bool:
        """Whether this node leads, and thus merges before the others (`replicator.host.Host`)."""
        return self.pipeline.sequencer.view.leads

    def feed(self, wake: Bell, *, relays: bool) -> LogFeed:
        """Return a feed of the merged log for a pulling connection (`replicator.host.Host`)."""
        if not relays:
            self._successions.demand_current()
        return self.pipeline.feeds.open(wake, relays=relays)

    def damaged(self, error: CorruptLog, growing: bool) -> None:
        """Start the repair of damage in the merged log (`replicator.host.Host`).

        A rolled file is handed to the scrubber. The active file (`growing`) is set aside and copied
        again from another node; a cluster's only node just logs the damage.
        """
        if not growing:
            self.scrubber.suspect(error)
        elif self.pipeline.member.is_alone:
            _log.error("%s; nothing after it is served from here; run `rt verify`", error)
        else:
            self.pipeline.mend_merged(error)

    def stuck(self) -> str:
        """Return the name of a loop that has not run for 30 s; "" if there is none."""
        now_s = time.monotonic()
        if now_s - self.pipeline.sequencer.stepped_s() > STUCK_S:
            return "sequence"
        return "sample" if now_s - self.periodic_sampler.sample.at_s > STUCK_S else ""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the node has stopped or failed; return False if the time ran out first."""
        return self._ending.wait(timeout_s)

    def stop(self) -> None:
        """Hand leadership over, close all connections, finish what was received, save a snapshot.

        The lock of the directory is released last.
        """
        with speaking(self._about):
            self._stop()

    def _stop(self) -> None:
        if hand_over(self.pipeline.sequencer, self.pipeline.member.engine):
            _log.info("another node leads now; this one stops")
        self._successions.stop()
        self.periodic_sampler.stop()
        self.scrubber.stop()
        self._end_connections()
        self.relay.stop()
        if self.peers is not None:
            self.peers.stop()
        self.pipeline.stop()
        self._leadership.stop()
        if self._is_whole:
            self.port.loop.stop()
        self.directory.close()
        self._ending.finish()

    def _end_connections(self) -> None:
        """End the stream's connections; a shared port tells the reason to peers that return."""
        self._idle_heartbeat.leave()
        if self._is_whole:
            self.port.stop()
        else:
            why = "it is stopping" if self.failure is None else spoken(self.failure)
            self.port.loop.call(lambda: self.port.streams.drop(self.stream, why))
            self.port.server.end(self.stream)

    def reload(self, settings: NodeSettings) -> list[str]:
        """Apply changed settings, as far as that is possible while the node runs.

        Certificates are reloaded automatically when their files change.

        Returns:
            The names of changed settings that need a restart.

        Raises:
            Misuse: a limit is out of range.
        """
        self.port.server.use_limits(settings.limits.server())
        self.directory.guard.reserve = settings.storage.reserve
        return [name for name in changed(self.settings, settings) if name not in _LIVE]

    def status(self) -> dict[str, Any]:
        """Return the node's status, as `rt status --json` shows it."""
        settings, pipeline = self.settings, self.pipeline
        inboxes = pipeline.inboxes
        shown = node_status(
            pipeline.sequencer.view, inboxes.every(), self.peers, settings, self.directory.guard,
            sample=self.periodic_sampler.sample, opened=inboxes.opened,
            why_refused=self.port.late.why_refused,
        )  # fmt: skip
        files = certificate_files(settings.certs, settings.name)
        certificate = {"certificate": self.certificate_warning(), "certificate_days": _days(files)}
        # a node that is being added had no state to lose
        is_new = settings.name in shown["learners"]
        lost = self._lost if shown["role"] == "learner" and not is_new else ""
        word = self._successions.ended
        ended = (
            None if word is None else {"moved_to": word.moved_to, "cut": word.cut, "by": word.by}
        )
        return shown | certificate | {
            "scrub": asdict(self.scrubber.state), "diverged": inboxes.diverged, "lost_state": lost,
            "ended": ended,
        }  # fmt: skip

    def certificate_warning(self) -> str:
        """Return what must be done about the node's certificate; "" if nothing."""
        return renewal_warning(certificate_files(self.settings.certs, self.settings.name))

    def _serve_status(self, sock: ssl.SSLSocket, identity: PeerIdentity) -> None:
        """Send the status to any admitted peer (`rt status`)."""
        with sock:
            self._meter.send(sock, identity, lambda: self._status(identity), STATUS_S)

    def _status(self, identity: PeerIdentity) -> bytes:
        """Return the status as this peer may see it, with the time of sending."""
        answer = self.encoded_status()
        if not identity.may_operate:
            answer = self._answers.get(
                "status of clients", lambda: for_clients(answer),
                state=lambda: answer,
            )  # fmt: skip
        return dated(answer, time.time_ns())

    def encoded_status(self) -> bytes:
        """Return the status in JSON, without the time of sending."""

        def make() -> bytes:
            fields = self.status()
            del fields["now_ns"]
            return encoded(fields)

        return self._answers.get("status", make, state=self._status_state)

    def _status_state(self) -> tuple[object, ...]:
        """Return the state that a cached status depends on; a change makes the cache stale."""
        view = self.pipeline.sequencer.view
        engine = view.engine
        return engine.role, engine.term, engine.leader, engine.members, view.notes, view.waiting

    def _halt(self) -> None:
        self._idle_heartbeat.leave()
        self.pipeline.halt()


def _check_files(settings: NodeSettings) -> None:
    """Raise `Misuse` if this node's certificate or grants cannot be read."""
    files = certificate_files(settings.certs, settings.name)
    server_context(files.ca, files.cert, files.key)
    read_grants(grants_path(files.ca))
    demand_own(settings)


def _days(files: CertificateFiles) -> float | None:
    """Return the days until this node's certificate expires; None if it cannot be read."""
    try:
        return round(days_left(files), 1)
    except (Misuse, OSError):
        return None


def _peer_alpns(settings: NodeSettings) -> tuple[str, ...]:
    return alpns_of(settings.cluster_id or settings.stream)
