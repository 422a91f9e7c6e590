"""Status: how a node stands, in words and numbers that a script and an operator both read."""

import time
from collections.abc import Collection
from typing import Any, Final

from rt.node.catch_up import CatchUp
from rt.node.inbox import NodeInbox
from rt.node.settings import NodeSettings
from rt.position import Position
from sequencer.member import Member
from sequencer.peers import Peers

STATUS_ALPN: Final = "rt-status/1"
STATUS_S: Final = 10.0  # for all of an answer to be taken: 32 MiB of 100,000 sessions at 3 MiB/s


def node_status(
    member: Member,
    inboxes: Collection[NodeInbox],
    peers: Peers | None,
    settings: NodeSettings,
    catch_up: CatchUp | None,
    *,
    missing: tuple[str, Position] | None,
) -> dict[str, Any]:
    """Return what `rt status` shows of one node; read without locks, so a moment's view."""
    engine, ledger = member.engine.status(), member.executor.ledger
    return {
        "node": settings.name,
        "stream": settings.stream,
        "cluster": settings.cluster_id,
        "members": settings.member_names,
        "role": engine.role.name.lower(),
        "term": engine.term,
        "leader": engine.leader,
        "committed": engine.commit,
        "executed": ledger.index,
        "merged_end": str(ledger.end),
        "messages": ledger.number,
        "merge_time_ns": ledger.time_ns,
        "digest": ledger.digest.hex(),
        "durability": "synced by a majority before it is merged",
        "copying_to": None if catch_up is None else str(catch_up.position),
        "copying_waits_for": catch_up.waits_for if catch_up else "",
        "waiting_for": None if missing is None else {"session": missing[0], "end": str(missing[1])},
        "agreement_ms": _milliseconds(sorted(member.agreed_ns)),
        "unreachable": peers.problems() if peers else {},
        "peer_bytes": peers.sent_bytes
        if peers
        else 0,  # sent to other nodes; no message is in them
        "refusal": engine.refusal,
        "now_ns": time.time_ns(),
        "sessions": [
            {
                "session": inbox.session,
                "pushed_by": inbox.peer,
                "durable": str(inbox.durable),
                "merged": str(ledger.merged_to(inbox.session)),
            }
            for inbox in sorted(inboxes, key=lambda each: each.session)
        ],
    }


def _milliseconds(times_ns: list[int]) -> dict[str, float | int]:
    """How long the last instructions took from being proposed here to being committed."""
    if not times_ns:
        return {"count": 0}
    count = len(times_ns)
    figures = {
        "mean": sum(times_ns) / count,
        "p50": times_ns[count // 2],
        "p99": times_ns[count * 99 // 100],
    }
    return {"count": count} | {name: round(ns / 1e6, 3) for name, ns in figures.items()}
