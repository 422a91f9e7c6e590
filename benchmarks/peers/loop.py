"""Loop: an event loop that wakes within microseconds, for clients of peers that use asyncio."""

import asyncio
import logging
import os
import selectors
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any

from benchmarks.peers.system import Signal
from benchmarks.peers.work import Case, Pace, Setup, Tally, chunks, payload

# it warns of each connection by TLS that a server closes
logging.getLogger("asyncio").setLevel(logging.ERROR)


class LoopSystem(ABC):
    """A system whose client is asynchronous."""

    def prepare(self, setup: Setup, case: Case) -> None:
        """As of `System`."""
        run_loop(self.make_stream(setup, case))

    def receive(self, setup: Setup, case: Case, tallies: Sequence[Tally], go: Signal) -> None:
        """As of `System`."""
        run_loop(self.read(setup, case, tallies, go))

    @abstractmethod
    async def make_stream(self, setup: Setup, case: Case) -> None:
        """Make what a case sends to."""

    @abstractmethod
    async def read(self, setup: Setup, case: Case, tallies: Sequence[Tally], go: Signal) -> None:
        """Receive for each tally until it has all; say `go` once all would receive."""


class LoopSender(ABC):
    """A sender whose client is asynchronous."""

    def __init__(self, sessions: Sequence[str]) -> None:
        self.sessions = sessions
        # epoll counts in milliseconds, select in microseconds
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run on the sender's loop."""
        return self._loop.run_until_complete(work)

    @abstractmethod
    async def send(self, session: str, messages: list[bytes]) -> None:
        """Send without waiting for confirmations, as far as the client allows."""

    @abstractmethod
    async def confirmed(self) -> None:
        """Wait until everything is confirmed."""

    @abstractmethod
    async def closed(self) -> None:
        """Hang up."""

    def warm(self) -> None:
        """As of `Sender`."""
        self.run(self._warm())

    async def _warm(self) -> None:
        for session in self.sessions:
            await self.send(session, [payload(8, 0)])
        await self.confirmed()

    def flood(self, case: Case) -> None:
        """As of `Sender`."""
        self.run(self._flood(case))

    async def _flood(self, case: Case) -> None:
        for session in self.sessions:
            for chunk in chunks(case.size, case.each):
                await self.send(session, chunk)

    def pace(self, case: Case, rate: float) -> bool:
        """As of `Sender`."""
        return bool(self.run(self._pace(case, rate)))

    async def _pace(self, case: Case, rate: float) -> bool:
        pace = Pace(case.each * len(self.sessions), rate)
        turn = 0
        while number := pace.take():
            session = self.sessions[turn % len(self.sessions)]
            await self.send(session, [payload(case.size, time.time_ns())] * number)
            turn += 1
            await asyncio.sleep(max(0.0, pace.wait_s()))
        return not pace.is_late

    def confirm(self) -> None:
        """As of `Sender`."""
        self.run(self.confirmed())

    def close(self) -> None:
        """As of `Sender`."""
        self.run(self.closed())
        self._loop.close()


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run until complete, on a loop like a sender's."""
    with asyncio.Runner(
        loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
    ) as runner:
        runner.run(work)


def client_tls(setup: Setup) -> ssl.SSLContext:
    """Return what a client shows and trusts."""
    context = ssl.create_default_context(cafile=os.path.join(setup.certs, "ca.pem"))
    context.load_cert_chain(
        os.path.join(setup.certs, "client.pem"), os.path.join(setup.certs, "client.key")
    )
    return context
