"""NodeSampler: samples a node from outside, without waiting for any of its threads."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from replicator.repair.scrub import ScrubState
from replicator.serve.client_record import PULLS, ClientView, ServerRecord
from replicator.sink.late_check import LateCheck
from rt.latencies import Latencies
from rt.node.agree.leadership import Leadership
from rt.node.agree.view import NodeView
from rt.node.ingest.inbox import NodeInbox
from rt.node.observe.sample import (
    ChangesView,
    DiskView,
    Flow,
    Hop,
    NodeSample,
    PoisonView,
    SessionView,
    bytes_between,
)
from rt.node.observe.stall_clock import MERGE, PULL, SYNC, HopProgress, Stalls, Waits
from rt.node.resources.disk_guard import DiskGuard
from rt.position import START, Position
from rt.traffic import Traffic
from sequencer.peers.connections import Peers

_RATE_S: Final = 0.5  # a rate over less than this is noise
_CONFIRMS_S: Final = 5.0  # a puller confirms once a second what it has written
_UNSEEN: Final = SessionView("", "", START, START, START, Traffic(), 0.0, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Watched:
    """Watched: the objects that a sampler reads; any thread may read all of them.

    Attributes:
        view: returns the node's view of its sequencing.
        inboxes: returns the copies of sessions.
        merged: counts of what was merged since the start.
        record: the clients of the node's server.
        peers: the other nodes; None if there are none.
        guard: guard of the node's disk.
        leadership: which node leads.
        latencies: histograms by name.
        scrub: returns the results of scrubbing.
        late: the check of frames that were accepted unchecked; None if there is no such check.
    """

    view: Callable[[], NodeView]
    inboxes: Callable[[], Collection[NodeInbox]]
    merged: Traffic
    record: ServerRecord
    peers: Peers | None
    guard: DiskGuard
    leadership: Leadership
    latencies: dict[str, Latencies]
    scrub: Callable[[], ScrubState] = ScrubState
    late: LateCheck | None = None


class NodeSampler:
    """NodeSampler: makes samples; one thread uses it.

    From one sample to the next it remembers rates, totals and how long things have waited.
    """

    def __init__(self, watched: Watched) -> None:
        """Prepare to sample the node that these objects belong to."""
        self._watched = watched
        self._began_ns = time.time_ns()
        self._at_s = time.monotonic()
        self._seen: dict[str, SessionView] = {}  # each session's last view
        self._received = Traffic()
        self._flow = Flow(Hop(Traffic()), Hop(Traffic()), Hop(Traffic()))
        self.stalls = Stalls()
        self._waits = Waits()
        self._confirms = Waits()

    def sample(self) -> NodeSample:
        """Return a new sample of the node; takes about 3 us per session."""
        watched, now_ns, now_s = self._watched, time.time_ns(), time.monotonic()
        passed_s, self._at_s = now_s - self._at_s, now_s
        view = watched.view()
        inboxes = sorted(watched.inboxes(), key=lambda each: each.session)
        sessions = tuple([self._session(each, now_ns, now_s, passed_s) for each in inboxes])
        self._seen = {each.session: each for each in sessions}
        clients = tuple(self._client(each, view.end, now_s) for each in watched.record.clients())
        watched.guard.measure()
        sample = NodeSample(
            now_ns, now_s, self._began_ns, view, sessions, clients,
            watched.peers.problems(view.engine.members) if watched.peers else {},
            DiskView(watched.guard.available, watched.guard.reserve, not watched.guard.is_closed),
            self._flowed(passed_s),
            {name: each.counted() for name, each in watched.latencies.items()},
            ChangesView(
                watched.leadership.changes, watched.leadership.elections,
                watched.leadership.leaderless_s(now_s), watched.record.refused(),
            ),
            {}, watched.scrub(), _poison(watched.late, inboxes),
        )  # fmt: skip
        progress = progress_of(sample)
        self._waits.keep(progress.keys())
        self._confirms.keep(progress.keys())
        return replace(sample, stalled=self.stalls.update(now_s, progress))

    def _session(self, inbox: NodeInbox, now_ns: int, now_s: float, passed_s: float) -> SessionView:
        seen, peer, merged = self._seen.get(inbox.session, _UNSEEN), inbox.peer, inbox.merged
        durable, received, now = inbox.safe, inbox.appender.end, inbox.traffic
        before, bytes_per_s, last_ns = seen.traffic, seen.bytes_per_s, seen.last_ns
        traffic = before if now == before else Traffic(now.bytes, now.messages, now.frames)
        if traffic.bytes < before.bytes:
            before = _UNSEEN.traffic  # another copy was begun
        if traffic is not seen.traffic:
            last_ns = now_ns
            self._received.add(
                traffic.bytes - before.bytes, traffic.messages - before.messages,
                traffic.frames - before.frames,
            )  # fmt: skip
        if passed_s >= _RATE_S:
            bytes_per_s = (traffic.bytes - before.bytes) / passed_s
        connected_ns = seen.connected_ns
        if peer != seen.pushed_by:
            connected_ns = now_ns if peer else 0
        waiting_s = 0.0
        if merged < durable:
            name = f"{MERGE} {inbox.session}"
            waiting_s = self._waits.update(name, reached=merged, end=durable, now_s=now_s)
        view = SessionView(
            inbox.session, peer, received, durable, merged, traffic, bytes_per_s, connected_ns,
            last_ns, waiting_s,
        )  # fmt: skip
        return seen if view == seen else view  # a second view of 10,000 idle ones would be 4 MB

    def _client(self, client: ClientView, end: Position, now_s: float) -> ClientView:
        """Return a client's view, with how long its oldest unsent bytes have waited.

        A client that has confirmed nothing for seconds is shown at its last confirmed position,
        since later bytes may still be in the connection's buffers.
        """
        if client.position is None or client.acked is None or client.ended_ns is not None:
            return client
        name = f"{PULL} {client.peer} at {client.address}"
        unsent_s = self._waits.update(name, reached=client.position, end=end, now_s=now_s)
        # a file that has ended may leave nothing to confirm
        acked = client.acked if bytes_between(client.acked, end) else end
        silent_s = self._confirms.update(name, reached=acked, end=end, now_s=now_s)
        if silent_s < _CONFIRMS_S:
            return replace(client, waiting_s=unsent_s)
        position = min(client.position, client.acked)
        return replace(client, position=position, waiting_s=max(unsent_s, silent_s))

    def _flowed(self, passed_s: float) -> Flow:
        merged, last = Traffic(), self._flow
        merged.add_from(self._watched.merged)
        received = Traffic()
        received.add_from(self._received)
        self._flow = Flow(
            _hop(received, last.received, passed_s), _hop(merged, last.merged, passed_s),
            _hop(self._watched.record.sent(), last.sent, passed_s),
        )  # fmt: skip
        return self._flow


def _poison(late: LateCheck | None, inboxes: Sequence[NodeInbox]) -> PoisonView:
    if late is None or not late.is_busy:
        return PoisonView()
    unchecked, logs = late.unchecked, [each.appender for each in inboxes]
    return PoisonView(
        sum(bool(late.why_refused(each)) for each in logs),
        sum(each.directory in unchecked for each in logs),
    )


def _hop(total: Traffic, last: Hop, passed_s: float) -> Hop:
    if passed_s < _RATE_S:
        return Hop(total, last.bytes_per_s, last.messages_per_s)
    return Hop(
        total,
        (total.bytes - last.total.bytes) / passed_s,
        (total.messages - last.total.messages) / passed_s,
    )


def progress_of(sample: NodeSample) -> dict[str, HopProgress]:
    """Return the progress of each hop that has work, by `hop name`."""
    found: dict[str, HopProgress] = {}
    for each in sample.sessions:
        if each.durable < each.received:
            found[f"{SYNC} {each.session}"] = HopProgress(each.durable, waits=True)
        if each.merged < each.durable:
            found[f"{MERGE} {each.session}"] = HopProgress(each.merged, waits=True)
    for client in sample.clients:
        if client.kind == PULLS and client.ended_ns is None and client.position is not None:
            waits = client.position < sample.view.end
            name = f"{PULL} {client.peer} at {client.address}"
            found[name] = HopProgress(client.position, waits)
    return found
