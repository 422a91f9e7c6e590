"""What commands that connect to nodes share: their settings, and how they wait."""

import logging
import os
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from rt.cli.common.console import note
from rt.cli.common.options import (
    Command,
    Duration,
    click_options,
    config_path,
    json_option,
    reloaded,
)
from rt.cli.common.web import shown_over_http
from rt.cli.process.service_manager import ServiceManager
from rt.cli.process.stop_signals import StopSignals
from rt.client.readers.settings import ConnectionSettings
from rt.config.settings import SettingsType, changed
from rt.errors import Misuse, Refused, RtError, spoken
from rt.names import stream_directory
from rt.net.addresses import Address
from rt.net.admin import PASSING, NoLeader
from rt.net.authority.identity import CertificateRole
from rt.net.authority.successions import Successions
from rt.net.contexts import Contexts
from rt.net.known_nodes import KnownNodes
from rt.node.settings.http import HttpSettings
from rt.web.serving.recent import RecentEvents
from rt.web.serving.server import WebServer

if TYPE_CHECKING:
    from rt.client.site_watch import SiteWatch
    from rt.web.serving.site import Site

_log: Final = logging.getLogger("rt.cli")
LINK_LISTED: Final = ("stream", "nodes", "certs", "identity")
SERVICE_LISTED: Final = ("root", *LINK_LISTED, "http")  # of `ServiceSettings`
_KNOWN: Final = "rt.known-nodes"  # key under which a command keeps its `KnownNodes`
REPORT_S: Final = 5.0  # the least time between two reports of what a command waits for
FIRST_S: Final = 1.0  # the time until the first report; most waits are shorter
# how long to wait for connections to close when none was made: a dial may hang for seconds
STOP_S: Final = 0.2
_POLL_S: Final = 0.5
_POLL_END_S: Final = 0.05  # poll interval of a command that ends by itself


@dataclass(frozen=True, slots=True)
class ServiceSettings(ConnectionSettings):
    """Settings of a long-running client: how to reach the nodes, and where to serve its page."""

    web: HttpSettings = field(default_factory=HttpSettings)


@dataclass(frozen=True, slots=True)
class _Asking(ConnectionSettings):
    """Settings of a command that asks nodes, and tells them if another log continues theirs.

    Attributes:
        successions: the statements, recorded by earlier commands and clients, of which log
            continues another; None if there is no place to record them.
    """

    successions: Successions | None = None

    def contexts(self, *roles: CertificateRole, successions: Successions | None = None) -> Contexts:
        return ConnectionSettings.contexts(
            self, *roles, successions=successions or self.successions
        )


def link_options(
    table: str, json: str = "", listed: Container[str] = LINK_LISTED, *, follows: bool = True
) -> Callable[[Command], Callable[..., Any]]:
    """Return a decorator that adds the options with which a command reaches the nodes.

    Use it for commands that only ask nodes, and do not read a stream's files.

    Args:
        table: the command's table in the configuration file.
        json: what the command's option `--json` prints; "" for no such option.
        listed: the settings that the command's help lists.
        follows: whether the command asks the cluster that continues the log, if one is known,
            instead of the configured cluster.
    """

    def decorate(command: Command) -> Callable[..., Any]:
        command = json_option(json)(command) if json else command

        @wraps(command)
        def run(*args: Any, settings: ConnectionSettings, **parameters: Any) -> Any:
            known = click.get_current_context().meta[_KNOWN] = known_nodes(settings)
            heard = known.successions
            if not follows:
                known.successions = None
                known.refresh()
            texts = [f"{host}:{port}" for host, port in known.addresses]
            nodes = tuple(dict.fromkeys([*texts, *settings.nodes]))
            has_place = config_path() or os.path.isdir(
                stream_directory(settings.root, settings.stream)
            )
            asking = _Asking(
                settings.root, settings.stream, nodes, settings.certs, settings.identity,
                heard if has_place else None,
            )  # fmt: skip
            return command(*args, settings=asking, **parameters)

        return click_options(ConnectionSettings, table, listed)(run)

    return decorate


def known_nodes(settings: ConnectionSettings) -> KnownNodes:
    """Return the nodes known from the settings and from earlier commands.

    They are recorded beside the command's configuration file or, if there is none, beside the
    stream's data.
    """
    return settings.known_nodes(config_path())


def remember_nodes(voters: Sequence[Address]) -> None:
    """Record the voting members beside the running command's configuration file, if it has one."""
    context = click.get_current_context(silent=True)
    known = None if context is None else context.meta.get(_KNOWN)
    if isinstance(known, KnownNodes) and config_path():
        known.adopt(voters)


def ask_latest_or_any(settings: ConnectionSettings, request: dict[str, Any]) -> dict[str, Any]:
    """Return the leader's answer to a request.

    If there is no leader, return any node's answer, and note on stderr that it may be old.
    """
    try:
        return settings.ask_latest(request)
    except (NoLeader, Refused) as error:
        if isinstance(error, Refused) and error.code not in PASSING:
            raise
        note(f"{error}; what follows is as one node knew it last")
        return settings.ask(request)


def timeout_option(goes_with: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option `--timeout` for a command that ends by itself if `goes_with` is given."""
    return click.option(
        "--timeout", "timeout_s", type=Duration(),
        help=f"With {goes_with}: give up after this long, with exit code 1.",
    )  # fmt: skip


@contextmanager
def attended(
    settings: ServiceSettings, contexts: Contexts, signals: StopSignals, watch: "SiteWatch",
    site_of: Callable[[RecentEvents], "Site"], *, known: KnownNodes, follow: Callable[[], None],
) -> Iterator[Callable[[], None]]:  # fmt: skip
    """Watch a running pusher or puller during the block, and serve its page if settings ask for it.

    Notifies the service manager that the program is ready and, after the block, that it stops.

    Args:
        settings: The settings that the command was started with.
        contexts: TLS contexts of the client's connections; a reload applies to new connections.
        signals: SIGHUP reloads certificates and nodes; other changed settings need a restart.
        watch: Checks the client regularly; it is started and stopped here.
        site_of: Makes the site that is served over HTTP.
        known: The known nodes; a reload updates them with the nodes of the settings.
        follow: Called after a reload has changed `known`.

    Yields:
        A function that the main loop has to call at each turn.
    """

    def load() -> ServiceSettings:
        contexts.current()
        if contexts.problem:
            raise Misuse(contexts.problem)
        return reloaded(ServiceSettings)

    def apply(now: ServiceSettings) -> list[str]:
        known.configure(now.addresses())
        follow()
        return [each for each in changed(settings, now) if each != "nodes"]

    manager = ServiceManager()
    watch.start()
    try:
        with shown_over_http(settings.web, site_of) as web:
            yield manager.attend(
                signals,
                lambda: reload(load, web, apply, "certificates and nodes were"),
                watch.stuck,
            )
    finally:
        watch.stop()
    manager.stopping()


def reload(
    load: Callable[[], SettingsType], web: WebServer | None,
    apply: Callable[[SettingsType], list[str]], what: str,
) -> None:  # fmt: skip
    """Load settings and certificates again, and apply them; log what was done, or why it failed.

    Args:
        load: Loads the settings; if it fails, the old ones stay in use.
        web: The HTTP server, whose certificate is loaded again; None if there is none.
        apply: Applies the settings; returns the names of those that need a restart.
        what: The beginning of the sentence for the log, such as "certificates were".
    """
    try:
        settings = load()
        if web is not None:
            web.reload()
        left = apply(settings)
    except (RtError, OSError, click.UsageError) as error:
        _log.error("nothing was loaded again: %s", spoken(error))
        return
    _log.info("%s loaded again", what, extra={"event": "reload"})
    if left:
        _log.warning(
            "changed and not in use until the program is started again: %s", ", ".join(left)
        )


class LongWait:
    """Polls whether a wait is over, and reports what is missing if it takes long."""

    def __init__(self, is_over: Callable[[], bool], left: Callable[[], str]) -> None:
        """Begin to wait.

        Args:
            is_over: Returns whether the wait is over.
            left: Returns a sentence about what is missing; printed when it changes.
        """
        self._is_over = is_over
        self._left = left
        self._said = ""
        self._next_s = time.monotonic() + FIRST_S

    def is_over(self) -> bool:
        """Return whether the wait is over; report what is missing if it has taken long."""
        is_over = self._is_over()
        if not is_over and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + REPORT_S
            left = self._left()
            if left != self._said:
                self._said = left
                note(left)
        return is_over


def wait_until(
    signals: StopSignals, done: Callable[[], bool], timeout_s: float | None, *, ends: bool,
    turn: Callable[[], None] = lambda: None,
) -> bool:  # fmt: skip
    """Wait until `done` returns True, a signal arrives or time runs out; return the last `done()`.

    Use the result instead of calling `done` again: a busy publisher may have new work by then.

    Args:
        signals: Any of them ends the wait.
        done: Called at each poll; returns whether the wait is over.
        timeout_s: How long to wait; None waits without limit.
        ends: Whether the command ends by itself; if so, `done` is polled more often.
        turn: Called at each poll.
    """
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    poll_s = _POLL_END_S if ends else _POLL_S
    while not (is_done := done()) and time.monotonic() < deadline and signals.wait(poll_s):
        turn()
    return is_done


@contextmanager
def interrupting(signals: StopSignals) -> Iterator[None]:
    """After ctrl-C, raise `KeyboardInterrupt` in place of the block's `click.ClickException`.

    The program then exits as interrupted. The error's message is not shown, since the command has
    already reported what it left undone.
    """
    try:
        yield
    except click.ClickException:
        signals.raise_interrupt()
        raise
