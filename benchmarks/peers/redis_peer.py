"""Redis Streams, by redis-py: one server, synced every second or before each answer."""

import importlib
import importlib.util
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.system import (
    Running,
    Signal,
    await_port,
    free_ports,
    make_certificates,
    process,
)
from benchmarks.peers.work import Case, Pace, Setup, Tally, chunks, payload

_READ_MESSAGES = 1000


class Redis:
    """A stream of one server, in its append-only file.

    Args:
        appendfsync: `everysec` or `always`.
    """

    nodes_allowed = (1,)

    def __init__(self, appendfsync: str) -> None:
        self.name = f"Redis Streams, {appendfsync}"
        self._appendfsync = appendfsync
        self.durability = (
            "synced on one server" if appendfsync == "always" else
            "written on one server, synced every second"
        )  # fmt: skip

    def lacks(self) -> str:
        """As of `System`."""
        if importlib.util.find_spec("redis") is None:
            return "pip install redis"
        return "" if shutil.which("redis-server") else "install the package redis-server"

    @contextmanager
    def running(self, root: str, nodes: int) -> Iterator[Running]:
        """As of `System`."""
        certs, log = make_certificates(root), os.path.join(root, "redis.log")
        (port,) = free_ports(nodes)
        command = [
            "redis-server", "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1",
            "--tls-cert-file", os.path.join(certs, "n1.pem"),
            "--tls-key-file", os.path.join(certs, "n1.key"),
            "--tls-ca-cert-file", os.path.join(certs, "ca.pem"), "--dir", root,
            "--appendonly", "yes", "--appendfsync", self._appendfsync, "--save", "",
            "--auto-aof-rewrite-percentage", "0",
        ]  # fmt: skip
        with process(command, log) as pid:
            await_port(port, log)
            yield Running(Setup(self.name, (("localhost", port),), root, certs), (pid,))

    def prepare(self, setup: Setup, case: Case) -> None:
        """As of `System`; a stream is made by the first message."""

    def sender(self, setup: Setup, case: Case, sessions: Sequence[str]) -> "RedisSender":
        """As of `System`."""
        return RedisSender(setup, case, sessions)

    def receive(self, setup: Setup, case: Case, tallies: Sequence[Tally], go: Signal) -> None:
        """As of `System`."""
        threads = [
            threading.Thread(target=_receive, args=(_connect(setup), case, tally), daemon=True)
            for tally in tallies
        ]
        for each in threads:
            each.start()
        go()
        for each in threads:
            each.join()


class RedisSender:
    """Appends, as many at once as there are to send."""

    def __init__(self, setup: Setup, case: Case, sessions: Sequence[str]) -> None:
        self._topic = case.topic
        self._sessions = sessions
        self._client = _connect(setup)

    def _send(self, messages: list[bytes]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for each in messages:
            pipe.xadd(self._topic, {b"p": each})
        pipe.execute()

    def warm(self) -> None:
        """As of `Sender`."""
        self._send([payload(8, 0)] * len(self._sessions))

    def flood(self, case: Case) -> None:
        """As of `Sender`."""
        for chunk in chunks(case.size, case.each * len(self._sessions)):
            self._send(chunk)

    def pace(self, case: Case, rate: float) -> bool:
        """As of `Sender`."""
        pace = Pace(case.each * len(self._sessions), rate)
        while number := pace.take():
            self._send([payload(case.size, time.time_ns())] * number)
            time.sleep(max(0.0, pace.wait_s()))
        return not pace.is_late

    def confirm(self) -> None:
        """As of `Sender`; each answer was waited for."""

    def close(self) -> None:
        """As of `Sender`."""
        self._client.close()


def _connect(setup: Setup) -> Any:
    redis = importlib.import_module("redis")
    host, port = setup.addresses[0]
    return redis.Redis(
        host=host, port=port, ssl=True, ssl_ca_certs=os.path.join(setup.certs, "ca.pem"),
        ssl_certfile=os.path.join(setup.certs, "client.pem"),
        ssl_keyfile=os.path.join(setup.certs, "client.key"),
    )  # fmt: skip


def _receive(client: Any, case: Case, tally: Tally) -> None:
    place, is_done = b"0", False
    while not is_done:
        for _, entries in client.xread({case.topic: place}, _READ_MESSAGES, block=1000):
            place = entries[-1][0]
            is_done = tally.take([fields[b"p"] for _, fields in entries])
