"""The tables of `rt status`: nodes, a summary, connected clients, and sessions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from rt.amounts import duration_text, size_text
from rt.cli.common.console import table
from rt.cli.look.node_versions import different_versions, strangers
from rt.cli.look.status_report import ClientReport, ClusterReport, Health, MergeReport, NodeReport
from rt.cli.look.status_report import SessionReport as Session
from rt.node.observe.problems import role_text
from rt.text import listed

TOP_SHOWN: Final = 20  # sessions or clients shown with --top
# Columns that a narrow terminal omits, in this order.
_NODE_SPARE: Final = ("note", "digest", "term", "messages", "address")
_NODE_HEADINGS: Final = (
    "node", "address", "role", "term", "merged to", "messages", "behind", "digest", "note",
)  # fmt: skip
_SESSION_SPARE: Final = ("durable to", "merged to", "waits", "pushed by")
_SESSION_HEADINGS: Final = (
    "session", "pushed by", "bytes", "rate", "last seen", "unmerged", "waits", "durable to",
    "merged to",
)  # fmt: skip
_CLIENT_SPARE: Final = ("address", "connected")
_CLIENT_HEADINGS: Final = ("client", "does", "nodes", "lag", "waits", "connected", "address")


class Top(StrEnum):
    """The value by which sessions are sorted, greatest first; clients are sorted by lag."""

    RATE = "rate"
    LAG = "lag"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class _Client:
    """All connections of one client for one purpose."""

    view: ClientReport
    nodes: tuple[str, ...]


def status_text(report: ClusterReport, top: Top | None = None) -> str:
    """Return what `rt status` prints: tables of nodes, clients and sessions, and a summary.

    Args:
        report: The nodes' answers.
        top: Show only the 20 sessions greatest in this value, and the 20 clients that lag most;
            None shows all, by name.
    """
    nodes = report.answering
    lead = max((node.merge for node in nodes), key=lambda each: each.end, default=None)
    rows = [_node_row(node, lead) for node in report.nodes]
    parts = [table(_NODE_HEADINGS, rows, _NODE_SPARE)]
    if not nodes:
        return parts[0]
    parts.append(summary(report))
    sessions = _ordered(merged_sessions(nodes), top)
    clients = _sorted_clients(_joined(nodes, sessions), top)
    if clients:
        rows = [_client_row(each) for each in clients[: _shown(top)]]
        more = _more(len(clients), "client", top)
        parts.append(table(_CLIENT_HEADINGS, rows, _CLIENT_SPARE) + more)
    if sessions:
        rows = [_session_row(each) for each in sessions[: _shown(top)]]
        more = _more(len(sessions), "session", top)
        parts.append(table(_SESSION_HEADINGS, rows, _SESSION_SPARE) + more)
    return "\n\n".join(parts)


def summary(report: ClusterReport) -> str:
    """Return a line about the cluster, followed by lines about problems and other findings."""
    nodes, members = report.answering, report.members
    quorum = (
        f"yes ({report.leader} leads)"
        if report.leader
        else "NO: nothing is merged until a majority is back"
    )
    voting, late = report.voting, [node for node in nodes if node.about.is_late]
    durability = (late or nodes)[0].about.durability
    lines = [
        f"stream {nodes[0].stream}: {len(voting)} of {len(members)} nodes answer, quorum {quorum}; "
        f"{durability}{'; not highly available' if len(members) == 1 else ''}"
    ]
    if late:
        names = listed([node.name for node in late])
        lines.append(f"acknowledge before they sync (lose_confirmed_on_power_cut): {names}")
    if report.learners:
        lines.append(f"learners, which neither vote nor count: {', '.join(report.learners)}")
    if report.problems:
        label = "degraded" if report.health is Health.DEGRADED else "problems"
        lines.append(f"{label}: {'; '.join(each.text for each in report.problems)}")
    versions = {node.name: node.about.version for node in nodes}
    if different := different_versions(versions):
        apart = "; ".join(f"{one} and {other} cannot" for one, other in strangers(versions))
        lines.append(f"versions differ: {different} ({apart or 'they'} work together)")
    scrubs = [f"{node.name} {node.merge.scrub.text}" for node in nodes]
    lines.append(f"rolled files last checked: {', '.join(scrubs)}")
    lines += [f"not merged: {reason}" for reason in report.stuck]
    lines += [*report.poisoned, *report.returned]
    return "\n".join(lines)


def merged_sessions(nodes: Iterable[NodeReport]) -> list[Session]:
    """Return each session once, sorted by name, with its furthest progress and longest wait."""
    found: dict[str, Session] = {}
    for node in nodes:
        for each in node.sessions:
            known = found.get(each.name)
            found[each.name] = each if known is None else _combined(known, each)
    return [found[name] for name in sorted(found)]


def _combined(one: Session, other: Session) -> Session:
    seen = [each.seen_s for each in (one, other) if each.seen_s is not None]
    return replace(
        one, pushed_by=one.pushed_by or other.pushed_by, durable=max(one.durable, other.durable),
        merged=max(one.merged, other.merged), stuck=one.stuck or other.stuck,
        bytes=max(one.bytes, other.bytes), bytes_per_s=max(one.bytes_per_s, other.bytes_per_s),
        seen_s=min(seen, default=None), waiting_s=max(one.waiting_s, other.waiting_s),
    )  # fmt: skip


def _ordered(sessions: list[Session], top: Top | None) -> list[Session]:
    if top is None:
        return sessions
    return sorted(sessions, key=lambda each: _session_keys(each)[top], reverse=True)


def _session_keys(each: Session) -> dict[Top, tuple[float, ...]]:
    unmerged = float("inf") if each.unmerged is None else each.unmerged
    return {
        Top.RATE: (each.bytes_per_s, each.bytes),
        Top.LAG: (each.waiting_s, unmerged),
        Top.BYTES: (each.bytes,),
    }


def _joined(nodes: Sequence[NodeReport], sessions: Sequence[Session]) -> list[_Client]:
    """Return each client, once for each purpose (push, pull), with its worst lag and its nodes.

    A client that is no longer connected is listed at the node that it left last.
    """
    found: dict[tuple[str, str], list[tuple[str, ClientReport]]] = {}
    for node in nodes:
        for each in node.traffic.clients:
            found.setdefault((each.kind, each.peer), []).append((node.name, each))
    unmerged: dict[str, int] = {}
    waits: dict[str, float] = {}
    for session in sessions:
        name = session.pushed_by
        unmerged[name] = unmerged.get(name, 0) + (session.unmerged or 0)
        waits[name] = max(waits.get(name, 0.0), session.waiting_s)
    clients = []
    for (kind, peer), views in sorted(found.items(), reverse=True):
        here = [each for each in views if each[1].left_s is None]
        seen = here or [min(views, key=lambda each: each[1].left_s or 0.0)]
        worst = max((view for _, view in seen), key=lambda each: (each.waiting_s, each.lag_bytes))
        if kind == "push":  # only the pusher knows what it has not sent
            worst = replace(worst, lag_bytes=unmerged.get(peer, 0), waiting_s=waits.get(peer, 0.0))
        clients.append(_Client(worst, tuple(sorted({name for name, _ in seen}))))
    return clients


def _sorted_clients(clients: list[_Client], top: Top | None) -> list[_Client]:
    if top is None:
        return clients
    return sorted(
        clients, key=lambda each: (each.view.waiting_s, each.view.lag_bytes), reverse=True
    )


def _shown(top: Top | None) -> int | None:
    return None if top is None else TOP_SHOWN


def _more(count: int, noun: str, top: Top | None) -> str:
    if top is None or count <= TOP_SHOWN:
        return ""
    return f"\n{count - TOP_SHOWN:,} more {noun}s; without --top all are shown"


def _node_row(node: NodeReport, lead: MergeReport | None) -> list[str]:
    if node.error:
        return [node.name or "?", node.address, "down", *[""] * 5, node.error]
    role = role_text(node.role) if node.merge.forked_at is None else "FORKED"
    return [
        node.name, node.address, role, str(node.term), str(node.merge.end),
        f"{node.merge.messages:,}", _behind(node.merge, lead or node.merge),
        node.merge.digest[:8], "; ".join(each.text for each in node.problems),
    ]  # fmt: skip


def _behind(merge: MergeReport, lead: MergeReport) -> str:
    """Return by how many bytes and seconds a node's merging lags `lead`, the furthest node's."""
    parts = [size_text(lead.end - merge.end)] if merge.end.file == lead.end.file else []
    if merge.time_ns and lead.time_ns:  # 0 before the first instruction, not the year 1970
        parts.append(duration_text(max(0, lead.time_ns - merge.time_ns) / 1e9))
    return ", ".join(parts) or "everything"


def _session_row(each: Session) -> list[str]:
    unmerged = "more than a file" if each.unmerged is None else size_text(each.unmerged)
    return [
        each.name, each.pushed_by or "-", size_text(each.bytes), f"{size_text(each.bytes_per_s)}/s",
        "-" if each.seen_s is None else f"{duration_text(each.seen_s)} ago", unmerged,
        _waits(each.waiting_s), str(each.durable), str(each.merged),
    ]  # fmt: skip


def _client_row(each: _Client) -> list[str]:
    view = each.view
    lasted = duration_text(view.connected_s if view.left_s is None else view.left_s)
    return [
        view.peer, view.kind, " ".join(each.nodes) if view.left_s is None else "away",
        size_text(view.lag_bytes), _waits(view.waiting_s),
        lasted if view.left_s is None else f"left {lasted} ago",
        view.address,
    ]  # fmt: skip


def _waits(waiting_s: float) -> str:
    return duration_text(waiting_s) if waiting_s else "-"
