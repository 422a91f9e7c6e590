"""RabbitMQ streams, by rstream: one server or three; what it wrote is never synced."""

import asyncio
import importlib
import importlib.util
import os
import shutil
import subprocess
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

_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one in PATH changes its user
_PENDING_MAX = 10_000
_CREDIT = 50  # chunks that a server sends before it hears from the reader
_CONFIG = """\
listeners.tcp = none
stream.listeners.tcp = none
stream.listeners.ssl.1 = 127.0.0.1:{port}
stream.advertised_host = localhost
stream.advertised_tls_port = {port}
ssl_options.cacertfile = {certs}/ca.pem
ssl_options.certfile = {certs}/n1.pem
ssl_options.keyfile = {certs}/n1.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
cluster_formation.peer_discovery_backend = classic_config
disk_free_limit.absolute = 50MB
"""


class RabbitStreams(LoopSystem):
    """RabbitMQ's log, copied by its own servers; they talk to each other without TLS."""

    name = "RabbitMQ streams"
    durability = "written on a majority, never synced"
    nodes_allowed = (1, 3)

    def lacks(self) -> str:
        """As of `System`."""
        if importlib.util.find_spec("rstream") is None:
            return "pip install rstream"
        return "" if os.path.exists(_SERVER) else "install the package rabbitmq-server"

    @contextmanager
    def running(self, root: str, nodes: int) -> Iterator[Running]:
        """As of `System`."""
        certs = make_certificates(root)
        epmd, *ports = free_ports(1 + 2 * nodes)
        with open(os.path.join(root, ".erlang.cookie"), "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o400)
            file.write("rtbench")
        with open(os.path.join(root, "plugins"), "w", encoding="ascii") as file:
            file.write("[rabbitmq_stream].")
        log, pids = os.path.join(root, "rabbit.log"), []
        with ExitStack() as stack:
            stack.callback(_stop_epmd, epmd)
            for number, port in enumerate(ports[:nodes]):
                environment = _environment(root, certs, epmd, number, ports)
                pids.append(stack.enter_context(process([_SERVER], log, **environment)))
                await_port(port, log)
            addresses = tuple(("localhost", port) for port in ports[:nodes])
            yield Running(Setup(self.name, addresses, root, certs), tuple(pids))

    def sender(self, setup: Setup, case: Case, sessions: Sequence[str]) -> "RabbitSender":
        """As of `System`."""
        return RabbitSender(setup, case, sessions)

    async def make_stream(self, setup: Setup, case: Case) -> None:
        """As of `LoopSystem`."""
        producer = await _producer(setup)
        arguments = {"initial-cluster-size": str(len(setup.addresses))}
        await producer.create_stream(case.topic, arguments)
        await producer.close()

    async def read(self, setup: Setup, case: Case, tallies: Sequence[Tally], go: Signal) -> None:
        """As of `LoopSystem`."""
        rstream = importlib.import_module("rstream")
        done = asyncio.Event()
        left = len(tallies)

        def reader(tally: Tally) -> Any:
            def take(message: Any, _context: Any) -> None:
                nonlocal left
                if tally.take((message,)) and (left := left - 1) == 0:
                    done.set()

            return take

        host, port = setup.addresses[-1]
        consumers = []
        for tally in tallies:
            consumer = rstream.Consumer(
                host, port, ssl_context=client_tls(setup), username="guest", password="guest"
            )
            await consumer.start()
            await consumer.subscribe(
                case.topic, reader(tally), initial_credit=_CREDIT,
                offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST),
            )  # fmt: skip
            consumers.append(consumer)
        go()
        await done.wait()
        for consumer in consumers:
            await consumer.close()


class RabbitSender(LoopSender):
    """Publishes batches, and stops while too many are not confirmed."""

    def __init__(self, setup: Setup, case: Case, sessions: Sequence[str]) -> None:
        super().__init__(sessions)
        self._topic = case.topic
        self._sent, self._safe = 0, 0
        self._more = asyncio.Event()
        self._producer = self.run(_producer(setup))

    async def send(self, session: str, messages: list[bytes]) -> None:
        """As of `LoopSender`."""
        await self._await(_PENDING_MAX)
        self._sent += len(messages)
        await self._producer.send_batch(
            self._topic, messages, publisher_name=session, on_publish_confirm=self._note
        )

    def _note(self, _status: Any) -> None:
        self._safe += 1
        self._more.set()

    async def _await(self, pending: int) -> None:
        while self._sent - self._safe > pending:
            self._more.clear()
            await self._more.wait()

    async def confirmed(self) -> None:
        """As of `LoopSender`."""
        await self._await(0)

    async def closed(self) -> None:
        """As of `LoopSender`."""
        await self._producer.close()


def _environment(root: str, certs: str, epmd: int, number: int, ports: list[int]) -> dict[str, str]:
    nodes = len(ports) // 2
    config = os.path.join(root, f"n{number}.conf")
    with open(config, "w", encoding="utf-8") as file:
        file.write(_CONFIG.format(port=ports[number], certs=certs))
        file.writelines(
            f"cluster_formation.classic_config.nodes.{each + 1} = b{each}@localhost\n"
            for each in range(nodes)
        )
    return {
        "HOME": root, "ERL_EPMD_PORT": str(epmd), "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"b{number}@localhost",
        "RABBITMQ_DIST_PORT": str(ports[nodes + number]),
        "RABBITMQ_MNESIA_BASE": os.path.join(root, f"data{number}"),
        "RABBITMQ_LOG_BASE": os.path.join(root, f"log{number}"),
        "RABBITMQ_CONFIG_FILE": config,
        "RABBITMQ_ENABLED_PLUGINS_FILE": os.path.join(root, "plugins"),
    }  # fmt: skip


def _stop_epmd(port: int) -> None:
    """Erlang's name server outlives the servers that started it."""
    if epmd := shutil.which("epmd"):
        subprocess.run([epmd, "-port", str(port), "-kill"], capture_output=True, check=False)


async def _producer(setup: Setup) -> Any:
    host, port = setup.addresses[0]
    rstream = importlib.import_module("rstream")
    producer = rstream.Producer(
        host, port, ssl_context=client_tls(setup), username="guest", password="guest"
    )
    await producer.start()
    return producer
