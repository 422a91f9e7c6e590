"""LinkSettings: which stream a client serves, and how it reaches the stream's nodes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import click

from rt.cli.options import Seconds
from rt.cli.stop_signals import StopSignals
from rt.names import parse_peer, parse_stream
from rt.net.admin import ask_any
from rt.net.certificates import certificate_files, check_own
from rt.net.identity import CertificateRole
from rt.net.tls import Contexts, client_context
from rt.node.settings import PORT, parse_address

_POLL_S: Final = 0.5
_POLL_END_S: Final = 0.05  # for a command that ends by itself


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """The settings that every client of a cluster shares."""

    root: str = field(default="rt-data", metadata={"help": "Directory that holds the stream."})
    stream: str = field(default="stream", metadata={"help": "Name of the stream."})
    nodes: tuple[str, ...] = field(
        default=(f"localhost:{PORT}",), metadata={"help": "Address of a node; repeat for each."}
    )
    certs: str = field(
        default="certs", metadata={"help": "Directory of ca.pem, NAME.pem and NAME.key."}
    )
    identity: str = field(
        default="client", metadata={"help": "NAME of the certificate to present."}
    )

    def __post_init__(self) -> None:
        parse_stream(self.stream)
        parse_peer(self.identity)
        for node in self.nodes:
            parse_address(node, "nodes")

    def contexts(self, *roles: CertificateRole) -> Contexts:
        """Return the TLS context, which is reloaded when the certificate is renewed.

        Args:
            roles: The roles of which our certificate must have one; any role if none is given.

        Raises:
            Misuse: The certificate is missing, expired, or has another role.
        """
        files = certificate_files(self.certs, self.identity)
        contexts = Contexts(files, client_context)
        check_own(files, roles or tuple(CertificateRole))
        return contexts

    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of each node; a node that is named twice is returned once."""
        return list(dict.fromkeys(parse_address(node) for node in self.nodes))

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask the nodes in turn until one does it; errors as of `rt.net.admin.ask_any`."""
        return ask_any(self.addresses(), self.contexts(), request)


def timeout_option(goes_with: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option `--timeout` of a command that ends by itself with the flag `goes_with`."""
    return click.option(
        "--timeout", "timeout_s", type=Seconds(), metavar="S",
        help=f"With {goes_with}: give up after this many seconds, with exit code 1.",
    )  # fmt: skip


def wait_until(
    signals: StopSignals, done: Callable[[], bool], timeout_s: float | None, *, ends: bool
) -> bool:
    """Wait for a signal, for `done`, or for the timeout; return whether it was done.

    A busy publisher can undo it a moment later, so use this result instead of asking `done` again.

    Args:
        signals: Any of them ends the wait.
        done: Asked at every poll.
        timeout_s: How long to wait; None waits without limit.
        ends: Whether the command ends by itself, and is polled more often for that.
    """
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    poll_s = _POLL_END_S if ends else _POLL_S
    while not (is_done := done()) and time.monotonic() < deadline and signals.wait(poll_s):
        pass
    return is_done
