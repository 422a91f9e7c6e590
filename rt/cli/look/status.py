"""`rt status`: the status of a stream's nodes, for people, scripts and probes."""

import sys
import time
from typing import Final

import click

from rt.cli.common.asking import NodeAnswer, ask_nodes
from rt.cli.common.console import complain, print_json
from rt.cli.common.link import link_options
from rt.cli.common.options import flag
from rt.cli.look.status_report import ClusterReport, NodeReport, cluster_report, node_report
from rt.cli.look.status_tables import Top, status_text
from rt.client.readers.settings import ConnectionSettings
from rt.errors import PeerError, spoken
from rt.text import printable

_REFRESH_S: Final = 1.0


@click.command()
@link_options("status", json="what each node answers")
@click.option(
    "--top", type=click.Choice([each.value for each in Top]),
    help="Show only the 20 sessions with the most of this, and the 20 clients with the most lag.",
)  # fmt: skip
@flag("--watch", help="Refresh every second until ctrl-C.")
@click.pass_context
def status(
    context: click.Context, *, settings: ConnectionSettings, as_json: bool, top: str | None,
    watch: bool,
) -> None:  # fmt: skip
    """Show a stream's nodes, sessions and readers, as they are now.

    It is for people. rt doctor looks deeper and says what to do. rt check is for monitoring
    systems: it prints one line, and has the exit codes of monitoring plugins.

    \b
    rt status --nodes a:7420 --nodes b:7420 --nodes c:7420 --identity subscriber
    rt status --config flights/clients.toml --top lag --watch
    rt status --config flights/clients.toml --json
    rt status --config flights/clients.toml > /dev/null || page-the-operator

    A session's bytes, rate and age are those of the node that received most. The lag of a pushing
    client is the bytes of its sessions that the nodes have received and not merged.

    \b
    For probes, the exit code is the cluster's health (after --watch it is 0):
      0  healthy
      1  degraded: it works, but a node is down, unreachable, copying, forked, or out of disk
      3  no quorum: nothing is merged until a majority of the nodes is back
    """  # noqa: D301 - click reads the backspace character
    try:
        while True:
            asked = ask_nodes(settings)
            report = report_of(asked)
            if as_json:
                print_json([_answer(each) for each in asked])
            else:
                _show(status_text(report, None if top is None else Top(top)), again=watch)
            if not watch:
                break
            time.sleep(_REFRESH_S)
    except KeyboardInterrupt:  # ctrl-C is how a watch ends, at any point
        if not watch:
            raise
        return
    if not report.answering:
        refused = any(each.is_refusal for each in asked)
        advice = "what each says is shown above" if refused else (
            "are they running, and are the addresses right?"
        )  # fmt: skip
        complain(f"no node answers; {advice}")
    context.exit(report.health)


def report_of(asked: list[NodeAnswer]) -> ClusterReport:
    """Check nodes' answers, and return them as a report; an unreadable answer becomes an error."""
    reports, names = [], _names(asked)
    for each in asked:
        error = each.error
        if not error:
            try:
                reports.append(node_report(each.address, each.answer))
                continue
            except PeerError as unreadable:
                error = spoken(unreadable)
        reports.append(NodeReport(each.address, printable(error), names.get(each.address, "")))
    return cluster_report(reports)


def _names(asked: list[NodeAnswer]) -> dict[str, str]:
    """Return the names of all members by address, as listed in the nodes' answers."""
    answers = [each.answer for each in asked if isinstance(each.answer, dict)]
    return {
        place: printable(str(name))
        for found in (each.get("addresses") for each in answers)
        if isinstance(found, dict)
        for name, place in found.items()
        if isinstance(place, str)
    }


def _answer(asked: NodeAnswer) -> dict[str, object]:
    error = {"error": asked.error} if asked.error else {}
    return {"address": asked.address, **asked.answer, **error}


def _show(text: str, *, again: bool) -> None:
    """Print an escaped report; with `again`, print it over the previous one on a terminal."""
    if again and sys.stdout.isatty():
        # overwrite from the top, clearing the rest of each line: clearing first would flicker
        text = "\x1b[H" + "\x1b[K\n".join(text.split("\n")) + "\x1b[K\n\x1b[J"
        click.echo(text, nl=False)
        return
    click.echo(text + ("\n" if again else ""))
