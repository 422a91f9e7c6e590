"""`rt node`, `rt push`, `rt pull`: the processes that run until they are told to stop."""

import logging
import signal
import threading
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

import click

from replicator.pull import PullClient
from replicator.push import PushClient
from rt.certificates import certificate_files
from rt.errors import RtError
from rt.names import parse_peer, parse_stream
from rt.node import Node
from rt.node_settings import PORT, NodeSettings, parse_address
from rt.options import click_options
from rt.tls import Contexts, client_context

_DRAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What a pusher or a puller is told."""

    root: str = field(default="rt-data", metadata={"help": "Directory that holds the stream."})
    stream: str = field(default="stream", metadata={"help": "Name of the stream."})
    nodes: tuple[str, ...] = field(
        default=(f"localhost:{PORT}",), metadata={"help": "Address of a node; once for each."}
    )
    certs: str = field(
        default="certs", metadata={"help": "Directory of ca.pem, NAME.pem and NAME.key."}
    )
    identity: str = field(default="client", metadata={"help": "NAME of the certificate to show."})

    def __post_init__(self) -> None:
        parse_stream(self.stream)
        parse_peer(self.identity)
        for node in self.nodes:
            parse_address(node)

    def contexts(self) -> Contexts:
        """The TLS context, made anew when the certificate is renewed."""
        return Contexts(certificate_files(self.certs, self.identity), client_context)

    def addresses(self) -> list[tuple[str, int]]:
        """The nodes."""
        return [parse_address(node) for node in self.nodes]


@click.command()
@click_options(NodeSettings, "node")
@click.option("--found", is_flag=True, help="First start of a member of a new cluster; only then.")
def node(settings: NodeSettings, *, found: bool) -> None:
    """Serve a stream: take pushes, merge them, let subscribers pull.

    Ends cleanly on SIGTERM or ctrl-C: everything acknowledged is kept.

    \b
    rt node --root /var/lib/rt --stream flights --name n1 --listen 0.0.0.0:7420
    rt node --config node.toml
    RT_LISTEN=127.0.0.1:0 rt node --stream flights
    """  # noqa: D301 - click reads the backspace character
    stop = until_signalled()
    running = Node(settings, founding=found)
    running.start()
    host, port = running.address
    click.echo(f"node {settings.name} serves stream {settings.stream} at {host}:{port}")
    while not stop.wait(0.5) and not running.wait(0):
        pass
    running.stop()
    if running.failure is not None:
        raise running.failure
    click.echo(f"node {settings.name} stopped; the merged log ends at {running.merged_end}")


@click.command()
@click_options(LinkSettings, "push")
@click.option("--session", "sessions", multiple=True, default=("*",), help="Name or glob to ship.")
@click.option("--drain", is_flag=True, help="End when the nodes have synced all that is there.")
def push(settings: LinkSettings, sessions: tuple[str, ...], *, drain: bool) -> None:
    """Ship sessions to the nodes of a stream, and go on as they grow.

    \b
    rt push --root data --stream flights --nodes n1:7420 --nodes n2:7420 --identity jfk
    rt push --root data --stream flights --session 'eu-*' --drain
    """  # noqa: D301 - click reads the backspace character
    stop = until_signalled()
    client = PushClient(
        settings.root, settings.stream, settings.addresses(), settings.contexts(), sessions
    )
    client.start()
    while not stop.wait(0.05 if drain else 0.5) and not (drain and client.drained()):
        pass
    drained = client.stop(_DRAIN_S)
    if not drained:
        reasons = {each.error for each in client.status() if each.error}
        raise RtError(
            "not everything was synced by a majority of the nodes; what is left stays in the log "
            f"and is shipped by the next push ({'; '.join(sorted(reasons)) or 'time ran out'})"
        )
    click.echo("everything that was published is synced by a majority of the nodes")


@click.command()
@click_options(LinkSettings, "pull")
@click.option("--once", is_flag=True, help="End when the copy has all that the node has.")
def pull(settings: LinkSettings, *, once: bool) -> None:
    """Keep a copy of a stream's merged log, from any of its nodes.

    \b
    rt pull --root copy --stream flights --nodes n1:7420 --identity spark
    rt pull --root copy --stream flights --once
    """  # noqa: D301 - click reads the backspace character
    stop = until_signalled()
    client = PullClient(settings.root, settings.stream, settings.addresses(), settings.contexts())
    client.start()
    while not stop.wait(0.05 if once else 0.5) and not (once and client.wait_caught_up(0)):
        pass
    client.stop()
    click.echo(f"the copy ends at {client.status().position}")


def until_signalled() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = threading.Event()

    def note(number: int, _frame: FrameType | None) -> None:
        logging.getLogger("rt").info("stopping on signal %d", number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    return stop
