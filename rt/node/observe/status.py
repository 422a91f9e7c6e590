"""Status: a node's status, for scripts and operators alike."""

import json
import re
import time
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final

from replicator.serve.client_record import ClientView
from replicator.wire.codec import VERSION, VERSION_MIN
from rt.log.write.appender import Appender
from rt.node.agree.fork_watch import FoundFork
from rt.node.agree.view import NodeView, Waiting
from rt.node.ingest.inbox import NodeInbox
from rt.node.observe.sample import Flow, Hop, NodeSample, SessionView, bytes_between
from rt.node.observe.stall_reasons import stalls_of
from rt.node.resources.disk_guard import DiskGuard
from rt.node.retain.retention import policy_of_notes
from rt.node.settings.node import NodeSettings
from rt.position import Position
from rt.version import __version__
from sequencer.ledger.format_level import level_of
from sequencer.ledger.seal import seal_of
from sequencer.ledger.session_facts import Ownership
from sequencer.peers.connections import Peers
from sequencer.peers.versions import PEER_VERSIONS
from sequencer.planning.session_records import Stuck

_LEFT_SHOWN: Final = 100
_DIRECTORIES: Final = re.compile(r"""(?<=["'(\s])/(?:[^\s/"'\\]+/)+""")  # in JSON, or quoted in it
LATE: Final = "written by a majority before it is merged, and lost if most nodes lose power"


def node_status(
    view: NodeView,
    inboxes: Collection[NodeInbox],
    peers: Peers | None,
    settings: NodeSettings,
    guard: DiskGuard,
    *,
    sample: NodeSample,
    opened: Mapping[str, Ownership] = MappingProxyType({}),
    why_refused: Callable[[Appender], str] = lambda _log: "",
) -> dict[str, Any]:
    """Return what `rt status` shows of one node; taking this snapshot blocks no thread.

    Rates and counts are from the last sample. `why_refused` says why a copy accepts no
    more of its log.
    """
    engine, waiting = view.engine, view.waiting
    is_late = settings.storage.lose_confirmed_on_power_cut
    guard.measure()
    return {
        "node": settings.name,
        "stream": settings.stream,
        "cluster": settings.cluster_id,
        "members": [name for name, seat in engine.members.items() if seat.votes],
        "learners": [name for name, seat in engine.members.items() if not seat.votes],
        "addresses": {name: seat.address for name, seat in engine.members.items()},
        "role": engine.role.name.lower(),
        "term": engine.term,
        "leader": engine.leader,
        "committed": engine.commit,
        "executed": view.executed,
        "merged_end": str(view.end),
        "messages": view.number,
        "merge_time_ns": view.time_ns,
        "digest": view.digest.hex(),
        "durability": LATE if is_late else "synced by a majority before it is merged",
        "loses_confirmed_on_power_cut": is_late,
        **waiting_fields(waiting),
        "agreement_ms": _milliseconds(sorted(view.agreed_ns)),
        **_peers(peers, engine.members),
        "refusal": engine.refusal,
        "sealed": _sealed(view),
        "level": level_of(view.notes),
        "now_ns": time.time_ns(),
        "sessions": _sessions(inboxes, sample, waiting.stuck, opened, why_refused),
        "archived_to": str(view.archived_to),
        "policy": policy_of_notes(view.notes).text(),
        "disk_free": guard.available,
        "disk_reserve": guard.reserve,
        "takes_data": not guard.is_closed,
        **_sampled(sample),
    }


def _sealed(view: NodeView) -> dict[str, Any] | None:
    seal = seal_of(view.notes)
    return None if seal is None else asdict(seal)


def waiting_fields(waiting: Waiting) -> dict[str, Any]:
    """Return the reasons why the node does not merge, and counts of refused messages."""
    copy, missing = waiting.copy, waiting.missing
    return {
        "copying_to": None if copy is None else str(copy.position),
        "copying_waits_for": copy.waits_for if copy else "",
        "merging_paused": waiting.paused,
        "waiting_for": None if missing is None else {"session": missing[0], "end": str(missing[1])},
        "forked": _forked(waiting.fork),
        "older_copy": waiting.older_copy,
        "unconfirmed_by": waiting.confirmations,
        "unheard": dict(waiting.unheard),
        "unreadable_entries": waiting.unreadable,
    }


def for_clients(answer: bytes) -> bytes:
    """Return an encoded status for clients: without directories and peers' addresses.

    The nodes' addresses stay, since clients find the nodes by them.
    """
    fields = json.loads(answer)
    for name in ("clients", "left"):
        fields[name] = [{**each, "address": ""} for each in fields[name]]
    return without_directories(json.dumps(fields)).encode()


def without_directories(answer: str) -> str:
    """Return an answer with each path shortened to its file name, for clients.

    >>> without_directories('{"certificate": "/etc/rt/certs/n1.pem: expires in 9.0 days"}')
    '{"certificate": "n1.pem: expires in 9.0 days"}'
    """
    return _DIRECTORIES.sub("", answer)


def _peers(peers: Peers | None, members: Container[str]) -> dict[str, Any]:
    return {
        "unreachable": peers.problems(members) if peers else {},
        "peer_versions": {
            name: asdict(each) for name, each in (peers.versions() if peers else {}).items()
        },
        # sent to other nodes; it holds no messages of publishers
        "peer_bytes": peers.sent_bytes if peers else 0,
    }


def _forked(fork: FoundFork | None) -> dict[str, str | int] | None:
    if fork is None:
        return None
    since_ns = time.time_ns() - int((time.monotonic() - fork.since_s) * 1e9)
    return {"since_ns": since_ns, "position": str(fork.position), "reason": fork.reason}


def _sampled(sample: NodeSample) -> dict[str, Any]:
    """Return the counts and measurements of the last sample."""
    here = [each for each in sample.clients if each.ended_ns is None]
    return {
        "version": __version__,
        "speaks": {"wire": [VERSION_MIN, VERSION], "nodes": sorted(PEER_VERSIONS)},
        "started_ns": sample.began_ns,
        "flow": _flow(sample.flow),
        "stalled_s": {name: round(seconds, 1) for name, seconds in sample.stalled.items()},
        "stalls": stalls_of(sample),
        "clients": [_client(each, sample.view.end) for each in here],
        "left": [
            _client(each, sample.view.end) | {"left_ns": each.ended_ns}
            for each in sample.left()[:_LEFT_SHOWN]
        ],
    }


def _sessions(
    inboxes: Collection[NodeInbox],
    sample: NodeSample,
    stuck: Mapping[str, Stuck],
    opened: Mapping[str, Ownership],
    why_refused: Callable[[Appender], str],
) -> list[dict[str, Any]]:
    sampled = {each.session: each for each in sample.sessions}
    return [
        {
            "session": inbox.session,
            "pushed_by": inbox.peer,
            "owner": opened[inbox.session].owner if inbox.session in opened else "",
            "closed_ns": opened[inbox.session].closed_ns if inbox.session in opened else 0,
            "durable": str(inbox.safe),
            "merged": str(inbox.merged),
            "stuck": stuck[inbox.session].words if inbox.session in stuck else "",
            "poisoned": why_refused(inbox.appender),
            "apart": inbox.apart,
            "put_back": _restored(inbox),
            **_counted(sampled.get(inbox.session)),
        }
        for inbox in sorted(inboxes, key=lambda each: each.session)
    ]


def _restored(inbox: NodeInbox) -> list[str]:
    """Return the range restored from the journal; [] once the publisher has continued after it."""
    place = inbox.restored
    return [str(each) for each in place] if place and inbox.appender.end <= place[1] else []


def _counted(session: SessionView | None) -> dict[str, Any]:
    """Return the counts of a session since the node started."""
    if session is None:  # begun since the last sample
        return {"bytes": 0, "messages": 0, "bytes_per_s": 0, "last_ns": 0, "waiting_s": 0.0}
    return {
        "bytes": session.traffic.bytes,
        "messages": session.traffic.messages,
        "bytes_per_s": round(session.bytes_per_s),
        "last_ns": session.last_ns,
        "waiting_s": round(session.waiting_s, 1),
    }


def _client(client: ClientView, end: Position) -> dict[str, Any]:
    position = client.position
    return {
        "peer": client.peer,
        "kind": client.kind,
        "address": client.address,
        "since_ns": client.began_ns,
        "position": None if position is None else str(position),
        "lag_bytes": None if position is None else bytes_between(position, end),
        "waiting_s": round(client.waiting_s, 1),
        "bytes": client.sent,
        "software": client.software,
    }


def _flow(flow: Flow) -> dict[str, Any]:
    return {name: _hop(getattr(flow, name)) for name in ("received", "merged", "sent")}


def _hop(hop: Hop) -> dict[str, Any]:
    return asdict(hop.total) | {
        "bytes_per_s": round(hop.bytes_per_s), "messages_per_s": round(hop.messages_per_s)
    }  # fmt: skip


def _milliseconds(times_ns: list[int]) -> dict[str, float | int]:
    """Return count, mean and percentiles, in ms, of the times from proposal to commit."""
    if not times_ns:
        return {"count": 0}
    count = len(times_ns)
    figures = {
        "mean": sum(times_ns) / count,
        "p50": times_ns[count // 2],
        "p99": times_ns[count * 99 // 100],
    }
    return {"count": count} | {name: round(ns / 1e6, 3) for name, ns in figures.items()}
