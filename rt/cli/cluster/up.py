"""`rt up`: runs a whole cluster on this machine, and kills and starts its nodes on request."""

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import click

from rt.cli.cluster.cluster import show_client_commands
from rt.cli.cluster.found import found_streams
from rt.cli.cluster.up_add import add_node
from rt.cli.cluster.up_control import ControlRequest, ControlServer, ask_cluster
from rt.cli.common.console import note, say
from rt.cli.common.options import flag
from rt.cli.process.children import Child, Children
from rt.cli.process.stop_signals import StopSignals
from rt.config.settings import load
from rt.errors import Misuse, RtError
from rt.log.files.disk import make_private_directory
from rt.log.files.lock import take_lock
from rt.names import parse_node
from rt.node.founding import cluster_files
from rt.node.settings.http import HttpSettings
from rt.node.settings.node import NodeSettings
from rt.text import counted, printable
from rt.web.serving.server import demand_free, demand_installed

_CHECK_S: Final = 0.2
_SERVES: Final = r":(\d+)$"  # matches the first line of a node that is ready


@click.command()
@click.option(
    "--nodes", default=3, show_default=True, help="Size of the cluster: 1, 3, 5 or 7 nodes."
)
@click.option(
    "--root", default="rt-up", show_default=True,
    help="Directory of the cluster: settings, certificates and data.",
)  # fmt: skip
@click.option("--stream", default="stream", show_default=True, help="Stream to serve.")
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve the first node's metrics, health and page here; the others use the next ports.",
)
@click.option("--kill", "kill", metavar="NODE", help="Kill a node of the running cluster.")
@click.option("--start", "start", metavar="NODE", help="Start a node that has ended.")
@flag("--add", "add", help="Add a node to the running cluster, and wait until it votes.")
def up(
    nodes: int, root: str, stream: str, *, http: str | None, kill: str | None, start: str | None,
    add: bool,
) -> None:  # fmt: skip
    """Run a whole cluster on this machine until ctrl-C: for development.

    The first run creates the cluster in the directory; later runs use it. The command keeps running
    when a node ends. To try out a failover, kill and start nodes from another terminal; --kill
    sends SIGKILL, which ends a process as suddenly as a power cut. After an --add, give the new
    number of nodes as --nodes when you next start the cluster.

    \b
    rt up --nodes 3 --stream flights --http 127.0.0.1:9420
    rt up --nodes 1 --root /tmp/one
    rt up --kill n2
    rt up --start n2
    rt up --add
    """  # noqa: D301 - click reads the backspace character
    if add + (kill is not None) + (start is not None) > 1:
        raise click.UsageError("give one of --kill, --start and --add")
    if add:
        add_node(root)
        return
    if kill is not None or start is not None:
        verb = "kill" if kill is not None else "start"
        say(ask_cluster(root, ControlRequest(verb, kill or start or "")))
        return
    addresses = _page_addresses(http, nodes)
    make_private_directory(root)
    # held until the process ends
    take_lock(root, f"{root} has a running cluster; stop it, or name another --root")
    places = _places(root, stream, nodes)
    pages = {place.name: page for place, page in zip(places, addresses, strict=False)}
    with StopSignals() as signals, Children() as children, ControlServer(root) as control:
        running = LocalCluster(children, root, stream, places, pages)
        for name, page in pages.items():
            click.echo(f"the page of {name} is at http://{page}")
        click.echo(f"{counted(len(places), 'node')} up for stream {stream}; ctrl-C stops. Try:\n")
        show_client_commands(os.path.join(root, cluster_files.CLIENTS_NAME))
        while signals.wait(_CHECK_S):
            running.print_news()
            control.serve(running.obey)


def start_nodes(
    children: Children, root: str, stream: str, places: list[cluster_files.Place],
    pages: Mapping[str, str] = MappingProxyType({}),
) -> list[Child]:  # fmt: skip
    """Start a process for each node of a cluster on this machine; return when all of them serve.

    Args:
        children: Starts the processes, and stops them when it is closed.
        root: The cluster's directory.
        stream: The stream that the cluster serves.
        places: The cluster's nodes.
        pages: The address of each node's page, by node name; a node without one has no page.

    Raises:
        RtError: A node did not start; the message says why.
    """
    # if a majority has a state, a node without one was emptied: it must not be founded again
    there = sum(cluster_files.is_founded(root, place, stream) for place in places)
    is_new = len(places) > 1 and there <= len(places) // 2
    for place in places if is_new else ():
        if _is_founder(root, place) and not cluster_files.is_founded(root, place, stream):
            found_streams(load(NodeSettings, place.config, "node", environment={}))
    started = [_start(children, place, pages.get(place.name, "")) for place in places]
    for child in started:
        child.first_line(_SERVES)
    return started


class LocalCluster:
    """The nodes of `rt up`: reports those that end, and kills and starts nodes on request."""

    def __init__(
        self, children: Children, root: str, stream: str, places: list[cluster_files.Place],
        pages: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Start all nodes; takes the arguments and raises the errors of `start_nodes`."""
        self._children = children
        self._root, self._stream = root, stream
        self._places = {place.name: place for place in places}
        self._pages = pages
        started = start_nodes(children, root, stream, places, pages)
        self._running = dict(zip(self._places, started, strict=True))
        self._killed: set[str] = set()  # killed on request, and not started since

    def print_news(self) -> None:
        """Print the warnings of nodes, and the names of nodes that ended, since the last call.

        Raises:
            RtError: The last node has ended, and none of the ended nodes was killed on request.
        """
        for name, child in list(self._running.items()):
            if child.running:
                for line in child.news():
                    if not line.startswith("rt: "):  # a remark, as about its page, which we printed
                        click.echo(printable(f"{name}: {line}"), err=True)
            else:
                reason = f"{name} {child.ending()}"
                self._drop(name)
                if not self._running and not self._killed:
                    raise RtError(f"{reason}; no node is left")
                if cluster_files.is_removed(self._root, self._places[name], self._stream):
                    del self._places[name]
                    note(f"{name} was removed from the cluster, and has ended; {self._left()}")
                else:
                    note(f"{reason}; {self._left()}; start it again with {self._command(name)}")

    def obey(self, request: ControlRequest) -> str:
        """Carry out a request from another terminal; return the answer to print there.

        Raises:
            Misuse: There is no such node, or it already runs (for start) or has ended (for kill).
            RtError: The node did not start.
        """
        name = request.node
        if request.verb == "add":
            return self._add(name)
        if name not in self._places:
            raise Misuse(f"{self._root} has no node {name!r}; it has {', '.join(self._places)}")
        if request.verb == "kill":
            return self._kill(name)
        return self._start(name)

    def _add(self, name: str) -> str:
        """Start a node whose configuration file was written after the cluster was started.

        Returns:
            A line for the user. A node that is running already is left alone.
        """
        config = os.path.join(self._root, f"{parse_node(name)}.toml")
        settings = load(NodeSettings, config, "node", environment={})
        self._places[name] = cluster_files.Place(settings.name, settings.listen, config)
        return f"{name} is running" if name in self._running else self._start(name)

    def _kill(self, name: str) -> str:
        if name not in self._running:
            raise Misuse(f"{name} is not running; start it with {self._command(name)}")
        self._running[name].kill()
        self._killed.add(name)
        self._drop(name)
        outcome = f"{name} was killed; {self._left()}; start it again with {self._command(name)}"
        note(outcome)
        return outcome

    def _start(self, name: str) -> str:
        if name in self._running:
            raise Misuse(f"{name} is running already")
        place = self._places[name]
        child = _start(self._children, place, self._pages.get(name, ""))
        try:
            child.first_line(_SERVES)
        except RtError:
            self._children.drop(child)
            raise
        self._running[name] = child
        self._killed.discard(name)
        outcome = f"{name} was started; {self._left()}"
        note(outcome)
        return outcome

    def _drop(self, name: str) -> None:
        self._children.drop(self._running.pop(name))

    def _left(self) -> str:
        return f"{len(self._running)} of {counted(len(self._places), 'node')} running"

    def _command(self, name: str) -> str:
        return f"rt up --root {self._root} --start {name}"


def _start(children: Children, place: cluster_files.Place, page: str) -> Child:
    shown = ["--http", page] if page else []
    return children.start(place.name, "node", "--config", place.config, *shown)


def _is_founder(root: str, place: cluster_files.Place) -> bool:
    """Return whether a node is one of those that the cluster was created with."""
    first = load(NodeSettings, os.path.join(root, "n1.toml"), "node", environment={})
    return place.name in first.member_names


def _page_addresses(http: str | None, nodes: int) -> list[str]:
    """Return the nodes' page addresses: the first at `http`, the others at the ports after it.

    Checks that the addresses are free, before a cluster is created: a node ends if it cannot serve
    its page.
    """
    if http is None:
        return []
    demand_installed()
    host, port = HttpSettings(http).address
    if port + nodes - 1 > 65535 or not port:
        raise click.UsageError(f"--http {http}: {nodes} ports from {port} on are needed")
    name = f"[{host}]" if ":" in host else host
    addresses = [f"{name}:{port + place}" for place in range(nodes)]
    for each in addresses:
        demand_free(HttpSettings(each))
    return addresses


def _places(root: str, stream: str, nodes: int) -> list[cluster_files.Place]:
    """Return the nodes of the cluster in `root`, without those that were removed from it.

    Creates the cluster if there is none; `UsageError` if there is one of another size or stream.
    """
    configs = [name for name in os.listdir(root) if re.fullmatch(r"n\d+\.toml", name)]
    if not configs or cluster_files.is_half_made(root):
        return cluster_files.init_local_cluster(root, stream, nodes)
    paths = [os.path.join(root, name) for name in sorted(configs, key=lambda name: int(name[1:-5]))]
    there = [load(NodeSettings, path, "node", environment={}) for path in paths]
    served = there[0].stream
    every = [
        cluster_files.Place(each.name, each.listen, path)
        for each, path in zip(there, paths, strict=True)
    ]
    gone = [each.name for each in every if cluster_files.is_removed(root, each, served)]
    places = [each for each in every if each.name not in gone]
    if len(places) != nodes or served != stream:
        raise click.UsageError(
            f"{root} holds a cluster of {counted(len(places), 'node')} for stream {served!r}; ask "
            "for that, or name another --root"
        )
    if gone:
        note(f"removed from the cluster, and left out: {', '.join(gone)}")
    return places
