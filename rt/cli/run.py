"""`rt node`, `rt push`, `rt pull`: the processes that run until they are told to stop."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import click

from archiver.keep import parse_keep
from replicator.progress import Release
from replicator.pull import PullClient
from replicator.push import PushClient
from rt.cli.descriptors import allow_all
from rt.cli.options import Seconds, click_options
from rt.cli.stop_signals import StopSignals
from rt.errors import Misuse, RtError
from rt.names import parse_peer, parse_stream
from rt.net.certificates import certificate_files, check_own
from rt.net.identity import CertificateRole
from rt.net.tls import Contexts, client_context
from rt.node.node import Node
from rt.node.settings import PORT, NodeSettings, parse_address

_DRAIN_S: Final = 5.0  # a push that is told to stop ships for so long what is there
_POLL_S: Final = 0.5
_POLL_END_S: Final = 0.05  # where a command ends by itself


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
            parse_address(node, "nodes")

    def contexts(self, *roles: CertificateRole) -> Contexts:
        """The TLS context, made anew when the certificate is renewed.

        Args:
            roles: what our certificate must say we are.
        """
        files = certificate_files(self.certs, self.identity)
        contexts = Contexts(files, client_context)
        check_own(files, roles or tuple(CertificateRole))
        return contexts

    def addresses(self) -> list[tuple[str, int]]:
        """The nodes."""
        return [parse_address(node) for node in self.nodes]


def _timeout_option(goes_with: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--timeout", "timeout_s", type=Seconds(), metavar="S",
        help=f"With {goes_with}: give up after so many seconds, with exit code 1.",
    )  # fmt: skip


@click.command()
@click_options(NodeSettings, "node")
@click.option("--found", is_flag=True, help="First start of a member of a new cluster; only then.")
def node(settings: NodeSettings, *, found: bool) -> None:
    """Serve a stream: take pushes, merge them, let subscribers pull.

    Ends cleanly on SIGTERM, SIGHUP or ctrl-C: everything acknowledged is kept.

    \b
    rt node --root /var/lib/rt --stream flights --name n1 --listen 0.0.0.0:7420
    rt node --config node.toml
    RT_LISTEN=127.0.0.1:0 rt node --stream flights
    """  # noqa: D301 - click reads the backspace character
    allow_all()
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


@click.command()
@click_options(LinkSettings, "push")
@click.option("--session", "sessions", multiple=True, default=("*",), help="Name or glob to ship.")
@click.option(
    "--archive", "release", type=click.Choice([each.value for each in Release]), default="merged",
    show_default=True, help="When to archive the sessions' own rolled files: merged; by all nodes.",
)  # fmt: skip
@click.option("--drain", is_flag=True, help="End when the nodes have merged all that is there.")
@_timeout_option("--drain")
def push(
    settings: LinkSettings,
    sessions: tuple[str, ...],
    *,
    release: str,
    drain: bool,
    timeout_s: float | None,
) -> None:
    """Ship sessions to the nodes of a stream, and go on as they grow.

    On SIGTERM, SIGHUP or ctrl-C it ships what is there, for a few seconds, and ends.

    \b
    rt push --root data --stream flights --nodes n1:7420 --nodes n2:7420 --identity jfk
    rt push --root data --stream flights --session 'eu-*' --drain --timeout 60
    """  # noqa: D301 - click reads the backspace character
    if timeout_s is not None and not drain:
        raise click.UsageError("--timeout goes with --drain")
    allow_all()
    client = PushClient(
        settings.root, settings.stream, settings.addresses(),
        settings.contexts(CertificateRole.PUBLISHER), sessions, release=Release(release),
    )  # fmt: skip
    if drain and not client.status():
        raise Misuse(f"there is no session to ship; look at --root {settings.root} and --session")
    with StopSignals() as signals:
        client.start()
        merged = _run(signals, lambda: drain and client.drained(merged=True), timeout_s, ends=drain)
        status = client.status()
        connected = any(each.connected for each in status)
        drained = client.stop(_DRAIN_S if connected and timeout_s is None else 0)
    aim = "merged" if drain else "synced"
    if merged or (drained and not drain):
        click.echo(f"everything that was published is {aim} by a majority of the nodes")
        return
    reasons = "; ".join(sorted({each.error for each in status if each.error})) or "time ran out"
    words = (
        f"not everything is {aim} by a majority of the nodes ({reasons}); it stays in the log, "
        "and the next push ships it"
    )
    if drain:
        raise click.ClickException(words)
    click.echo(words)


@click.command()
@click_options(LinkSettings, "pull")
@click.option(
    "--keep", "kept", default="follow", show_default=True,
    help="What the nodes keep (follow), all, a time such as 14d, or a size such as 90Gi.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="End when the copy has all that the node has.")
@_timeout_option("--once")
def pull(settings: LinkSettings, *, kept: str, once: bool, timeout_s: float | None) -> None:
    """Keep a copy of a stream's merged log, from any of its nodes.

    Ends cleanly on SIGTERM, SIGHUP or ctrl-C; the next pull goes on where this one ended.

    \b
    rt pull --root copy --stream flights --nodes n1:7420 --identity spark
    rt pull --root copy --stream flights --once --timeout 60
    """  # noqa: D301 - click reads the backspace character
    if timeout_s is not None and not once:
        raise click.UsageError("--timeout goes with --once")
    keep = parse_keep(kept)
    client = PullClient(
        settings.root, settings.stream, settings.addresses(),
        settings.contexts(CertificateRole.SUBSCRIBER, CertificateRole.NODE), keep.keeps,
        sweep=keep.sweep,
    )  # fmt: skip
    with StopSignals() as signals:
        client.start()
        done = _run(
            signals, lambda: not client.running or (once and client.wait_caught_up(0)), timeout_s,
            ends=once,
        )  # fmt: skip
        broken = not client.running  # first: what broke it is then in the status
        status = client.status()
        client.stop()
    if broken:
        raise RtError(status.error)
    if once and not done:
        raise click.ClickException(
            f"the copy ends at {status.position}, which is not all that a node has "
            f"({status.error or 'time ran out'}); the next pull goes on from there"
        )
    click.echo(f"the copy ends at {status.position}")


def _run(
    signals: StopSignals, done: Callable[[], bool], timeout_s: float | None, *, ends: bool
) -> bool:
    """Wait until a signal comes, it is done, or the time has run out; return whether it is done.

    It may be undone a moment later, by a publisher: who wants to know asks here, and not again.
    """
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    poll_s = _POLL_END_S if ends else _POLL_S
    while not (is_done := done()) and time.monotonic() < deadline and signals.wait(poll_s):
        pass
    return is_done
