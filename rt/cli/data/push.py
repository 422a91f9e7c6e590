"""`rt push`: ships the sessions of a stream to its nodes."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from replicator.push.client import PushClient
from replicator.push.progress import Release, SessionStatus
from rt.cli.common.completing import complete_session
from rt.cli.common.console import note, print_json, say
from rt.cli.common.link import (
    STOP_S,
    LongWait,
    ServiceSettings,
    interrupting,
    reload_service,
    timeout_option,
    wait_until,
)
from rt.cli.common.options import click_options, json_option
from rt.cli.common.web import pause_s, shown_over_http, watched
from rt.cli.process.descriptors import raise_descriptor_limit
from rt.cli.process.service_manager import ServiceManager
from rt.cli.process.stop_signals import StopSignals
from rt.errors import Misuse
from rt.net.authority.certificates import certificate_files
from rt.net.authority.identity import CertificateRole
from rt.web.programs.push_watch import PushWatch
from rt.web.serving.recent import RecentEvents

if TYPE_CHECKING:
    from rt.web.serving.site import Site

_NAMED_MAX: Final = 3  # sessions named in a message
_DRAIN_S: Final = 5.0  # how long push goes on shipping after a signal


@click.command()
@click_options(ServiceSettings, "push")
@click.option(
    "--session",
    "sessions",
    multiple=True,
    default=("*",),
    help="Name or glob to ship.",
    shell_complete=complete_session,
)
@click.option(
    "--archive", "release", type=click.Choice([each.value for each in Release]), default="merged",
    show_default=True,
    help="Archive a session's own rolled files once merged, once merged by all nodes, or never.",
)  # fmt: skip
@click.option("--drain", is_flag=True, help="End once the nodes have merged everything there is.")
@timeout_option("--drain")
@json_option("the outcome")
def push(
    settings: ServiceSettings,
    sessions: tuple[str, ...],
    *,
    release: str,
    drain: bool,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Ship sessions to the nodes of a stream, and keep shipping as they grow.

    On SIGTERM or ctrl-C it ships what is left, for up to 5 seconds, and ends. SIGHUP reloads
    certificates, and warns of settings that need a restart; a push in a terminal ends on SIGHUP,
    which a closing terminal sends.

    \b
    rt push --root data --stream flights --nodes n1:7420 --nodes n2:7420 --identity jfk
    rt push --root data --stream flights --session 'eu-*' --drain --timeout 60
    """  # noqa: D301 - click reads the backspace character
    if timeout_s is not None and not drain:
        raise click.UsageError("--timeout goes with --drain")
    raise_descriptor_limit()
    contexts = settings.contexts(CertificateRole.PUBLISHER)
    client = PushClient(
        settings.root, settings.stream, settings.addresses(), contexts, sessions,
        release=Release(release),
    )  # fmt: skip
    if drain and not client.status():
        raise Misuse(f"there is no session to ship; check --root {settings.root} and --session")
    manager = ServiceManager()
    look = PushWatch(client, pause_s(settings.web))
    with StopSignals(reloads=True) as signals:
        client.start()
        # sessions not merged when the wait ended: refused, or waiting for an operator
        left: list[str] = []
        wait = LongWait(lambda: _is_over(client, left), lambda: waiting_for(client.status()))
        with (
            watched(look),
            shown_over_http(
                settings.web, lambda events: _site(client, settings, events, look)
            ) as web,
        ):
            turn = manager.attend(
                signals, lambda: reload_service(settings, contexts, web), look.stuck
            )
            merged = wait_until(
                signals, lambda: drain and wait.is_over(), timeout_s, ends=drain, turn=turn
            )
        manager.stopping()
        merged = merged and not left
        is_known, status = not client.is_shipped_elsewhere(), client.status()
        reasons = sorted({each.error for each in status if each.error})
        if drain and not merged and signals.is_interrupt:
            note(_unfinished(reasons, "merged"))
        synced = _stop(client, status, 0 if timeout_s is not None else _DRAIN_S)
    done = merged if drain else merged or synced
    with interrupting(signals):
        _report(reasons, done=done, drain=drain, is_known=is_known, as_json=as_json)


def _stop(client: PushClient, status: Sequence[SessionStatus], drain_s: float) -> bool:
    """Stop a pusher; return whether a majority of the nodes have synced everything."""
    if any(each.connected for each in status):
        return client.stop(drain_s)
    return client.stop(wait_s=STOP_S)


def _site(
    client: PushClient, settings: ServiceSettings, events: RecentEvents, watch: PushWatch
) -> "Site":
    from rt.web.programs.program import ShownProgram  # noqa: PLC0415 - imports what is optional
    from rt.web.programs.push_site import PushSite  # noqa: PLC0415

    files = certificate_files(settings.certs, settings.identity)
    program = ShownProgram("push", settings.stream, files, events, time.time_ns())
    return PushSite(client, program, watch)


def _is_over(client: PushClient, left: list[str]) -> bool:
    """Return whether a drain is over; fills `left` with the sessions that are not merged.

    They are read at the same moment: a refusal is forgotten while a session is offered again.
    """
    refused, blocked = client.refused(), client.blocked()
    left[:] = [*refused, *blocked]
    return bool(blocked) or client.drained(merged=True, but=refused)


def waiting_for(status: Sequence[SessionStatus]) -> str:
    """Say what a drain waits for, naming the first few sessions."""
    reasons: dict[str, str] = {}
    for each in status:
        left = f"{each.lag_bytes:,} bytes to send" if each.lag_bytes else ""
        if reason := each.error or left:
            reasons.setdefault(each.session, reason)
    if not reasons:
        return (
            "everything is sent, and not all of it is merged by the nodes; rt status shows what "
            "they wait for"
        )
    named = [f"{session}: {reason}" for session, reason in reasons.items()]
    more = f"; and {len(named) - _NAMED_MAX:,} more" if len(named) > _NAMED_MAX else ""
    return f"still shipping: {'; '.join(named[:_NAMED_MAX])}{more}"


def _report(
    reasons: Sequence[str], *, done: bool, drain: bool, is_known: bool, as_json: bool
) -> None:
    """Print how the push ended; a drain that is not done is an error."""
    level = "merged" if drain else "synced"
    if as_json:
        print_json({"level": level, "reached": done, "reasons": [] if done else list(reasons)})
    if done:
        if not as_json:
            click.echo(f"everything that was published is {level} by a majority of the nodes")
        return
    if drain and not is_known:
        raise click.ClickException(
            "it is not known whether everything is merged, since another program ships it "
            f"({'; '.join(reasons)}); end that one, or ask with rt session show"
        )
    unfinished = _unfinished(reasons, level)
    if drain:
        raise click.ClickException(unfinished)
    if not as_json:
        say(unfinished)


def _unfinished(reasons: Sequence[str], level: str) -> str:
    return (
        f"not everything is {level} by a majority of the nodes "
        f"({'; '.join(reasons) or 'time ran out'}); it stays in the log, and the next push ships it"
    )
