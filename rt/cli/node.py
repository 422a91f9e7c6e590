"""`rt node`: runs one node of a stream until a signal stops it."""

from typing import Final

import click

from rt.cli.descriptors import raise_descriptor_limit
from rt.cli.options import click_options
from rt.cli.stop_signals import StopSignals
from rt.node.node import Node
from rt.node.settings import NodeSettings

_POLL_S: Final = 0.5


@click.command()
@click_options(NodeSettings, "node")
@click.option("--found", is_flag=True, help="First start of a member of a new cluster; only then.")
def node(settings: NodeSettings, *, found: bool) -> None:
    """Serve a stream: accept pushes, merge them, and let subscribers pull.

    Stops cleanly on SIGTERM, SIGHUP and ctrl-C; everything acknowledged is kept.

    \b
    rt node --root /var/lib/rt --stream flights --name n1 --listen 0.0.0.0:7420
    rt node --config node.toml
    RT_LISTEN=127.0.0.1:0 rt node --stream flights
    """  # noqa: D301 - click reads the backspace character
    raise_descriptor_limit()
    with StopSignals() as signals:
        running = Node(settings, founding=found)
        running.start()
        host, port = running.address
        click.echo(f"node {settings.name} serves stream {settings.stream} at {host}:{port}")
        while signals.wait(_POLL_S) and not running.wait(0):
            pass
        running.stop()
    if running.failure is not None:
        raise running.failure
    click.echo(f"node {settings.name} stopped; the merged log ends at {running.merged_end}")
