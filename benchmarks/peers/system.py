"""System: something that keeps messages, which can be started, sent to and read from here."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, NamedTuple, Protocol

from benchmarks.peers.work import Case, Setup, Tally
from rt.net.authority.certificates import init_authority, issue
from rt.net.authority.identity import CertificateRole

_START_S: Final = 90.0
_STOP_S: Final = 20.0


class Running(NamedTuple):
    """A system that runs, and the processes whose processor time is its own."""

    setup: Setup
    pids: tuple[int, ...]


class Sender(Protocol):
    """Publishes for some sessions, in one process."""

    def warm(self) -> None:
        """Send one message without a time for each session, and wait until it is safe."""

    def flood(self, case: Case) -> None:
        """Send each session's messages, as fast as they are taken."""

    def pace(self, case: Case, rate: float) -> bool:
        """Send them at this rate together; whether it kept up."""

    def confirm(self) -> None:
        """Wait until everything that was sent is safe by the system's own word."""

    def close(self) -> None:
        """Hang up."""


class System(Protocol):
    """One system with one way of keeping messages."""

    @property
    def name(self) -> str:
        """For tables."""

    @property
    def durability(self) -> str:
        """What a confirmed message is."""

    @property
    def nodes_allowed(self) -> tuple[int, ...]:
        """How many nodes it may have."""

    def lacks(self) -> str:
        """What is missing on this machine to run it; empty: nothing."""

    def running(self, root: str, nodes: int) -> AbstractContextManager[Running]:
        """Run it with this many nodes, with TLS, in a new directory."""

    def prepare(self, setup: Setup, case: Case) -> None:
        """Make what a case sends to."""

    def sender(self, setup: Setup, case: Case, sessions: Sequence[str]) -> Sender:
        """Connect a process that publishes."""

    def receive(self, setup: Setup, case: Case, tallies: Sequence[Tally], go: "Signal") -> None:
        """Receive for each tally until it has all; say `go` once all would receive."""


class Signal(Protocol):
    """Tells the parent that a process is ready."""

    def __call__(self) -> None:
        """Say it."""


def make_certificates(root: str) -> str:
    """Make an authority and certificates `n1` (server) and `client`; return their directory."""
    certs = os.path.join(root, "certs")
    init_authority(certs)
    issue(certs, "n1", CertificateRole.NODE, hosts=("localhost", "127.0.0.1"))
    issue(certs, "client", CertificateRole.OPERATOR)
    return certs


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on now."""
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in socks]
    for each in socks:
        each.close()
    return ports


@contextmanager
def process(command: Sequence[str], log: str, **environment: str) -> Iterator[int]:
    """Run a server until the block ends; yield its process id. What it says goes to a file."""
    with open(log, "ab") as file:
        child = subprocess.Popen(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
            env={**os.environ, **environment}, start_new_session=True,
        )  # fmt: skip
    try:
        yield child.pid
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def await_port(port: int, log: str) -> None:
    """Wait until something listens; otherwise raise with the end of the server's log."""
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                with open(log, encoding="utf-8", errors="replace") as file:
                    raise TimeoutError(f"no server came up: {file.read()[-500:]}") from None
            time.sleep(0.1)
        else:
            return
