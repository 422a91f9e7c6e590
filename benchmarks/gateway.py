"""The gateway: appends over HTTP, readers that wait, and what they take of memory."""

import http.client
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.report import Row
from rt.cli.cluster.up import start_nodes
from rt.cli.process.children import Children
from rt.node.founding.cluster_files import init_local_cluster

STREAM: Final = "gateway"
_CLIENTS: Final = 8
_BATCH: Final = 100
_READERS: Final = 500
_JSON: Final = {"Content-Type": "application/json"}


def rows(quick: bool) -> list[Row]:
    """Three nodes and a gateway, all processes of their own, on this machine."""
    with tempfile.TemporaryDirectory() as root, Children() as children:
        start_nodes(children, root, STREAM, init_local_cluster(root, STREAM, 3))
        gateway = children.start(
            "gateway", "gateway", "--config", f"{root}/clients.toml", "--root", f"{root}/edge",
            "--listen", "127.0.0.1:0", "--append",
        )  # fmt: skip
        address = gateway.first_line(r"streams at http://(\S+)/v1/stream/")[1]
        _rate(address, 5, _BATCH)  # opens the session, and warms up
        before = _resident_mib(gateway.pid)
        batched = _rate(address, 20 if quick else 100, _BATCH)
        grown = _resident_mib(gateway.pid) - before
        alone = _lone_ms(address, 100 if quick else 400)
        heard_ms = _heard_ms(address)
    return [
        Row(f"1 KiB appends, {_CLIENTS} clients, arrays of {_BATCH}, merged", batched, "/s", 5000),
        Row("a lone 1 KiB append, merged, median", alone, "ms", 0),
        Row(f"an append until {_READERS} open event streams have it", heard_ms, "ms", 0),
        Row("memory of the gateway, grown by these appends", grown, "MiB", 16, at_most=True),
    ]  # fmt: skip


@contextmanager
def _connected(address: str) -> Iterator[http.client.HTTPConnection]:
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        yield connection


def _ask(connection: http.client.HTTPConnection, method: str, name: str, body: str = "") -> None:
    connection.request(method, f"/v1/stream/{name}", body, _JSON)
    answer = connection.getresponse()
    said = answer.read()
    if answer.status >= 300:
        raise SystemExit(f"{method} {name}: {answer.status} {said.decode()}")


def _rate(address: str, requests: int, batch: int) -> float:
    """Return how many messages a second are appended, each client to a stream of its own."""
    body = json.dumps([{"value": "x" * 1010}] * batch)

    def append(name: str) -> None:
        with _connected(address) as connection:
            _ask(connection, "PUT", name)
            for _ in range(requests):
                _ask(connection, "POST", name, body)

    threads = [threading.Thread(target=append, args=[f"s{number}"]) for number in range(_CLIENTS)]
    began_s = time.perf_counter()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return requests * batch * _CLIENTS / (time.perf_counter() - began_s)


def _lone_ms(address: str, count: int) -> float:
    took: list[float] = []
    with _connected(address) as connection:
        _ask(connection, "PUT", "lone")
        for _ in range(count):
            began_s = time.perf_counter()
            _ask(connection, "POST", "lone", json.dumps({"value": "x" * 1010}))
            took.append(1000 * (time.perf_counter() - began_s))
    return sorted(took)[count // 2]


def _heard_ms(address: str) -> float:
    """Return how long it takes until every reader has one append."""
    with _connected(address) as connection:
        _ask(connection, "PUT", "many")
        readers = [http.client.HTTPConnection(address, timeout=60) for _ in range(_READERS)]
        answers = []
        for each in readers:
            each.request("GET", "/v1/stream/many?offset=now&live=sse")
            answers.append(each.getresponse())
            _until(answers[-1], b"upToDate")
        began_s = time.perf_counter()
        _ask(connection, "POST", "many", '"hello"')
        for answer in answers:
            _until(answer, b"hello")
        took_s = time.perf_counter() - began_s
        for each in readers:
            each.close()
    return 1000 * took_s


def _until(answer: http.client.HTTPResponse, wanted: bytes) -> None:
    while wanted not in (line := answer.readline()):
        if not line:
            raise SystemExit(f"an event stream ended before it had {wanted.decode()}")


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
