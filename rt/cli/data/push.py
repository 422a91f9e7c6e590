"""`rt push`: ships the sessions of a stream to its nodes."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from replicator.push.client import PushClient
from replicator.push.progress import Release, SessionStatus
from rt.amounts import size_text
from rt.cli.common import link
from rt.cli.common.completing import complete_session
from rt.cli.common.console import note, print_json, say
from rt.cli.common.options import click_options, flag, json_option
from rt.cli.common.web import pause_s
from rt.cli.process.descriptors import raise_descriptor_limit
from rt.cli.process.stop_signals import StopSignals
from rt.client.push_watch import PushWatch
from rt.client.standby_reach import keeping
from rt.errors import Misuse
from rt.net.authority.certificates import certificate_files
from rt.net.authority.identity import CertificateRole
from rt.text import first_few
from rt.web.serving.recent import RecentEvents

if TYPE_CHECKING:
    from rt.web.serving.site import Site

_NAMED_MAX: Final = 3  # sessions named in a message
_DRAIN_S: Final = 5.0  # how long push goes on shipping after a signal


@click.command()
@click_options(link.ServiceSettings, "push", link.SERVICE_LISTED)
@click.option(
    "--session", "sessions", multiple=True, default=("*",),
    help="Name or glob of the sessions to ship; repeat for more.", shell_complete=complete_session,
)  # fmt: skip
@click.option(
    "--archive", "release", type=click.Choice([each.value for each in Release]), default="merged",
    show_default=True,
    help="When to archive rolled files of the sessions: once merged, once merged by all nodes, or "
    "never.",
)  # fmt: skip
@click.option(
    "--keep", default="", metavar="TIME",
    help="How long to delay archiving merged files: a time, such as 1h (at most twice that), "
    "or until a standby has their messages (standby). If the cluster is lost, the promoted standby "
    "is sent the messages that it lacks.",
)  # fmt: skip
@flag("--drain", help="Stop once the nodes have merged everything published so far.")
@link.timeout_option("--drain")
@json_option("the outcome")
def push(
    settings: link.ServiceSettings, sessions: tuple[str, ...], *, release: str, keep: str,
    drain: bool, timeout_s: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Ship sessions to the nodes of a stream, and keep shipping as they grow.

    On SIGTERM or ctrl-C it ships what is left, for up to 5 seconds, and ends. SIGHUP reloads
    certificates and nodes, and warns of settings that need a restart; a push in a
    terminal ends on SIGHUP, which a closing terminal sends.

    \b
    rt push --root data --stream flights --nodes n1:7420 --nodes n2:7420 --identity jfk
    rt push --root data --stream flights --session 'eu-*' --drain --timeout 60
    rt push --root data --stream flights --nodes n1:7420 --identity jfk --keep standby
    """  # noqa: D301 - click reads the backspace character
    if timeout_s is not None and not drain:
        raise click.UsageError("--timeout goes with --drain")
    raise_descriptor_limit()
    contexts = settings.contexts(CertificateRole.PUBLISHER)
    known = link.known_nodes(settings)
    keep_s, reach = keeping(keep, settings, known)
    client = PushClient(
        settings.root, settings.stream, settings.addresses(), contexts, sessions,
        release=Release(release), keep_s=keep_s, known=known,
        standby=None if reach is None else lambda: reach.position,
    )  # fmt: skip
    if drain and not client.status():
        raise Misuse(f"there is no session to ship; check --root {settings.root} and --session")
    look = PushWatch(client, pause_s(settings.web))
    with StopSignals(reloads=True) as signals, reach or nullcontext():
        client.start()
        # sessions not merged when the wait ended: refused, or waiting for an operator
        left: list[str] = []
        wait = link.LongWait(lambda: _is_over(client, left), lambda: waiting_for(client.status()))
        site_of = partial(_site, client, settings, look)
        attended = link.attended(
            settings, contexts, signals, look, site_of, known=known, follow=client.follow
        )
        with attended as turn:
            merged = link.wait_until(
                signals, lambda: drain and wait.is_over(), timeout_s, ends=drain, turn=turn
            )
        merged = merged and not left
        is_known, status = not client.is_shipped_elsewhere(), client.status()
        reasons = sorted({each.error for each in status if each.error})
        if drain and not merged and signals.is_interrupt:
            note(_unfinished(reasons, "merged"))
        synced = _stop(client, status, 0 if timeout_s is not None else _DRAIN_S)
    done = merged if drain else merged or synced
    with link.interrupting(signals):
        report(reasons, done=done, drain=drain, is_known=is_known, as_json=as_json)


def _stop(client: PushClient, status: Sequence[SessionStatus], drain_s: float) -> bool:
    """Stop a pusher; return whether a majority of the nodes have synced everything."""
    if any(each.connected for each in status):
        return client.stop(drain_s)
    return client.stop(wait_s=link.STOP_S)


def _site(
    client: PushClient, settings: link.ServiceSettings, watch: PushWatch, events: RecentEvents
) -> "Site":
    from rt.web.programs.program import ShownProgram  # noqa: PLC0415 - imports what is optional
    from rt.web.programs.push_site import PushSite  # noqa: PLC0415

    files = certificate_files(settings.certs, settings.identity)
    program = ShownProgram("push", settings.stream, files, events, time.time_ns())
    return PushSite(client, program, watch)


def _is_over(client: PushClient, left: list[str]) -> bool:
    """Return whether a drain is over; set `left` to the sessions that it gives up.

    These sessions are refused, or wait for an operator. Use `left` instead of asking the client
    again: while a session is being offered again, it does not count as refused.
    """
    refused, blocked = client.refused(), client.blocked()
    left[:] = [*refused, *blocked]
    return bool(blocked) or client.drained(merged=True, but=refused)


def waiting_for(status: Sequence[SessionStatus]) -> str:
    """Return what a drain waits for, naming the first few sessions."""
    reasons: dict[str, str] = {}
    for each in status:
        left = f"{size_text(each.lag_bytes)} to send" if each.lag_bytes else ""
        if reason := each.error or left:
            reasons.setdefault(each.session, reason)
    if not reasons:
        return (
            "everything is sent, and not all of it is merged by the nodes; rt status shows what "
            "they wait for"
        )
    named = [f"{session}: {reason}" for session, reason in reasons.items()]
    return f"still shipping: {first_few(named, _NAMED_MAX, '; ')}"


def report(
    reasons: Sequence[str], *, done: bool, drain: bool, is_known: bool, as_json: bool
) -> None:
    """Print how the push ended; raise `ClickException` for a drain that is not done."""
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
