"""`rt gateway`: a stream over HTTP, for programs in any language."""

from dataclasses import dataclass, field

import click

from rt.cli.common.console import note, print_json
from rt.cli.common.link import known_nodes, wait_until
from rt.cli.common.options import Duration, click_options, config_path, json_option
from rt.cli.process.descriptors import raise_descriptor_limit
from rt.cli.process.service_manager import ServiceManager
from rt.cli.process.stop_signals import StopSignals
from rt.client.client import Client
from rt.client.readers.settings import ConnectionSettings
from rt.errors import RtError
from rt.gateway.settings import GatewaySettings
from rt.net.admin import AdminClient
from rt.net.authority.certificates import certificate_files
from rt.web.serving.server import demand_installed


@dataclass(frozen=True, slots=True)
class ServedSettings(ConnectionSettings):
    """The settings of `rt gateway`."""

    publisher: str = field(
        default="publisher",
        metadata={"help": "With --append: NAME of the certificate to publish with."},
    )
    gateway: GatewaySettings = field(default_factory=GatewaySettings)


@click.command()
@click_options(ServedSettings, "gateway")
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="30s", show_default=True,
    help="Give up if no copy of the stream has begun after this long, with exit code 1.",
)  # fmt: skip
@json_option("the address")
def gateway(settings: ServedSettings, *, timeout_s: float, as_json: bool) -> None:
    """Serve a stream over HTTP, by the Durable Streams protocol 1.0.

    A URL /v1/stream/KEY is a stream of the protocol: the messages with that key, whichever program
    published them. PUT creates it, POST appends to it, and GET returns its messages; with
    live=long-poll or live=sse, GET also waits for new ones.

    The gateway keeps a copy of the merged log, and publishes in its own sessions: http-ID, or
    http-ID-NAME for a client with a certificate or token. Each gateway makes an ID once and keeps
    it.

    \b
    rt gateway --root edge --stream flights --nodes n1:7420 --identity web
    rt gateway --config clients.toml --append
    curl -X PUT -H 'Content-Type: application/json' http://127.0.0.1:7480/v1/stream/gates
    curl -H 'Content-Type: application/json' -d '{"gate": 7}' http://127.0.0.1:7480/v1/stream/gates
    curl 'http://127.0.0.1:7480/v1/stream/gates?offset=-1'
    """  # noqa: D301 - click reads the backspace character
    demand_installed()
    from rt.gateway.gateway import Gateway  # noqa: PLC0415 - imports optional packages

    raise_descriptor_limit()
    signals = StopSignals()
    with signals:
        note(f"copying stream {settings.stream} to {settings.root}")
        known = known_nodes(settings)
        contexts = settings.contexts(successions=known.successions)
        nodes = AdminClient(known.addresses, contexts, keep=True)
        made = Gateway(settings.gateway, _client(settings), settings.root, nodes, timeout_s)
        with made as served:
            if as_json:
                print_json({"url": served.url})
            else:
                click.echo(f"streams at {served.url}")
            manager = ServiceManager()
            turn = manager.attend(signals, lambda: None, lambda: served.failure)
            wait_until(signals, lambda: bool(served.failure), None, ends=False, turn=turn)
            manager.stopping()
            failure = served.failure
    if failure:
        raise RtError(failure)


def _client(settings: ServedSettings) -> Client:
    reading = ConnectionSettings(
        settings.root, settings.stream, settings.nodes, settings.certs, settings.identity
    )
    publishing = ConnectionSettings(
        settings.root, settings.stream, settings.nodes, settings.certs, settings.publisher
    )
    certificate_files(settings.certs, settings.identity)
    return Client(publishing, reading, config=config_path())
