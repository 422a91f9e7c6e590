"""`rt status`: the status of a stream's nodes, for people, scripts and probes."""

from typing import Any, Final

import click

from rt.cli.console import complain, print_json, table
from rt.cli.options import click_options, json_option
from rt.cli.status_report import (
    ClusterReport,
    Health,
    MergeReport,
    NodeReport,
    cluster_report,
    node_report,
)
from rt.cli.stop_signals import StopSignals
from rt.client.settings import ConnectionSettings
from rt.errors import RtError, spoken
from rt.node.cluster import ask_status
from rt.text import printable

_REFRESH_S: Final = 1.0
_HEADINGS: Final = (
    "node", "address", "role", "term", "merged to", "messages", "behind", "digest", "note",
)  # fmt: skip
_SESSION_HEADINGS: Final = ("session", "pushed by", "durable to", "merged to", "unmerged")


@click.command()
@click_options(ConnectionSettings, "status")
@json_option("what each node answers")
@click.option("--watch", is_flag=True, help="Show it again every second, until ctrl-C.")
@click.pass_context
def status(
    context: click.Context, *, settings: ConnectionSettings, as_json: bool, watch: bool
) -> None:
    """Show the status of a stream's nodes.

    \b
    rt status --nodes a:7420 --nodes b:7420 --nodes c:7420 --identity subscriber --watch
    rt status --config flights/clients.toml --json
    rt status --config flights/clients.toml > /dev/null || page-the-operator

    \b
    For probes, the exit code is the cluster's health (after --watch it is 0):
      0  healthy
      1  degraded: it works, but a node is down, unreachable, copying, forked, or out of disk
      3  no quorum: nothing is merged until a majority of the nodes is back
    """  # noqa: D301 - click reads the backspace character
    with StopSignals() as signals:
        while True:
            answers, report = _ask_all(settings)
            if watch and not as_json:
                click.clear()
            if as_json:
                print_json(answers)
            else:
                click.echo(_text(report))  # the answers were escaped as they were read
            if not watch or not signals.wait(_REFRESH_S):
                break
    if not report.answering:
        complain("no node answers; are they running, and are the addresses right?")
    if not watch:
        context.exit(report.health)


def _ask_all(settings: ConnectionSettings) -> tuple[list[dict[str, Any]], ClusterReport]:
    """Ask each node once; return the answers as they are, and as a report."""
    contexts = settings.contexts()
    answers, reports = [], []
    for host, port in settings.addresses():
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            answer = ask_status((host, port), contexts)
            reports.append(node_report(address, answer))
            answers.append({"address": address, **answer})
        except (OSError, RtError) as error:
            reports.append(NodeReport(address, printable(spoken(error))))
            answers.append({"address": address, "error": spoken(error)})
    return answers, cluster_report(reports)


def _text(report: ClusterReport) -> str:
    nodes = report.answering
    lead = max((node.merge for node in nodes), key=lambda each: each.end, default=None)
    parts = [table(_HEADINGS, [_row(node, lead) for node in report.nodes])]
    if not nodes:
        return parts[0]
    parts.append(_summary(report))
    sessions = max((node.sessions for node in nodes), key=len)
    if sessions:
        rows = [
            [
                each.name, each.pushed_by or "-", str(each.durable), str(each.merged),
                "-" if each.unmerged is None else f"{each.unmerged:,} B",
            ]
            for each in sessions
        ]  # fmt: skip
        parts.append(table(_SESSION_HEADINGS, rows))
    return "\n\n".join(parts)


def _summary(report: ClusterReport) -> str:
    """Return the line for a person in a hurry, and one for each problem."""
    nodes, members = report.answering, report.members
    quorum = (
        f"yes ({report.leader} leads)"
        if report.leader
        else "NO: nothing is merged until a majority is back"
    )
    learners = [node.name for node in nodes if node.is_learner]
    voting = [node for node in nodes if node.name in members]
    lines = [
        f"stream {nodes[0].stream}: {len(voting)} of {len(members)} nodes answer, quorum {quorum}; "
        f"{nodes[0].durability}{'; not highly available' if len(members) == 1 else ''}"
    ]
    if learners:
        lines.append(f"learners, which neither vote nor count: {', '.join(learners)}")
    if report.problems:
        label = "degraded" if report.health is Health.DEGRADED else "problems"
        lines.append(f"{label}: {'; '.join(report.problems)}")
    lines += [f"not merged: {reason}" for reason in report.stuck]
    return "\n".join(lines)


def _row(node: NodeReport, lead: MergeReport | None) -> list[str]:
    if node.error:
        return ["?", node.address, "down", *[""] * 5, node.error]
    return [
        node.name, node.address, node.role, str(node.term), str(node.merge.end),
        f"{node.merge.messages:,}", _behind(node.merge, lead or node.merge),
        node.merge.digest[:8], "; ".join(node.problems),
    ]  # fmt: skip


def _behind(merge: MergeReport, lead: MergeReport) -> str:
    """Return how far a node lags the one that has merged most."""
    parts = [f"{lead.end - merge.end:,} B"] if merge.end.file == lead.end.file else []
    if merge.time_ns and lead.time_ns:  # 0 before the first instruction, not the year 1970
        parts.append(f"{max(0, lead.time_ns - merge.time_ns) / 1e9:.1f} s")
    return ", ".join(parts) or "everything"
