"""The overview of a node's cluster, as shown on the page, in one object."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from replicator.serve.client_record import PULLS, PUSHES, ClientView
from rt.node.observe.problems import disk_state, problems_of, role_text
from rt.node.observe.sample import Hop, NodeSample, SessionView, bytes_between
from rt.node.observe.stall_clock import MERGE
from rt.node.observe.stall_reasons import stalls_of
from rt.node.observe.status import waiting_fields
from rt.node.settings.node import NodeSettings
from rt.position import Position
from rt.text import printable
from rt.version import __version__
from rt.web.nodes.peer_poller import AFTER, BEFORE
from rt.web.nodes.verdict import FORKED, NodeRow, verdict_of
from rt.web.serving.site import Fields

SESSIONS_MAX: Final = 50  # sessions on the page without a search
_CLIENTS_MAX: Final = 200
_WAITS_S: Final = 2.0  # a session that waits longer deserves attention
_TEXT_MAX: Final = 300
_NUMBER_MAX: Final = 1 << 63


def overview(
    sample: NodeSample, settings: NodeSettings, answers: Mapping[str, Any], warning: str
) -> Fields:
    """Return what a node's page shows of the cluster.

    Args:
        sample: the sample of this node.
        settings: the settings of this node.
        answers: latest status answers of the other nodes, by name.
        warning: the warning about this node's certificate; "" if there is none.
    """
    nodes = _nodes(sample, settings, answers, warning)
    level, words = _verdict(sample, nodes)
    sessions = troubled_first(sample.sessions)
    return {
        "kind": "node",
        "name": settings.name,
        "stream": settings.stream,
        "version": __version__,
        "at_ns": sample.at_ns,
        "began_ns": sample.began_ns,
        "verdict": {"level": level, "text": words},
        "leader": sample.view.engine.leader,
        "term": sample.view.engine.term,
        "nodes": nodes,
        "flow": _flow(sample),
        "sessions": {
            "total": len(sessions),
            "troubled": sum(each.waiting_s > _WAITS_S for each in sessions),
            "rows": [session_row(each) for each in sessions[:SESSIONS_MAX]],
        },
        "clients": _clients(sample, settings, answers),
        "merged_end": str(sample.view.end),
    }


def own_verdict(sample: NodeSample, settings: NodeSettings) -> tuple[str, str]:
    """Return a level and a sentence about how a stream works, from what this node knows."""
    return _verdict(sample, _nodes(sample, settings, {}, ""))


def _nodes(
    sample: NodeSample, settings: NodeSettings, answers: Mapping[str, Any], warning: str
) -> list[Fields]:
    return [
        _own(sample, settings, warning, answers) if name == settings.name
        else _other(name, answers.get(name), sample)
        for name in sample.members
    ]  # fmt: skip


def _verdict(sample: NodeSample, nodes: Sequence[Fields]) -> tuple[str, str]:
    leader, stalls = sample.view.engine.leader, stalls_of(sample)
    here = next((each for each in nodes if each["is_here"]), None)
    if here is not None and here["trouble"] and leader not in {"", here["name"]}:
        stalls.pop(MERGE, None)  # it is behind for that reason, while the others merge
    return verdict_of(leader, [_row(each) for each in nodes], list(stalls.values()))


def troubled_first(sessions: Iterable[SessionView]) -> list[SessionView]:
    """Return sessions in order of urgency: waiting, then moving, then idle."""
    return sorted(sessions, key=trouble)


def trouble(session: SessionView) -> tuple[float, int, int, str]:
    """Return the sort key of a session: how urgently it needs attention.

    Rates are compared by order of magnitude only, since rows that change places each second are
    hard to read.
    """
    waiting_s = session.waiting_s if session.waiting_s > _WAITS_S else 0.0
    magnitude = len(str(round(session.bytes_per_s))) if session.bytes_per_s >= 1 else 0
    return -waiting_s, -magnitude, 0 if magnitude else -session.last_ns, session.session


def session_row(session: SessionView) -> Fields:
    """Return a session as shown on the page."""
    return {
        "session": session.session, "pushed_by": session.pushed_by, "state": _state(session),
        "received": str(session.received), "durable": str(session.durable),
        "merged": str(session.merged), "bytes": session.traffic.bytes,
        "messages": session.traffic.messages, "bytes_per_s": round(session.bytes_per_s),
        "lag_bytes": session.unmerged, "waiting_s": round(session.waiting_s, 1),
        "last_ns": session.last_ns, "connected_ns": session.connected_ns,
    }  # fmt: skip


def _state(session: SessionView) -> str:
    if session.waiting_s > _WAITS_S:
        return "waits"
    if session.bytes_per_s >= 1:
        return "moving"
    return "idle" if session.pushed_by else "away"


def _own(
    sample: NodeSample, settings: NodeSettings, warning: str, answers: Mapping[str, Any]
) -> Fields:
    view = sample.view
    role = FORKED if view.waiting.fork is not None else role_text(view.engine.role.name.lower())
    known = {
        **waiting_fields(view.waiting), "role": role, "certificate": warning,
        "takes_data": sample.disk.takes_data, "disk_free": sample.disk.available,
        "disk_reserve": sample.disk.reserve,
    }  # fmt: skip
    behind = max((-_behind(each, AFTER) for each in answers.values()), default=0)
    return {
        "behind": max(0, behind), "name": settings.name,
        "is_here": True, "is_away": False, "is_known": True,
        "role": role, "address": settings.listen,
        "merged_end": str(view.end), "messages": view.number,
        "disk_free": sample.disk.available, "disk_state": _disk_state(known),
        "version": __version__, "trouble": _trouble(known),
        "is_late": settings.storage.lose_confirmed_on_power_cut,
        "pushing": len(sample.here(PUSHES)), "pulling": len(sample.here(PULLS)),
    }  # fmt: skip


def _other(name: str, answer: Any, sample: NodeSample) -> Fields:
    """Return another node's row, from its own answer or from what this node sees of it."""
    away = sample.unreachable.get(name, "")
    is_leader = name == sample.view.engine.leader
    known = answer if isinstance(answer, dict) else {}
    if error := _text(known, "error"):
        away = away or error
        known = {}
    clients = [each for each in _list(known, "clients") if isinstance(each, dict)]
    return {
        "behind": max(0, _behind(known, BEFORE)) if known else None,
        "name": name, "is_here": False, "is_away": bool(away), "is_known": bool(known),
        "role": _role(known) or ("leader" if is_leader and not away else ""),
        "address": "", "merged_end": _text(known, "merged_end"),
        "messages": _number(known, "messages"), "disk_free": _number(known, "disk_free"),
        "disk_state": _disk_state(known),
        "version": _text(known, "version"), "trouble": printable(away) or _trouble(known),
        "is_late": known.get("loses_confirmed_on_power_cut") is True,
        "pushing": sum(each.get("kind") == PUSHES for each in clients),
        "pulling": sum(each.get("kind") == PULLS for each in clients),
    }  # fmt: skip


def _behind(answer: Mapping[str, Any], when: str) -> int:
    """Return how many of this node's merged messages another node lacked; 0 if unknown.

    `when` names the field of `answer` that holds this node's own count of messages, as of before or
    after the other node's answer came.
    """
    theirs = _number(answer, "messages")
    return 0 if theirs is None else (_number(answer, when) or 0) - theirs


def _role(known: Mapping[str, Any]) -> str:
    return FORKED if isinstance(known.get("forked"), dict) else role_text(_text(known, "role"))


def _disk_state(known: Mapping[str, Any]) -> str:
    try:
        return disk_state(dict(known))
    except (TypeError, ValueError):
        return ""  # the trouble that is shown says that the status cannot be read


def _trouble(known: Mapping[str, Any]) -> str:
    """Return the first problem of a node, which causes the others; "" if the node has none."""
    try:
        return next((each.said for each in problems_of(dict(known))), "")
    except (TypeError, ValueError) as error:
        return f"answers with a status that cannot be read: {printable(str(error))}"


def _row(node: Mapping[str, Any]) -> NodeRow:
    return NodeRow(node["name"], node["role"], node["trouble"], node["is_away"])


def _flow(sample: NodeSample) -> Fields:
    flow = sample.flow
    hops = {name: _hop(getattr(flow, name)) for name in ("received", "merged", "sent")}
    return {**hops, "unmerged": sample.unmerged, "waiting_s": round(sample.waiting_s, 1)}


def _hop(hop: Hop) -> Fields:
    return {
        "bytes_per_s": round(hop.bytes_per_s), "messages_per_s": round(hop.messages_per_s),
        "bytes": hop.total.bytes, "messages": hop.total.messages,
    }  # fmt: skip


def _clients(
    sample: NodeSample, settings: NodeSettings, answers: Mapping[str, Any]
) -> list[Fields]:
    """Return the clients, other than nodes, that pull from this node or from other nodes."""
    rows = [_client(each, settings.name, sample.view.end) for each in sample.here(PULLS)]
    for name, answer in answers.items():
        theirs = _list(answer, "clients") if isinstance(answer, dict) else []
        rows += [_answered(each, name) for each in theirs if isinstance(each, dict)]
    rows = [each for each in rows if each["kind"] == PULLS and each["peer"] not in sample.members]
    rows += _away(sample, settings.name, {each["peer"] for each in rows})
    return rows[:_CLIENTS_MAX]


def _away(sample: NodeSample, node: str, here: Collection[str]) -> list[Fields]:
    """Return pullers that have left this node and pull from no other, newest first."""
    return [
        _client(each, node, sample.view.end)
        | {"is_away": True, "since_ns": each.ended_ns, "waiting_s": 0.0}
        for each in sample.left()
        if each.peer not in here
    ]


def _answered(client: Mapping[str, Any], node: str) -> Fields:
    """Return a client of another node, from that node's answer."""
    return {
        "peer": _text(client, "peer"), "kind": _text(client, "kind"), "node": node,
        "address": _text(client, "address"), "position": _text(client, "position"),
        "lag_bytes": _number(client, "lag_bytes") or 0, "waiting_s": _seconds(client, "waiting_s"),
        "bytes": _number(client, "bytes") or 0, "since_ns": _number(client, "since_ns") or 0,
        "is_away": False,
    }  # fmt: skip


def _client(client: ClientView, node: str, end: Position) -> Fields:
    position = client.position or Position(0)
    return {
        "peer": client.peer, "kind": client.kind, "node": node, "address": client.address,
        "position": str(position), "lag_bytes": bytes_between(position, end),
        "waiting_s": round(client.waiting_s, 1), "bytes": client.sent, "since_ns": client.began_ns,
        "is_away": False,
    }  # fmt: skip


def _text(fields: Mapping[str, Any], name: str) -> str:
    """Return a text field of a peer's answer, made safe to show; "" if it is not text."""
    value = fields.get(name)
    return printable(value)[:_TEXT_MAX] if isinstance(value, str) else ""


def _number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    is_number = type(value) is int and 0 <= value < _NUMBER_MAX
    return value if is_number else None


def _seconds(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    return value if isinstance(value, float) and 0 <= value < _NUMBER_MAX else 0.0


def _list(fields: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = fields.get(name)
    return value if isinstance(value, list) else []
