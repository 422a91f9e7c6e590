"""The metrics of a node's process, made from samples of its streams."""

import math
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Final, NamedTuple

from prometheus_client.core import Metric

from replicator.repair.scrub import ScrubState
from replicator.serve.client_record import PULLS, PUSHES, ClientView
from rt.inspect.history import Row
from rt.latencies import LatencyCounts
from rt.node.observe.sample import NodeSample, SessionView, bytes_between
from rt.node.observe.stall_clock import HOPS
from rt.node.settings.node import NodeSettings
from rt.version import __version__
from rt.web.nodes.cursor_rows import CursorRow
from rt.web.serving.collector import Labels, counter, gauge, histogram
from sequencer.raft.consensus import EngineRole

# How many sessions, clients and cursors of a process get series of their own: those with the most
# lag. Publishers choose session names: if each session had a series, publishers could fill the
# memory of the server that scrapes.
SERIES_MAX: Final = 20
# How many streams get series of their own, some 60 each: first those in trouble, then those with
# the most lag.
STREAMS_WITH_SERIES_MAX: Final = 50
_MOVING_BYTES_PER_S: Final = 1.0
_STREAM: Final = ("stream",)
_ARCHIVE_RULES: Final = ("time", "limit", "disk", "messages")


class StreamView(NamedTuple):
    """One stream of a node's process.

    Attributes:
        stream: its name.
        sample: the sample of its node.
        rows: returns its merged log's history; may read it from disk.
        cursors: returns its registered cursors; may read the log.
    """

    stream: str
    sample: NodeSample
    rows: Callable[[], Sequence[Row]]
    cursors: Callable[[], Sequence[CursorRow]] = tuple


def node_metrics(
    streams: Sequence[StreamView], settings: NodeSettings, expiry: Mapping[str, float],
    failed: Sequence[str] = (),
) -> Iterator[Metric]:  # fmt: skip
    """Yield all metric families.

    Args:
        streams: the streams that are served.
        settings: the settings of the node.
        expiry: when the certificates `own` and `ca` expire, in seconds since the epoch.
        failed: streams that the node should serve but does not.
    """
    shown = worst_first(streams)[:STREAMS_WITH_SERIES_MAX]
    yield gauge(
        "rt_build_info", "Always 1; the labels say what runs here.",
        {(__version__, platform.python_version(), "node", settings.cluster_id, settings.name): 1},
        ("version", "python", "kind", "cluster", "node"),
    )  # fmt: skip
    served = {each.stream: 1.0 for each in streams} | dict.fromkeys(failed, 0.0)
    yield gauge("rt_stream_served", "Whether a stream of the node is served; 0 once it has failed.",
                {(name,): value for name, value in served.items()}, _STREAM)  # fmt: skip
    yield gauge("rt_streams_without_series", "Streams with less trouble and lag than those below.",
                len(streams) - len(shown))  # fmt: skip
    yield from _consensus(shown, settings.name)
    yield from _latencies(streams)
    for name, words in (
        ("received", "from publishers and from nodes that relay for them"),
        ("merged", "here since the node started"),
        ("sent", "to subscribers and to nodes that copy the merged log"),
    ):
        yield from _hop(shown, name, words)
    yield from _merging(shown)
    yield from _sessions(shown)
    yield from _poison(shown)
    yield from _clients(shown)
    yield from _cursors(shown)
    yield from _refused(streams, shown)
    yield from _disk(shown)
    yield from _scrubs({each.stream: each.sample.scrub for each in shown})
    yield from _log(shown)
    yield gauge(
        "rt_certificate_expiry_timestamp_seconds", "When a certificate of this node expires.",
        {(use,): when for use, when in expiry.items()}, ("use",),
    )  # fmt: skip
    yield gauge(
        "rt_sample_timestamp_seconds", "When all of this was looked at; of streams the oldest.",
        min((each.sample.at_ns / 1e9 for each in streams), default=math.nan),
    )  # fmt: skip


def _refused(streams: Sequence[StreamView], shown: Sequence[StreamView]) -> Iterator[Metric]:
    refused: Counter[str] = Counter()
    for each in streams:
        refused.update(each.sample.changes.refused)
    yield counter("rt_refused", "Peers and sessions that were refused.",
                  {(reason,): count for reason, count in refused.items()}, ("reason",))  # fmt: skip
    yield counter("rt_unheard_messages", "Messages of nodes that have no say in a stream.",
                  {(each.stream, node): count for each in shown
                   for node, count in each.sample.view.waiting.unheard.items()},
                  ("stream", "node"))  # fmt: skip
    yield _count(shown, "rt_unreadable_entries",
                      "Committed entries that no node can read, and that are executed as nothing.",
                      lambda sample: sample.view.waiting.unreadable)  # fmt: skip


def worst_first(streams: Sequence[StreamView]) -> list[StreamView]:
    """Return streams in order of urgency: those in trouble first, then by wait, lag and name."""
    return sorted(
        streams,
        key=lambda each: (
            not is_in_trouble(each.sample), -each.sample.waiting_s, -each.sample.unmerged,
            each.stream,
        ),
    )  # fmt: skip


def is_in_trouble(sample: NodeSample) -> bool:
    """Whether a stream on this node merges nothing, stalls, or refuses data."""
    waiting = sample.view.waiting
    return (
        not sample.view.engine.leader
        or not sample.disk.takes_data
        or waiting.fork is not None
        or waiting.copy is not None
        or bool(sample.stalled)
        or bool(sample.unreachable)
    )


def _consensus(streams: Sequence[StreamView], node: str) -> Iterator[Metric]:
    yield gauge(
        "rt_member_role", "1 for the role of this node.",
        {
            (each.stream, role.name.lower()): float(role is each.sample.view.engine.role)
            for each in streams for role in EngineRole
        },
        ("stream", "role"),
    )  # fmt: skip
    yield _of(streams, "rt_has_leader", "Whether this node knows a leader, and so a majority.",
              lambda each: bool(each.view.engine.leader))  # fmt: skip
    yield _of(
        streams, "rt_voters", "Nodes of the cluster that vote.", lambda each: len(each.voters)
    )
    yield _of(streams, "rt_voters_reachable",
              "Of them, those that this one is connected to, and itself.",
              lambda each: sum(name not in each.unreachable for name in each.voters))  # fmt: skip
    yield gauge(
        "rt_node_reachable", "Whether this node is connected to another.",
        {
            (each.stream, name): float(name not in each.sample.unreachable)
            for each in streams for name in each.sample.members if name != node
        },
        ("stream", "peer"),
    )  # fmt: skip
    yield _of(streams, "rt_term", "The newest election term.", lambda each: each.view.engine.term)
    yield _of(streams, "rt_committed_index", "The last instruction agreed on.",
              lambda each: each.view.engine.commit)  # fmt: skip
    yield _of(streams, "rt_executed_index", "The last instruction executed here.",
              lambda each: each.view.executed)  # fmt: skip
    yield _count(streams, "rt_leader_changes", "Changes of the leader.",
                 lambda each: each.changes.leaders)  # fmt: skip
    yield _count(streams, "rt_elections", "Election terms that began.",
                 lambda each: each.changes.elections)  # fmt: skip


def _latencies(streams: Sequence[StreamView]) -> Iterator[Metric]:
    """Yield latency histograms over all streams together.

    A histogram has 18 series, so one for each stream would be too many.
    """
    counted: dict[str, LatencyCounts] = {}
    for each in streams:
        for kind, more in each.sample.latencies.items():
            counted[kind] = counted[kind].joined(more) if kind in counted else more
    agreement = {(): counted.pop("agreement")} if "agreement" in counted else {}
    yield histogram(
        "rt_agreement_seconds", "From proposing an instruction here to its commitment.", agreement
    )
    syncs = {(kind,): each for kind, each in counted.items()}
    yield histogram("rt_sync_seconds", "How long a sync of a file took.", syncs, ("file",))


def _hop(streams: Sequence[StreamView], name: str, words: str) -> Iterator[Metric]:
    for unit in ("bytes", "messages", "frames"):
        amounts = {
            (each.stream,): float(getattr(getattr(each.sample.flow, name).total, unit))
            for each in streams
        }
        yield counter(f"rt_{name}_{unit}", f"{unit.title()} {name} {words}.", amounts, _STREAM)


def _merging(streams: Sequence[StreamView]) -> Iterator[Metric]:
    yield _of(streams, "rt_merged_number", "Messages in the merged log since it began.",
              lambda each: each.view.number)  # fmt: skip
    yield _of(streams, "rt_last_merge_timestamp_seconds", "When something was last merged.",
              lambda each: each.view.time_ns / 1e9 if each.view.time_ns else math.nan)  # fmt: skip
    yield _of(streams, "rt_unmerged_bytes", "Synced here and not merged.",
              lambda each: each.unmerged)  # fmt: skip
    yield _of(streams, "rt_merge_lag_seconds", "How long the oldest of that has waited.",
              lambda each: each.waiting_s)  # fmt: skip
    yield _of(streams, "rt_copying",
              "Whether the merged log is being copied from another node.",
              lambda each: each.view.waiting.copy is not None)  # fmt: skip
    yield _of(streams, "rt_forked",
              "Whether its log differs from the others', and merging ended.",
              lambda each: each.view.waiting.fork is not None)  # fmt: skip
    stalled = {
        (each.stream, what.partition(" ")[0]) for each in streams for what in each.sample.stalled
    }
    yield gauge(
        "rt_stalled", "1 if work waits at a hop and nothing has moved for 10 s.",
        {
            (each.stream, hop): float((each.stream, hop) in stalled)
            for each in streams for hop in HOPS
        },
        ("stream", "hop"),
    )  # fmt: skip


def _sessions(streams: Sequence[StreamView]) -> Iterator[Metric]:
    states = {each.stream: Counter(map(_state, each.sample.sessions)) for each in streams}
    yield gauge(
        "rt_sessions", "Sessions, by what they do.",
        {
            (stream, state): count[state]
            for stream, count in states.items() for state in ("moving", "idle", "waiting")
        },
        ("stream", "state"),
    )  # fmt: skip
    shown = nsmallest(
        SERIES_MAX,
        ((-one.waiting_s, -one.unmerged, each.stream, one.session)
         for each in streams for one in each.sample.sessions),
    )  # fmt: skip
    named = Counter(stream for _, _, stream, _ in shown)
    yield _of_each(streams, "rt_sessions_without_series",
                   "Sessions with less lag than those below.",
                   lambda each: len(each.sample.sessions) - named[each.stream])  # fmt: skip
    labels = ("stream", "session")
    yield gauge("rt_session_lag_bytes", "Synced here and not merged.",
                {(stream, name): -lag for _, lag, stream, name in shown}, labels)  # fmt: skip
    yield gauge("rt_session_lag_seconds", "How long the oldest of that has waited.",
                {(stream, name): -wait for wait, _, stream, name in shown}, labels)  # fmt: skip


def _poison(streams: Sequence[StreamView]) -> Iterator[Metric]:
    yield _of(streams, "rt_poisoned_sessions",
                   "Sessions refused for a frame that was taken before it proved to be poisoned.",
                   lambda each: each.poison.poisoned)  # fmt: skip
    yield _of(streams, "rt_unchecked_sessions",
                   "Sessions with compressed frames still to be looked into.",
                   lambda each: each.poison.unchecked)  # fmt: skip


def _state(session: SessionView) -> str:
    if session.waiting_s > 1:
        return "waiting"
    return "moving" if session.bytes_per_s >= _MOVING_BYTES_PER_S else "idle"


def _clients(streams: Sequence[StreamView]) -> Iterator[Metric]:
    kinds = {
        (each.stream, kind): len(each.sample.here(kind))
        for each in streams for kind in (PUSHES, PULLS)
    }  # fmt: skip
    yield gauge("rt_clients", "Clients that are connected.", kinds, ("stream", "kind"))
    pulling = sorted(
        ((-client.waiting_s, -_lag(client, each.sample), each.stream, client.peer)
         for each in streams for client in each.sample.here(PULLS)),
    )  # fmt: skip
    lags: dict[Labels, float] = {}
    waits: dict[Labels, float] = {}
    for wait, lag, *key in pulling:
        labels = tuple(key)
        # connections of one name share a series, which shows their greatest lag
        if labels in lags or len(lags) < SERIES_MAX:
            lags[labels] = max(lags.get(labels, 0), -lag)
            waits[labels] = max(waits.get(labels, 0.0), -wait)
    names = ("stream", "client")
    yield gauge("rt_pull_lag_bytes", "Merged here and not sent to a subscriber.", lags, names)
    yield gauge("rt_pull_lag_seconds", "How long the oldest of that has waited.", waits, names)


def _lag(client: ClientView, sample: NodeSample) -> int:
    return 0 if client.position is None else bytes_between(client.position, sample.view.end)


def _cursors(streams: Sequence[StreamView]) -> Iterator[Metric]:
    behind = nsmallest(
        SERIES_MAX,
        ((-row.lag_bytes, each.stream, row.cursor, row.lag_messages or 0, row.lag_s or 0.0)
         for each in streams for row in each.cursors() if row.lag_bytes is not None),
    )  # fmt: skip
    labels = ("stream", "cursor")
    yield gauge("rt_cursor_lag_bytes", "Merged here and not acknowledged.",
                {(stream, name): -lag for lag, stream, name, _, _ in behind}, labels)  # fmt: skip
    yield gauge("rt_cursor_lag_messages", "The same in messages.",
                {(stream, name): count for _, stream, name, count, _ in behind},
                labels)  # fmt: skip
    yield gauge("rt_cursor_lag_seconds", "From the merging of the first of them to the last.",
                {(stream, name): lag_s for _, stream, name, _, lag_s in behind},
                labels)  # fmt: skip


def _disk(streams: Sequence[StreamView]) -> Iterator[Metric]:
    yield _of(streams, "rt_disk_free_bytes", "Free on the file system of the stream's directory.",
              lambda each: each.disk.available)  # fmt: skip
    yield _of(streams, "rt_disk_reserve_bytes", "Below this, new data is refused.",
              lambda each: each.disk.reserve)  # fmt: skip
    yield _of(streams, "rt_takes_data", "Whether new data is taken.",
              lambda each: each.disk.takes_data)  # fmt: skip


def scrub_metrics(scrub: ScrubState, stream: str) -> Iterator[Metric]:
    """Yield the metrics of a log's scrub."""
    return _scrubs({stream: scrub})


def _scrubs(states: Mapping[str, ScrubState]) -> Iterator[Metric]:
    def values(value: Callable[[ScrubState], float]) -> dict[Labels, float]:
        return {(stream,): value(state) for stream, state in states.items()}

    yield gauge(
        "rt_scrub_finished_timestamp_seconds", "When all rolled files had been read.",
        values(lambda each: each.finished_ns / 1e9 if each.finished_ns else math.nan), _STREAM,
    )  # fmt: skip
    yield counter("rt_scrubbed_files", "Rolled files that were read.",
                  values(lambda each: each.files), _STREAM)  # fmt: skip
    yield counter("rt_corrupt_files", "Of them, those that were damaged.",
                  values(lambda each: each.corrupt), _STREAM)  # fmt: skip
    yield counter("rt_repaired_files", "Damaged files that were repaired.",
                  values(lambda each: each.repaired), _STREAM)  # fmt: skip
    yield gauge("rt_unrepaired_files", "Damaged files that are not repaired yet.",
                values(lambda each: len(each.unrepaired)), _STREAM)  # fmt: skip


def _log(streams: Sequence[StreamView]) -> Iterator[Metric]:
    read = {each.stream: each.rows() for each in streams}
    states = {stream: Counter(row.state for row in rows) for stream, rows in read.items()}
    yield gauge(
        "rt_log_files", "Files of the merged log.",
        {
            (stream, state): count[state]
            for stream, count in states.items() for state in ("active", "rolled", "archived")
        },
        ("stream", "state"),
    )  # fmt: skip
    live = {stream: [row for row in rows if row.gone is None] for stream, rows in read.items()}
    yield gauge("rt_log_bytes", "Bytes of the merged log that are here.",
                {(stream,): sum(row.bytes for row in rows) for stream, rows in live.items()},
                _STREAM)  # fmt: skip
    yield gauge("rt_log_oldest_timestamp_seconds", "The first message that is here.",
                {(stream,): _oldest_s(rows) for stream, rows in live.items()}, _STREAM)  # fmt: skip
    rules = {
        stream: Counter(row.gone.reason.partition(",")[0] for row in rows if row.gone is not None)
        for stream, rows in read.items()
    }
    yield counter(
        "rt_archived_files", "Files of the merged log that were archived, by the rule.",
        {(stream, rule): count[rule] for stream, count in rules.items() for rule in _ARCHIVE_RULES},
        ("stream", "rule"),
    )  # fmt: skip


def _oldest_s(live: Sequence[Row]) -> float:
    """Return the time of the oldest retained message; NaN if there is none."""
    return live[0].line.first_time_ns / 1e9 if live and live[0].messages else math.nan


def _of(
    streams: Sequence[StreamView], name: str, words: str, value: Callable[[NodeSample], float]
) -> Metric:
    return _of_each(streams, name, words, lambda each: value(each.sample))


def _of_each(
    streams: Sequence[StreamView], name: str, words: str, value: Callable[[StreamView], float]
) -> Metric:
    return gauge(name, words, {(each.stream,): value(each) for each in streams}, _STREAM)


def _count(
    streams: Sequence[StreamView], name: str, words: str, value: Callable[[NodeSample], float]
) -> Metric:
    return counter(name, words, {(each.stream,): value(each.sample) for each in streams}, _STREAM)
