"""The metrics of a node: what each sample of it says, as families of series."""

import math
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import Final

from prometheus_client.core import Metric

from replicator.clients import PULLS, PUSHES, ClientView
from replicator.scrub import ScrubState
from rt.inspect.history import Row
from rt.node.sample import Hop, NodeSample, SessionView, bytes_between
from rt.node.sampler import HOPS
from rt.node.settings import NodeSettings
from rt.version import __version__
from rt.web.collector import Labels, counter, gauge, histogram
from sequencer.raft.consensus import EngineRole

# Sessions and clients that have series of their own: those with the greatest lag. Publishers name
# sessions, so a series for each would let them fill the memory of the server that scrapes.
SERIES_MAX: Final = 20
_MOVING_BYTES_PER_S: Final = 1.0
_STREAM: Final = ("stream",)
_ARCHIVE_RULES: Final = ("time", "limit", "disk")


def node_metrics(
    sample: NodeSample, settings: NodeSettings, rows: Sequence[Row], expiry: dict[str, float]
) -> Iterator[Metric]:
    """Yield all families.

    Args:
        sample: of the node.
        settings: of the node.
        rows: of the merged log's history.
        expiry: when the certificates expire, in seconds since the epoch: `own` and `ca`.
    """
    stream = settings.stream
    yield gauge(
        "rt_build_info", "Always 1; the labels say what runs here.",
        {(__version__, platform.python_version(), "node", settings.cluster_id, settings.name): 1},
        ("version", "python", "kind", "cluster", "node"),
    )  # fmt: skip
    yield from _consensus(sample, settings)
    yield from _latencies(sample)
    for name, words in (
        ("received", "from publishers and from nodes that relay for them"),
        ("merged", "here since the node started"),
        ("sent", "to subscribers and to nodes that copy the merged log"),
    ):
        yield from _hop(name, words, getattr(sample.flow, name), stream)
    yield from _merging(sample, stream)
    yield from _sessions(sample.sessions, stream)
    yield from _clients(sample, stream)
    yield from _disk(sample, stream)
    yield from scrub_metrics(sample.scrub, stream)
    yield from _log(rows, stream)
    yield gauge(
        "rt_certificate_expiry_timestamp_seconds", "When a certificate of this node expires.",
        {(use,): when for use, when in expiry.items()}, ("use",),
    )  # fmt: skip
    yield gauge(
        "rt_sample_timestamp_seconds", "When all of this was looked at.", sample.times.at_ns / 1e9
    )


def _consensus(sample: NodeSample, settings: NodeSettings) -> Iterator[Metric]:
    engine, stream = sample.view.engine, settings.stream
    roles = {(stream, role.name.lower()): float(role is engine.role) for role in EngineRole}
    yield gauge("rt_member_role", "1 for the role of this node.", roles, ("stream", "role"))
    yield _of(stream, "rt_has_leader", "Whether this node knows a leader, and so a majority.",
              float(bool(engine.leader)))  # fmt: skip
    yield _of(stream, "rt_voters", "Nodes of the cluster that vote.", len(sample.voters))
    reachable = sum(name not in sample.unreachable for name in sample.voters)
    words = "Of them, those that this one is connected to, and itself."
    yield _of(stream, "rt_voters_reachable", words, reachable)
    others = [name for name in sample.members if name != settings.name]
    yield gauge(
        "rt_node_reachable", "Whether this node is connected to another.",
        {(stream, name): float(name not in sample.unreachable) for name in others},
        ("stream", "peer"),
    )  # fmt: skip
    yield _of(stream, "rt_term", "The newest election term.", engine.term)
    yield _of(stream, "rt_committed_index", "The last instruction agreed on.", engine.commit)
    yield _of(
        stream, "rt_executed_index", "The last instruction executed here.", sample.view.executed
    )
    changes = sample.changes
    yield _count(stream, "rt_leader_changes", "Changes of the leader.", changes.leaders)
    yield _count(stream, "rt_elections", "Election terms that began.", changes.elections)


def _latencies(sample: NodeSample) -> Iterator[Metric]:
    counted = dict(sample.latencies)
    agreement = {(): counted.pop("agreement")}
    yield histogram(
        "rt_agreement_seconds", "From proposing an instruction here to its commitment.", agreement
    )
    syncs = {(kind,): each for kind, each in counted.items()}
    yield histogram("rt_sync_seconds", "How long a sync of a file took.", syncs, ("file",))


def _hop(name: str, words: str, hop: Hop, stream: str) -> Iterator[Metric]:
    for unit in ("bytes", "messages", "frames"):
        amount = getattr(hop.total, unit)
        yield _count(stream, f"rt_{name}_{unit}", f"{unit.title()} {name} {words}.", amount)


def _merging(sample: NodeSample, stream: str) -> Iterator[Metric]:
    view = sample.view
    yield _of(stream, "rt_merged_number", "Messages in the merged log since it began.", view.number)
    yield _of(stream, "rt_last_merge_timestamp_seconds", "When something was last merged.",
              view.time_ns / 1e9 if view.time_ns else math.nan)  # fmt: skip
    yield _of(stream, "rt_unmerged_bytes", "Synced here and not merged.", sample.unmerged)
    yield _of(stream, "rt_merge_lag_seconds", "How long the oldest of that has waited.",
              sample.waiting_s)  # fmt: skip
    yield _of(stream, "rt_copying", "Whether the merged log is being copied from another node.",
              float(view.waiting.copy is not None))  # fmt: skip
    yield _of(stream, "rt_forked", "Whether its log differs from the others', and merging ended.",
              float(view.waiting.fork is not None))  # fmt: skip
    stalled = {each.partition(" ")[0] for each in sample.stalled}
    yield gauge(
        "rt_stalled", "1 if work waits at a hop and nothing has moved for 10 s.",
        {(stream, hop): float(hop in stalled) for hop in HOPS}, ("stream", "hop"),
    )  # fmt: skip


def _sessions(sessions: Sequence[SessionView], stream: str) -> Iterator[Metric]:
    states = Counter(_state(each) for each in sessions)
    yield gauge(
        "rt_sessions", "Sessions, by what they do.",
        {(stream, state): states[state] for state in ("moving", "idle", "waiting")},
        ("stream", "state"),
    )  # fmt: skip
    shown = nsmallest(
        SERIES_MAX, sessions, lambda each: (-each.waiting_s, -each.unmerged, each.session)
    )
    yield _of(stream, "rt_sessions_without_series", "Sessions with less lag than those below.",
              len(sessions) - len(shown))  # fmt: skip
    labels = ("stream", "session")
    yield gauge("rt_session_lag_bytes", "Synced here and not merged.",
                {(stream, each.session): each.unmerged for each in shown}, labels)  # fmt: skip
    yield gauge("rt_session_lag_seconds", "How long the oldest of that has waited.",
                {(stream, each.session): each.waiting_s for each in shown}, labels)  # fmt: skip


def _state(session: SessionView) -> str:
    if session.waiting_s > 1:
        return "waiting"
    return "moving" if session.bytes_per_s >= _MOVING_BYTES_PER_S else "idle"


def _clients(sample: NodeSample, stream: str) -> Iterator[Metric]:
    kinds = {(stream, kind): len(sample.here(kind)) for kind in (PUSHES, PULLS)}
    yield gauge("rt_clients", "Clients that are connected.", kinds, ("stream", "kind"))
    lags: dict[Labels, float] = {}
    waits: dict[Labels, float] = {}
    worst = sorted(sample.here(PULLS), key=lambda each: (-each.waiting_s, -_lag(each, sample)))
    for each in worst:
        key = (stream, each.peer)
        if key in lags or len(lags) < SERIES_MAX:  # the greatest of one name's connections
            lags[key] = max(lags.get(key, 0), _lag(each, sample))
            waits[key] = max(waits.get(key, 0.0), each.waiting_s)
    labels = ("stream", "client")
    yield gauge("rt_pull_lag_bytes", "Merged here and not sent to a subscriber.", lags, labels)
    yield gauge("rt_pull_lag_seconds", "How long the oldest of that has waited.", waits, labels)
    refused = {(reason,): count for reason, count in sample.changes.refused.items()}
    yield counter("rt_refused", "Peers and sessions that were refused.", refused, ("reason",))


def _lag(client: ClientView, sample: NodeSample) -> int:
    return 0 if client.position is None else bytes_between(client.position, sample.view.end)


def _disk(sample: NodeSample, stream: str) -> Iterator[Metric]:
    disk = sample.disk
    yield gauge("rt_disk_free_bytes", "Free on the node's file system.", disk.available)
    yield gauge("rt_disk_reserve_bytes", "Below this, new data is refused.", disk.reserve)
    yield _of(stream, "rt_takes_data", "Whether new data is taken.", float(disk.takes_data))


def scrub_metrics(scrub: ScrubState, stream: str) -> Iterator[Metric]:
    """Yield what reading the rolled files of a log has come to."""
    yield _of(stream, "rt_scrub_finished_timestamp_seconds", "When all rolled files had been read.",
              scrub.finished_ns / 1e9 if scrub.finished_ns else math.nan)  # fmt: skip
    yield _count(stream, "rt_scrubbed_files", "Rolled files that were read.", scrub.files)
    yield _count(stream, "rt_corrupt_files", "Of them, those that were damaged.", scrub.corrupt)
    yield _count(stream, "rt_repaired_files", "Damaged files that were repaired.", scrub.repaired)
    yield _of(stream, "rt_unrepaired_files", "Damaged files that are not repaired yet.",
              len(scrub.unrepaired))  # fmt: skip


def _log(rows: Sequence[Row], stream: str) -> Iterator[Metric]:
    states = Counter(row.state for row in rows)
    yield gauge(
        "rt_log_files", "Files of the merged log.",
        {(stream, state): states[state] for state in ("active", "rolled", "archived")},
        ("stream", "state"),
    )  # fmt: skip
    live = [row for row in rows if row.gone is None]
    yield _of(stream, "rt_log_bytes", "Bytes of the merged log that are here.",
              sum(row.bytes for row in live))  # fmt: skip
    oldest = live[0].line.first_time_ns / 1e9 if live and live[0].messages else math.nan
    yield _of(stream, "rt_log_oldest_timestamp_seconds", "The first message that is here.", oldest)
    rules = Counter(row.gone.reason.partition(",")[0] for row in rows if row.gone is not None)
    yield counter(
        "rt_archived_files", "Files of the merged log that were archived, by the rule.",
        {(stream, rule): rules[rule] for rule in _ARCHIVE_RULES}, ("stream", "rule"),
    )  # fmt: skip


def _of(stream: str, name: str, words: str, value: float) -> Metric:
    return gauge(name, words, {(stream,): value}, _STREAM)


def _count(stream: str, name: str, words: str, value: float) -> Metric:
    return counter(name, words, {(stream,): value}, _STREAM)
