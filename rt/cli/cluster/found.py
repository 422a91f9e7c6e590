"""`rt node found`: creates the state of a new cluster's member, so that a service can start it."""

from contextlib import closing

import click

from rt.cli.common.options import click_options
from rt.node.host.state import found_state
from rt.node.resources.node_directory import NodeDirectory
from rt.node.settings.node import NodeSettings


@click.command("found")
@click_options(
    NodeSettings,
    "node",
    ("root", "stream", "name", "certs", "members", "cluster_id", "founded_from"),
)
def found_node(settings: NodeSettings) -> None:
    """Found a member of a new cluster, without starting it.

    Run it once for each node of a new cluster, and never again: a node that lost its directory and
    is founded again could undo what the other nodes have agreed on. Refused if the directory is not
    empty. A cluster of one node does not need the command: its node founds itself on first start.

    The command also takes the other options of rt node.

    \b
    rt node found --config /etc/rt/n1.toml
    systemctl start rt-node-n1
    """  # noqa: D301 - click reads the backspace character
    for directory in found_streams(settings):
        click.echo(f"node {settings.name} of a new cluster is founded in {directory}")


def found_streams(settings: NodeSettings) -> list[str]:
    """Create the state of each stream that a node serves; return the streams' directories."""
    return [found_stream(each) for each in settings.each_stream]


def found_stream(settings: NodeSettings) -> str:
    """Create a stream's state on a node; return the stream's directory.

    Raises:
        Misuse: The state exists already, or a node is running there.
    """
    with closing(NodeDirectory(settings)) as directory:
        found_state(directory.disk, settings, directory.path)
        return directory.path
