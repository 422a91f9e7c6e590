"""`rt cluster`, `rt up`, `rt status`: several nodes at once."""

import json
import os
import re
import shlex
from typing import Any, Final

import click

from rt.cli.children import Child, Children
from rt.cli.console import counted, table
from rt.cli.options import click_options
from rt.cli.run import LinkSettings
from rt.cli.stop_signals import StopSignals
from rt.config.settings import load
from rt.errors import RtError, spoken
from rt.log.lock import take_lock
from rt.node.cluster import (
    CLIENTS_NAME,
    Place,
    ask_status,
    free_addresses,
    init_cluster,
    is_founded,
)
from rt.node.settings import NodeSettings
from rt.position import Position

_CHECK_S: Final = 0.5
_REFRESH_S: Final = 1.0


@click.group()
def cluster() -> None:
    """Make the files of a new cluster.

    \b
    rt cluster init flights --stream flights --address a:7420 --address b:7420 --address c:7420
    """  # noqa: D301 - click reads the backspace character


@cluster.command()
@click.argument("directory", metavar="DIR")
@click.option("--stream", default="stream", show_default=True, help="Stream it serves.")
@click.option("--address", "addresses", multiple=True, help="host:port of a node; once for each.")
@click.option("--nodes", default=3, show_default=True, help="Nodes on this machine, if no address.")
def init(directory: str, stream: str, addresses: tuple[str, ...], nodes: int) -> None:
    """Write certificates and one configuration for each node into DIR.

    \b
    rt cluster init flights --stream flights --address a:7420 --address b:7420 --address c:7420
    rt cluster init one --stream flights --nodes 1
    """  # noqa: D301 - click reads the backspace character
    places = init_cluster(directory, stream, addresses or free_addresses(nodes))
    certs = os.path.join(directory, "certs")
    click.echo(f"{certs} holds the authority, whose ca.key stays here, and the certificates.")
    click.echo("Start each node on its machine, with --found the first time and never again:\n")
    for place in places:
        click.echo(f"  rt node --config {place.config} --found")
        click.echo(f"    needs ca.pem, {place.name}.pem and {place.name}.key of {certs}")
    clients = os.path.join(directory, CLIENTS_NAME)
    click.echo(f"\nThe paths in the .toml files are of this machine. Clients: {clients}\n")
    _show_clients(clients)


@click.command()
@click.option("--nodes", default=3, show_default=True, help="How many: 1, 3, 5 or 7.")
@click.option("--root", default="rt-up", show_default=True, help="Directory for all of it.")
@click.option("--stream", default="stream", show_default=True, help="Stream it serves.")
def up(nodes: int, root: str, stream: str) -> None:
    """Run a whole cluster on this machine until ctrl-C: for development.

    It is made in the directory at the first time, and found there again later.

    \b
    rt up --nodes 3 --stream flights
    rt up --nodes 1 --root /tmp/one
    """  # noqa: D301 - click reads the backspace character
    os.makedirs(root, exist_ok=True)
    take_lock(root, f"{root} has a running cluster; stop it, or name another --root")  # till we end
    places = _places(root, stream, nodes)
    with StopSignals() as signals, Children() as children:
        start_nodes(children, root, stream, places)
        click.echo(f"{counted(len(places), 'node')} up for stream {stream}; ctrl-C stops. Try:\n")
        _show_clients(os.path.join(root, CLIENTS_NAME))
        while signals.wait(_CHECK_S):
            children.check()


def _show_clients(config: str) -> None:
    click.echo(f"  export RT_CONFIG={shlex.quote(config)}")
    click.echo("  seq 1000 | rt publish --session one")
    click.echo("  rt push --drain")
    click.echo("  rt pull --once")
    click.echo("  rt subscribe --no-follow")
    click.echo("  rt status")


def start_nodes(children: Children, root: str, stream: str, places: list[Place]) -> list[Child]:
    """Start a process for each node of a cluster on this machine; return when all serve."""
    started = []
    for place in places:
        first = [] if len(places) == 1 or is_founded(root, place, stream) else ["--found"]
        started.append(children.start(place.name, "node", "--config", place.config, *first))
    for child in started:
        child.first_line(r":(\d+)$")
    return started


@click.command()
@click_options(LinkSettings, "status")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--watch", is_flag=True, help="Show it again every second, until ctrl-C.")
def status(settings: LinkSettings, *, as_json: bool, watch: bool) -> None:
    """Show how the nodes of a stream stand.

    \b
    rt status --nodes a:7420 --nodes b:7420 --nodes c:7420 --identity subscriber --watch
    rt status --config flights/clients.toml --json
    """  # noqa: D301 - click reads the backspace character
    with StopSignals() as signals:
        while True:
            answers = _ask_all(settings)
            if watch and not as_json:
                click.clear()
            click.echo(json.dumps(answers, indent=1) if as_json else _shown(answers))
            if not watch or not signals.wait(_REFRESH_S):
                break
    if not any("role" in answer for answer in answers):
        raise RtError("no node answers; are they running, and is this the right address?")


def _ask_all(settings: LinkSettings) -> list[dict[str, Any]]:
    contexts = settings.contexts()
    answers = []
    for node, address in zip(settings.nodes, settings.addresses(), strict=True):
        try:
            answers.append({"address": node, **ask_status(address, contexts)})
        except (OSError, RtError) as error:
            answers.append({"address": node, "error": spoken(error)})
    return answers


def _shown(answers: list[dict[str, Any]]) -> str:
    up_nodes = [answer for answer in answers if "role" in answer]
    names = ["node", "address", "role", "term", "merged to", "messages", "behind", "digest", "note"]
    lead = max((Position.parse(each["merged_end"]) for each in up_nodes), default=Position(0))
    newest = max((each["merge_time_ns"] for each in up_nodes), default=0)
    rows = [_row(answer, lead, newest) for answer in answers]
    parts = [table(names, rows)]
    if up_nodes:
        members = len(up_nodes[0]["members"])
        word = "yes" if len(up_nodes) > members // 2 else "NO: merging pauses"
        parts.append(
            f"stream {up_nodes[0]['stream']}: {len(up_nodes)} of {members} nodes answer, "
            f"quorum {word}; "
            f"{up_nodes[0]['durability']}{'; not highly available' if members == 1 else ''}"
        )
        sessions = max((each["sessions"] for each in up_nodes), key=len)
        if sessions:
            cells = [
                [s["session"], s["pushed_by"] or "-", s["durable"], s["merged"]] for s in sessions
            ]
            parts.append(table(["session", "pushed by", "durable to", "merged to"], cells))
    return "\n\n".join(parts)


def _row(answer: dict[str, Any], lead: Position, newest: int) -> list[str]:
    if "role" not in answer:
        return ["?", answer["address"], "down", *[""] * 5, answer["error"]]
    end = Position.parse(answer["merged_end"])
    seconds = max(0, newest - answer["merge_time_ns"]) / 1e9
    behind = f"{lead - end:,} B, {seconds:.1f} s" if end.file == lead.file else f"{seconds:.1f} s"
    return [
        answer["node"], answer["address"], answer["role"], str(answer["term"]),
        answer["merged_end"], f"{answer['messages']:,}", behind, answer["digest"][:8],
        _note(answer),
    ]  # fmt: skip


def _note(answer: dict[str, Any]) -> str:
    if answer["copying_to"]:
        waits = f"; waits for {why}" if (why := answer["copying_waits_for"]) else ""
        return f"copying the merged log, at {answer['copying_to']}{waits}"
    if answer["waiting_for"]:
        return f"waits for {answer['waiting_for']['session']}"
    if not answer["takes_data"]:
        return f"refuses new data: {answer['disk_free']:,} bytes of disk are left"
    if answer["refusal"]:
        return str(answer["refusal"])
    return "cannot reach " + ", ".join(answer["unreachable"]) if answer["unreachable"] else ""


def _places(root: str, stream: str, nodes: int) -> list[Place]:
    """The cluster in `root`, made if there is none."""
    configs = sorted(name for name in os.listdir(root) if re.fullmatch(r"n\d+\.toml", name))
    if not configs:
        return init_cluster(root, stream, free_addresses(nodes))
    paths = [os.path.join(root, config) for config in configs]
    there = [load(NodeSettings, path, "node", environment={}) for path in paths]
    if len(there) != nodes or there[0].stream != stream:
        raise click.UsageError(
            f"{root} holds a cluster of {counted(len(there), 'node')} for stream "
            f"{there[0].stream!r}; ask for that, or name another --root"
        )
    return [Place(each.name, each.listen, path) for each, path in zip(there, paths, strict=True)]
