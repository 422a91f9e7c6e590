"""`rt pull`: keeps a copy of a stream's merged log."""

import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from archiver.keep import parse_keep
from replicator.pull.client import PullClient, PullStatus
from replicator.pull.end_wait import EndWait
from replicator.pull.mirror import Mirror
from replicator.repair.copy_scrubber import copy_scrubber
from replicator.repair.scrubber import SCRUB_BYTES_S, Scrubber
from rt.cli.common import link
from rt.cli.common.console import note, print_json, teller
from rt.cli.common.options import click_options, flag, json_option
from rt.cli.common.web import pause_s
from rt.cli.process.stop_signals import StopSignals
from rt.client.readers.rejoin import rejoin_running
from rt.client.standby import StateCarrier
from rt.config.kinds import Bytes
from rt.errors import Misuse, RtError
from rt.log.files.archived import begins_as_wanted
from rt.log.files.directory import LogDirectory
from rt.log.read.start import parse_start
from rt.names import merged_directory, parse_peer
from rt.net.addresses import parse_address
from rt.net.admin import ask_any
from rt.net.authority.certificates import certificate_files
from rt.net.authority.identity import CertificateRole
from rt.net.authority.successions import Successions
from rt.net.exchange import Fields
from rt.net.known_nodes import KnownNodes
from rt.net.tls import Contexts, server_context
from rt.position import Position
from rt.text import printable
from rt.web.programs.pull_watch import PullWatch
from rt.web.serving.recent import RecentEvents

if TYPE_CHECKING:
    from rt.web.serving.site import Site

_SERVING: Final = (CertificateRole.MIRROR,)
_PULLING: Final = (CertificateRole.SUBSCRIBER, CertificateRole.NODE, CertificateRole.MIRROR)


@dataclass(frozen=True, slots=True)
class PullSettings(link.ServiceSettings):
    """The settings of `rt pull`."""

    scrub_bytes_s: Bytes = field(
        default=SCRUB_BYTES_S,
        metadata={
            "help": "Bytes of the copy to read each second, to find what the disk has damaged and "
            "fetch it from a node; 0 reads none."
        },
    )
    site: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "A mirror of this site, as NAME=HOST:PORT; repeat for each, in the same order "
            "everywhere. Each copies from one that is listed before it, and from the nodes only if "
            "none of those answers."
        },
    )

    def __post_init__(self) -> None:
        super(PullSettings, self).__post_init__()
        if self.site and self.identity not in self._members:
            raise Misuse(f"site names {', '.join(self._members)}, and not us: {self.identity}")

    @property
    def _members(self) -> dict[str, tuple[str, int]]:
        named = (each.partition("=") for each in self.site)
        return {parse_peer(name): parse_address(address, "site") for name, _, address in named}

    @property
    def near(self) -> list[tuple[str, int]]:
        """The addresses of this site's mirrors to try before the nodes: those listed before us."""
        names = list(self._members)
        before = names[: names.index(self.identity)] if self.site else ()
        return [self._members[each] for each in before]


@click.command()
@click_options(PullSettings, "pull", (*link.SERVICE_LISTED, "site"))
@click.option(
    "--keep", "kept", default="follow", show_default=True,
    help="How much to keep: as much as the nodes (follow), all, a time (14d), or a size (90Gi).",
)  # fmt: skip
@click.option(
    "--from", "start", metavar="START", default="earliest", show_default=True,
    help="Where a new copy begins, at the start of a file: earliest, latest, a position, last:N, "
    "or a time. A copy that exists goes on where it ends.",
)  # fmt: skip
@flag("--once", help="Stop once the copy has everything merged before the command started.")
@click.option(
    "--unconfirmed",
    is_flag=True,
    hidden=True,
    help="With --once: stop once the copy has all that one node has, without asking a majority: "
    "for a cluster that has lost its majority.",
)
@click.option(
    "--serve", metavar="HOST:PORT",
    help="Serve this copy to other pullers, as a node would; needs a mirror's certificate.",
)  # fmt: skip
@flag(
    "--standby",
    help="Keep the cluster's state beside the copy too, so that another cluster can continue both "
    "(rt standby); needs a mirror's certificate.",
)
@link.timeout_option("--once")
@json_option("the outcome")
def pull(
    settings: PullSettings, *, kept: str, start: str, once: bool, unconfirmed: bool,
    serve: str | None, standby: bool, timeout_s: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Keep a copy of a stream's merged log, from any of its nodes.

    It also rereads the whole copy once a day, and fetches again the files that the disk damaged.

    Stops cleanly on SIGTERM and ctrl-C; the next pull resumes where this one ended. SIGHUP reloads
    certificates and nodes, and warns of settings that need a restart; a pull in a
    terminal ends on SIGHUP, which a closing terminal sends.

    \b
    rt pull --root copy --stream flights --nodes n1:7420 --identity spark
    rt pull --root copy --stream flights --from latest
    rt pull --root copy --stream flights --once --timeout 60
    rt pull --root copy --stream flights --identity edge --serve 0.0.0.0:7420
    rt pull --root copy --stream flights --identity edge --standby
    rt pull --root copy --stream flights --identity m2 --standby --serve 0.0.0.0:7420 \\
      --site m1=a:7420 --site m2=b:7420 --site m3=c:7420
    """  # noqa: D301 - click reads the backspace character
    if timeout_s is not None and not once:
        raise click.UsageError("--timeout goes with --once")
    if unconfirmed and not once:
        raise click.UsageError("--unconfirmed goes with --once")
    if once and (standby or serve is not None):
        given = "--serve" if serve is not None else "--standby"
        raise click.UsageError(f"{given} goes on; leave out --once")
    keep = parse_keep(kept)
    contexts = settings.contexts(*(_SERVING if standby or serve is not None else _PULLING))
    mirror = None if serve is None else _mirror(settings, serve)
    known = link.known_nodes(settings)
    client = PullClient(
        settings.root, settings.stream, settings.addresses(), contexts, keep.keeps,
        sweep=keep.sweep, start=parse_start(start), grown=mirror.grown if mirror else None,
        known=known, near=settings.near, loop=mirror.loop if mirror else None,
    )  # fmt: skip
    carrier = _carrier(client, settings, known) if standby else None
    scrubber = _watched(client, settings, contexts, mirror, known.successions, once=once)
    look = PullWatch(client, pause_s(settings.web))
    signals = StopSignals(reloads=True)
    with signals, mirror or nullcontext(), scrubber or nullcontext(), carrier or nullcontext():
        if mirror is not None:
            _say(mirror, settings.identity, as_json=as_json)
        client.start()
        if scrubber is not None and client.loop is not None:
            scrubber.start(client.loop)
        site_of = partial(_site, client, settings, look, scrubber, carrier=carrier)
        attended = link.attended(
            settings, contexts, signals, look, site_of, known=known, follow=client.follow
        )
        with attended as turn:
            asked = client.ask_end() if once and not unconfirmed else None
            over = _over(client, asked, unconfirmed=unconfirmed)
            link.wait_until(signals, over, timeout_s, ends=once, turn=turn)
        left, status = _ended(client, settings, asked, signals, once=once)
    lacks = _lacks(settings) if once and not left else ""
    with link.interrupting(signals):
        report(status, lacks, left, once=once, unconfirmed=unconfirmed, as_json=as_json)


def _carrier(client: PullClient, settings: PullSettings, known: KnownNodes) -> StateCarrier:
    """Return the carrier of the cluster's state.

    It asks the known nodes for the state, and keeps it beside the copy.
    """
    # contexts of its own, since ALPN names what a context is used for
    contexts = settings.contexts(*_SERVING, successions=known.successions)

    def ask(request: Fields) -> Fields:
        return ask_any(known.addresses, contexts, request, election_s=0)

    def place() -> Position:
        return client.status().durable_place

    def source() -> tuple[str, bool]:
        return client.status().node, client.crosses

    return StateCarrier(settings.root, settings.stream, ask, place, source=source)


def _ended(
    client: PullClient, settings: PullSettings, asked: EndWait | None, signals: StopSignals, *,
    once: bool,
) -> tuple[str, PullStatus]:  # fmt: skip
    """Stop a puller; return what it still lacks ("" for nothing), and its last status.

    Raises:
        RtError: The puller had already failed.
        Misuse: No node serves the stream.
    """
    broken = not client.running  # read before the status, which then has the reason
    left, status = "", client.status()
    if asked is not None and not asked.is_reached:
        left = asked.why_not()
    elif asked is None and once and not status.has_all:
        left = "no node has said that this is all it has"
    if left and signals.is_interrupt:
        note(f"{_unfinished(status, left)}; the next pull resumes there")
    client.stop(*([] if status.node else [link.STOP_S]))
    if broken:
        raise RtError(status.error)
    if once and client.is_served_nowhere:
        raise Misuse(f"no node serves stream {settings.stream!r}: {printable(status.error)}")
    return left, status


def _watched(
    client: PullClient,
    settings: PullSettings,
    contexts: Contexts,
    mirror: Mirror | None,
    successions: Successions | None,
    *,
    once: bool,
) -> Scrubber | None:
    """Tell a puller what to do if another log continues its own; return its copy's scrubber.

    The scrubber rereads the copy to find damage; with `once` there is no scrubber. If there is a
    mirror, which serves the copy, it is connected with the puller and the scrubber.
    """
    client.on_succession(
        partial(rejoin_running, settings.root, settings.stream),
        mirror.restart if mirror is not None else lambda: None,
    )
    if once:
        return None
    scrubber = copy_scrubber(
        client, settings.addresses(), contexts, settings.scrub_bytes_s,
        mirror.barred if mirror else None,
    )  # fmt: skip
    if mirror is not None:
        mirror.ask_end, mirror.successions = client.ask_end, successions
        if scrubber is not None:
            mirror.suspect = scrubber.suspect
    return scrubber


def _site(
    client: PullClient, settings: link.ServiceSettings, watch: PullWatch, scrubber: Scrubber | None,
    events: RecentEvents, *, carrier: StateCarrier | None,
) -> "Site":  # fmt: skip
    from rt.web.programs.program import ShownProgram  # noqa: PLC0415 - imports what is optional
    from rt.web.programs.pull_site import PullSite  # noqa: PLC0415

    files = certificate_files(settings.certs, settings.identity)
    program = ShownProgram("pull", settings.stream, files, events, time.time_ns())
    return PullSite(
        client,
        merged_directory(settings.root, settings.stream),
        program,
        watch,
        scrubber,
        carrier=carrier,
    )


def _mirror(settings: link.ServiceSettings, serve: str) -> Mirror:
    """Return a mirror: it serves the copy at address `serve`, with the puller's certificate."""
    files = certificate_files(settings.certs, settings.identity)
    return Mirror(
        parse_address(serve, "--serve"), Contexts(files, server_context), settings.stream,
        merged_directory(settings.root, settings.stream),
    )  # fmt: skip


def _say(mirror: Mirror, identity: str, *, as_json: bool) -> None:
    host, port = mirror.address
    serving = f"mirror {identity} serves stream {mirror.stream} at {host}:{port}"
    teller(as_json=as_json)(serving)


def _lacks(settings: link.ServiceSettings) -> str:
    """Return a sentence about what a copy lacks at its beginning; "" if it begins as requested."""
    with closing(LogDirectory(merged_directory(settings.root, settings.stream))) as log:
        log.refresh()
        if begins_as_wanted(log.manifest):
            return ""
        begin, files = log.manifest.order[0], log.files()
    first = files[0] if files else "its end"
    return f"the copy lacks the messages from {begin} to {first}, because its source lacks them"


def _over(client: PullClient, asked: EndWait | None, *, unconfirmed: bool) -> Callable[[], bool]:
    """Return a function that returns whether the pull is over.

    Args:
        client: the puller; if it has ended, the pull is over.
        asked: waits for everything that was merged when the command began; None without --once, or
            with --unconfirmed.
        unconfirmed: whether all that one node has is enough.
    """
    if unconfirmed:
        return lambda: not client.running or client.status().has_all or client.is_served_nowhere
    if asked is None:
        return lambda: not client.running
    wait = link.LongWait(lambda: asked.is_over, lambda: _left(client.status(), asked))
    return lambda: not client.running or wait.is_over() or client.is_served_nowhere


def _left(status: PullStatus, asked: EndWait) -> str:
    """Return what a pull with --once still waits for."""
    if not status.node:
        return f"no node is connected: {printable(status.error) or 'still trying'}"
    return f"{printable(asked.why_not())}; {status.node} is connected"


def report(
    status: PullStatus, lacks: str, left: str, *, once: bool, as_json: bool,
    unconfirmed: bool = False,
) -> None:  # fmt: skip
    """Print where the copy ends; with --once, an incomplete copy is an error.

    Args:
        status: The copy's status when it ended.
        lacks: What is missing at the beginning; "" if nothing.
        left: Why messages are missing that were merged before the command began; "" if none are, or
            without --once.
        once: Whether --once was given.
        as_json: Whether to print JSON.
        unconfirmed: Whether the end was taken from a single node.
    """
    if as_json:
        reached = {"complete": not (left or lacks or unconfirmed)} if once else {}
        error = status.error or printable(left) or lacks
        print_json({"position": str(status.position), **reached, "error": error})
    if left:
        raise click.ClickException(f"{_unfinished(status, left)}; the next pull resumes there")
    if lacks:
        raise click.ClickException(f"{lacks}; pull from a node into another directory to have it")
    if not as_json:
        unsure = "; no majority has confirmed that it is all there is" if unconfirmed else ""
        click.echo(f"the copy ends at {status.position}{unsure}")


def _unfinished(status: PullStatus, left: str) -> str:
    why = "; ".join(filter(None, [printable(left), status.error]))
    return f"the copy ends at {status.position}, which is not everything that was merged ({why})"
