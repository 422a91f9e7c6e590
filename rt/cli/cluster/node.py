"""`rt node`: runs one node of a stream until a signal stops it."""

from functools import partial
from typing import TYPE_CHECKING, Final

import click

from rt.cli.cluster.adopt_state import adopt_state
from rt.cli.cluster.found import found_node
from rt.cli.common.command_group import CommandGroup
from rt.cli.common.link import LongWait, reload
from rt.cli.common.options import click_options, flag, reloaded
from rt.cli.common.web import shown_over_http
from rt.cli.process.descriptors import raise_descriptor_limit
from rt.cli.process.heap import Heap
from rt.cli.process.service_manager import ServiceManager
from rt.cli.process.stop_signals import StopSignals
from rt.node.agree.leadership import RoleCommand
from rt.node.host.standby_gate import StandbyGate
from rt.node.host.stream_host import StreamHost
from rt.node.observe.stall_clock import LIVE_S
from rt.node.settings.node import NodeSettings
from rt.text import first_few
from rt.web.serving.recent import RecentEvents

if TYPE_CHECKING:
    from rt.web.serving.site import Site

_POLL_S: Final = 0.5
_ASK_S: Final = 1.0  # between two questions to the standby
_NAMED_MAX: Final = 10
# The other settings are in the files that rt cluster init writes, or have suitable defaults.
_LISTED: Final = (
    "root", "stream", "name", "listen", "certs", "members", "streams", "standby", "on_role",
    "file_bytes", "file_age_s", "reserve", "http",
)  # fmt: skip
RELOADED: Final = "certificates, reserve and limits were"


@click.group(cls=CommandGroup, invoke_without_command=True)
@click_options(NodeSettings, "node", _LISTED)
@flag(
    "--without-standby",
    help="Start without asking the standby whether another cluster continues the log.",
)
@click.pass_context
def node(context: click.Context, *, settings: NodeSettings, without_standby: bool) -> None:
    """Serve a stream, or several: accept pushes, merge them, and let subscribers pull.

    If a stream fails, it stops and the others continue; when all have failed, the node ends.
    SIGTERM and ctrl-C stop the node cleanly; everything acknowledged is kept. On SIGHUP the node
    loads certificates, the reserve and the limits again, and logs which other changed settings need
    a restart; a node that runs in a terminal stops instead, since a closing terminal sends SIGHUP.
    Most settings are in the file that rt cluster init writes, or have suitable defaults; the option
    --help-all shows them.

    \b
    rt node found --config node.toml
    rt node --root /var/lib/rt --stream flights --name n1 --listen 0.0.0.0:7420
    rt node --config node.toml --http 127.0.0.1:9420
    RT_LISTEN=127.0.0.1:0 rt node --stream flights
    """  # noqa: D301 - click reads the backspace character
    if context.invoked_subcommand is not None:
        return
    raise_descriptor_limit()
    heap = Heap()
    command = settings.agreement.on_role
    manager = ServiceManager()
    on_role = RoleCommand(command) if command else None
    with StopSignals(reloads=True) as signals:
        if not without_standby and not _may_start(settings, signals):
            return
        running = StreamHost(settings, on_role=on_role)
        if settings.web.http:
            running.own.periodic_sampler.pause_s = LIVE_S
        running.start()
        host, port = running.address
        click.echo(f"node {settings.name} serves {_streams_of(running)} at {host}:{port}")
        ends = {}
        try:
            with shown_over_http(settings.web, lambda events: _site(running, events)) as web:
                load = partial(reloaded, NodeSettings)
                turn = manager.attend(
                    signals, lambda: reload(load, web, running.reload, RELOADED), running.stuck
                )
                while signals.wait(_POLL_S) and running.turn():
                    turn()
                    heap.turn()
        finally:
            manager.stopping()
            ends = running.stop()
    for failure in running.failures.values():
        raise failure
    for stream, end in ends.items():
        log = "the merged log" if len(ends) == 1 else f"the merged log of stream {stream}"
        click.echo(f"node {settings.name} stopped; {log} ends at {end}")


node.add_command(adopt_state)
node.add_command(found_node)


def _may_start(settings: NodeSettings, signals: StopSignals) -> bool:
    """Wait until a node that is to start knows whether another cluster continues its log.

    A leader of the node's cluster, or a standby that still serves the log, shows that no other
    cluster does. Does not wait if no standby is configured.

    Returns:
        Whether the node may start; False if a signal ended the wait.
    """
    if not settings.agreement.standby:
        return True
    gate = StandbyGate(settings)
    wait = LongWait(
        gate.may_start,
        lambda: (
            f"node {settings.name} does not start yet, since another cluster may continue its "
            f"log: {gate.why}; if none does, start it with --without-standby"
        ),
    )
    while not wait.is_over():
        if not signals.wait(_ASK_S):
            return False
    return True


def _streams_of(running: StreamHost) -> str:
    """Return a phrase that says how many streams a node serves, and names the first few."""
    names = list(running.nodes)
    if len(names) == 1:
        return f"stream {names[0]}"
    return f"{len(names)} streams ({first_few(names, _NAMED_MAX)})"


def _site(running: StreamHost, events: RecentEvents) -> "Site":
    from rt.web.nodes.host_site import HostSite  # noqa: PLC0415 - imports what is optional

    return HostSite(running, events)
