"""`rt doctor`: finds what is wrong with a cluster or a machine, and says what to do."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import click

from rt.cli.common.asking import NodeAnswer, ask_nodes
from rt.cli.common.console import print_json, say
from rt.cli.common.exits import FOUND_WRONG
from rt.cli.common.link import link_options
from rt.cli.common.options import flag, json_option
from rt.cli.look.diagnosis import Diagnosis, Grade, fine, problem, warning
from rt.cli.look.doctor_cluster import cluster_findings
from rt.cli.look.doctor_machine import descriptors, node_findings, own_certificate
from rt.cli.look.status import report_of
from rt.client.readers.settings import ConnectionSettings
from rt.config.settings import load
from rt.errors import Misuse, spoken
from rt.node.settings.node import NodeSettings
from rt.text import counted


@click.command()
@link_options("status")
@click.option(
    "--node", "node_file", metavar="FILE",
    help="Check this machine too, for the node of FILE, and ask with that node's certificate.",
)  # fmt: skip
@flag("--quiet", help="Show problems and warnings only.")
@json_option("the findings")
@click.pass_context
def doctor(
    context: click.Context, *, settings: ConnectionSettings, node_file: str | None, quiet: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Look for what is wrong with a cluster, or with a node's machine, and say what to do.

    It compares clocks, certificates, ports, disks, versions and configurations, and changes
    nothing. The exit code is 1 if something is wrong. Use it when rt status or an alert shows
    trouble, and after installing; for a monitoring system there is rt check.

    \b
    rt doctor --config flights/clients.toml
    rt doctor --node /etc/rt/n1.toml             # on the machine of n1
    rt doctor --config flights/clients.toml --json
    """  # noqa: D301 - click reads the backspace character
    node = None if node_file is None else node_settings(node_file)
    found = diagnose(settings if node is None else as_node(settings, node), node)
    wrong = [each for each in found if each.grade is not Grade.OK]
    if as_json:
        print_json([asdict(each) for each in (wrong if quiet else found)])
    else:
        _show(wrong if quiet else found, len(wrong))
    context.exit(FOUND_WRONG if wrong else 0)


def diagnose(settings: ConnectionSettings, node: NodeSettings | None = None) -> list[Diagnosis]:
    """Return everything that the checks found, good and bad.

    Args:
        settings: How to reach the cluster.
        node: The settings of the node that this machine runs; None if it only has clients.
    """
    asked, found = _asked(settings)
    if node is None:
        found += own_certificate(settings.certs, settings.identity)
    else:
        found += node_findings(node, runs=_runs(asked, node))
        found += _compared(asked, node)
    found += descriptors()
    if asked:
        found += cluster_findings(asked, report_of(asked), settings)
    return found


def _asked(settings: ConnectionSettings) -> tuple[list[NodeAnswer], list[Diagnosis]]:
    """Return the nodes' answers, and a finding if they could not be asked.

    That happens if this program's certificate is unusable; a later check says what is wrong.
    """
    try:
        return ask_nodes(settings), []
    except (Misuse, OSError):
        said = "no node was asked, since our certificate cannot be used"
        return [], [problem("ports", said, "see certificates below")]


def node_settings(path: str) -> NodeSettings:
    """Load a node's settings from a file; `click.UsageError` if the file is unusable."""
    try:
        return load(NodeSettings, path, "node")
    except (Misuse, FileNotFoundError) as error:
        raise click.UsageError(spoken(error)) from error


def as_node(settings: ConnectionSettings, node: NodeSettings) -> ConnectionSettings:
    """Return settings that reach the cluster with the node's own certificate and addresses."""
    places = tuple(node.places.values()) or (node.listen,)
    return replace(
        settings, root=node.root, stream=node.stream, nodes=places, certs=node.certs,
        identity=node.name,
    )  # fmt: skip


def _runs(asked: Sequence[NodeAnswer], node: NodeSettings) -> bool:
    return any(each.answer.get("node") == node.name for each in asked)


def _compared(asked: Sequence[NodeAnswer], node: NodeSettings) -> Iterator[Diagnosis]:
    """Compare a node's file with the cluster's agreed configuration."""
    about = "configuration"
    for each in asked:
        if not each.answer:
            continue
        cluster, places = each.answer.get("cluster"), each.answer.get("addresses")
        if cluster != node.cluster_id:
            yield problem(about, f"{each.address} is of another cluster than the file",
                          "use the cluster_id that rt cluster init wrote")  # fmt: skip
            return
        if not isinstance(places, dict) or node.is_alone:
            continue
        place = places.get(node.name)
        if place is None:
            yield problem(about, f"{node.name} is not a member of the cluster",
                          f"rt cluster add {node.name} --address HOST:PORT")  # fmt: skip
        elif place and place != node.places[node.name]:
            yield problem(about, f"the others dial {node.name} at {place!r}, and the file says "
                          f"{node.places[node.name]}", "rt cluster move changes it")  # fmt: skip
        elif left := sorted(set(node.places) ^ set(map(str, places))):
            yield warning(about, f"file and cluster list different members: {', '.join(left)}",
                          "correct the file: the cluster keeps its own list")  # fmt: skip
        else:
            yield fine(about, f"the file and the cluster agree on {node.name}")
        return


def _show(found: Sequence[Diagnosis], wrong: int) -> None:
    for each in found:
        grade = "ok" if each.grade is Grade.OK else each.grade.upper()
        say(f"{grade:<8} {each.about:<14} {each.said}")
        if each.advice:
            say(f"{'':<8} {'to do':<14} {each.advice}")
    count = (
        "nothing is" if not wrong else counted(wrong, "thing") + (" is" if wrong == 1 else " are")
    )
    say("", f"{count} wrong")
