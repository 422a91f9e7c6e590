"""`rt bridge`: publishes in one cluster what another one has merged."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import click

from rt.bridge.bridge import Bridge, BridgeChoice
from rt.bridge.bridge_watch import BridgeWatch
from rt.cli.common.completing import (
    complete_asked,
    complete_bridge_group,
    complete_bridge_session,
)
from rt.cli.common.console import note, print_json
from rt.cli.common.link import interrupting, wait_until
from rt.cli.common.options import Duration, click_options, flag, json_option
from rt.cli.common.web import shown_over_http
from rt.cli.process.descriptors import raise_descriptor_limit
from rt.cli.process.service_manager import ServiceManager
from rt.cli.process.stop_signals import StopSignals
from rt.client.client import connect
from rt.client.readers.settings import ConnectionSettings
from rt.config.settings import load
from rt.errors import PeerError, RtError
from rt.log.read.start import parse_start
from rt.names import merged_directory, parse_session
from rt.net.admin import AdminClient, reading_answers
from rt.net.authority.certificates import certificate_files, is_cluster_id
from rt.node.settings.http import HttpSettings
from rt.web.serving.recent import RecentEvents

if TYPE_CHECKING:
    from rt.web.serving.site import Site

_STOP_S: Final = 10.0


@click.command()
@click.option(
    "--from", "source", metavar="FILE", required=True, type=click.Path(exists=True, dir_okay=False),
    help="The configuration of the cluster to read, as rt cluster init writes clients.toml.",
)  # fmt: skip
@click.option(
    "--to", "target", metavar="FILE", required=True, type=click.Path(exists=True, dir_okay=False),
    help="The configuration of the cluster to publish in; its [push] names the publisher.",
)  # fmt: skip
@click.option(
    "--root", default="rt-bridge", show_default=True,
    help="Directory for the copy of the source's log and for the bridge's session; keep it.",
)  # fmt: skip
@click.option(
    "--session", required=True, metavar="NAME", shell_complete=complete_bridge_session,
    help="The bridge's session in the target; each bridge into a cluster has one of its own.",
)  # fmt: skip
@click.option(
    "--group", default="", metavar="NAME", shell_complete=complete_bridge_group,
    help="Name of a group of redundant bridges: all forward the same messages, each merged once.",
)  # fmt: skip
@click.option(
    "--sessions", multiple=True, metavar="GLOB",
    shell_complete=complete_asked("sessions", file="source"),
    help="Forward only these sessions; repeat for more.",
)  # fmt: skip
@click.option(
    "--keys", default="", metavar="PREFIX", help="Forward only messages whose key begins with this."
)
@flag("--chain", help="Also forward what bridges have brought, unless it has been in the target.")
@click.option(
    "--start", default="earliest", show_default=True, metavar="START",
    help="Where a new bridge begins; a bridge that ran before resumes where it was.",
)  # fmt: skip
@flag("--skip-gaps", help="Go on after messages that were archived before they were read.")
@flag("--once", help="Stop once everything merged before the command started is forwarded.")
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="1min", show_default=True,
    help="Give up after this long if the target does not answer, or with --once if the "
    "copy is not complete.",
)  # fmt: skip
@json_option("how much was forwarded")
@click_options(HttpSettings, "bridge", ("http",))
def bridge(
    *, source: str, target: str, root: str, session: str, group: str, sessions: tuple[str, ...],
    keys: str, chain: bool, start: str, skip_gaps: bool, once: bool, timeout_s: float,
    as_json: bool, settings: HttpSettings,
) -> None:  # fmt: skip
    """Publish in one cluster what another one has merged, each message once.

    With bridges, each site publishes to its own cluster, and its readers get the messages of all
    sites: run a bridge in each direction between every two sites. A bridge does not forward what
    another bridge has brought, so messages do not circle; for sites in a line, use --chain.

    A message keeps its key, time and headers. Two headers are added: rt-origin, with the original
    stream, session, sequence number and time, and rt-path, with the logs that the message passed.

    A bridge can be killed at any moment: the log of its session shows where to resume. rt status
    shows its progress: in the source as a reader, and in the target as a session. --http serves
    metrics of the bridge.

    \b
    rt bridge --from ams/clients.toml --to fra/clients.toml --session from-ams
    rt bridge --from ams/clients.toml --to fra/clients.toml --session gates \\
      --sessions 'gate-*' --keys AA
    rt bridge --from ams/clients.toml --to fra/clients.toml --session from-ams-1 --group ams
    rt bridge --from ams/clients.toml --to fra/clients.toml --session a --http 127.0.0.1:9425
    """  # noqa: D301 - click reads the backspace character
    raise_descriptor_limit()
    with ExitStack() as undo:
        reader = undo.enter_context(connect(source, root=os.path.join(root, "from")))
        name = str(parse_session(session))
        publisher = undo.enter_context(connect(target, root=os.path.join(root, "to")))
        choice = BridgeChoice(
            name, group, sessions or None, keys.encode(), chain, parse_start(start),
            "notify" if skip_gaps else "raise",
        )  # fmt: skip
        copy = merged_directory(os.path.join(root, "from"), reader.stream)
        log = _log_of(target)
        made = Bridge(reader, copy, publisher, log, choice)
        undo.enter_context(made)
        undo.enter_context(
            _shown(made, settings, (reader.stream, publisher.stream), source, target)
        )
        _run(made, publisher.stream, once=once, timeout_s=timeout_s)
        if as_json:
            counts = {"forwarded": made.forwarded, "passed_over": made.passed_over}
            print_json({**counts, "next": made.next_number})
            return
        click.echo(
            f"forwarded {made.forwarded:,} messages, up to number {made.next_number:,}; "
            f"{made.passed_over:,} that bridges had brought were passed over"
        )


@contextmanager
def _shown(
    made: Bridge, web: HttpSettings, streams: tuple[str, str], *configs: str
) -> Iterator[None]:
    """Show a bridge over HTTP until the block ends, if the settings ask for it.

    Args:
        made: the bridge.
        web: where to show it.
        streams: the streams of the source and of the target.
        configs: the configurations of the source and of the target.
    """
    if not web.http:
        yield
        return
    tables = zip(configs, ("pull", "push"), strict=True)
    source, target = (load(ConnectionSettings, config, table) for config, table in tables)
    files = [certificate_files(each.certs, each.identity) for each in (source, target)]
    known = source.known_nodes(configs[0])
    contexts = source.contexts(successions=known.successions)
    asking = AdminClient(known.addresses, contexts, keep=True)
    watch = BridgeWatch(made, asking.ask)

    def site_of(events: RecentEvents) -> "Site":
        from rt.bridge.bridge_site import BridgeSite  # noqa: PLC0415 - imports what is optional

        return BridgeSite(watch, streams, files, events)

    with ExitStack() as undo:
        undo.callback(asking.close)
        undo.enter_context(watch)
        undo.enter_context(shown_over_http(web, site_of))
        yield


def _run(made: Bridge, stream: str, *, once: bool, timeout_s: float) -> None:
    """Forward until a signal comes or the bridge ends; raise the error that ended it, if any."""
    ended = list[Exception | None]()  # what ended it; still empty after an internal error

    def work() -> None:
        try:
            made.run(follow=not once, timeout_s=timeout_s)
            if once:
                made.flush(timeout_s)
        except (RtError, OSError) as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=work, name="bridge", daemon=True)
    signals = StopSignals()
    with signals:
        note(f"forwarding to {stream}, from number {made.next_number:,}")
        thread.start()
        manager = ServiceManager()
        turn = manager.attend(signals, lambda: None, lambda: "")
        is_done = wait_until(signals, lambda: not thread.is_alive(), None, ends=once, turn=turn)
        manager.stopping()
        made.stop()
        if once and not is_done:
            unfinished = "stopped before everything was forwarded"
            if signals.is_interrupt:
                note(unfinished)
            with interrupting(signals):
                raise click.ClickException(unfinished)
    thread.join(_STOP_S)  # longer only if it waits for a peer; what it has is in the session's log
    if not thread.is_alive() and not ended:
        raise RtError("the bridge ended by an internal error, which is printed above")
    if ended and (error := ended[0]) is not None:
        raise error


def _log_of(config: str) -> str:
    """Return the log id of the cluster in the file `config`; "" if the nodes do not report it.

    Raises the errors of `ConnectionSettings.ask_latest`, and `PeerError` if the id is malformed.
    """
    settings = load(ConnectionSettings, config, "pull")
    with reading_answers():
        log = str(settings.ask_latest({"do": "end"}).get("log", ""))
    if log and not is_cluster_id(log):
        raise PeerError("a node's answer cannot be read: the id of its log is malformed")
    return log
