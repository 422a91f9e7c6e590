"""A whole stream over mutual TLS on loopback: node, publisher and subscriber, a process each."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from statistics import median

from benchmarks.bare import latencies, node
from benchmarks.log import directory
from benchmarks.report import Row
from replicator.pull.client import PullClient
from replicator.push.client import PushClient
from rt import Fsync, Publisher, Subscriber, WriterSettings
from rt.cli.cluster.up import start_nodes
from rt.cli.process.children import Child, Children
from rt.net.addresses import parse_address
from rt.net.authority.certificates import certificate_files
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import Place, init_local_cluster

STREAM = "bench"
Address = tuple[str, int]
SPAWN = multiprocessing.get_context("spawn")
_TURNS = 3  # of ours and of the limit program, so that a slow phase of the machine meets both


@contextmanager
def nodes(root: str, count: int, more: str = "") -> Iterator[tuple[list[Place], list[Child]]]:
    """Run a process for each node of a cluster; yield their addresses and processes.

    Args:
        root: directory of everything.
        count: the number of nodes.
        more: lines of each node's settings, beside the usual ones.
    """
    places = init_local_cluster(root, STREAM, count)
    for place in places:
        with open(place.config, "a", encoding="utf-8") as file:
            file.write(more)
    with Children() as children:
        yield places, start_nodes(children, root, STREAM, places)


def publish(root: str, places: list[Address], plan: dict[str, float], ready: Connection) -> None:
    """Publish by plan and push from the same process; the target of a child process."""
    data, certs = os.path.join(root, "pub"), os.path.join(root, "certs")
    contexts = Contexts(certificate_files(certs, "publisher"), client_context)
    writer = WriterSettings(fsync=Fsync.INTERVAL)
    with Publisher(data, stream=STREAM, session="p1", writer=writer) as publisher:
        push = PushClient(data, STREAM, places, contexts)
        push.start()
        publisher.publish(b"\xff" * 8)
        publisher.flush("merged")
        ready.send(publisher.next_sequence)
        ready.recv()
        size, count, rate = int(plan["size"]), int(plan["count"]), plan["rate"]
        if rate:
            _paced(publisher, bytes(size), count, rate)
        else:
            batch = [bytes(size)] * 1000
            for _ in range(count // len(batch)):
                publisher.publish_many(batch)
        publisher.flush("merged", timeout_s=120)
        ready.send("done")
        push.stop()


def _paced(publisher: Publisher, payload: bytes, count: int, rate: float) -> None:
    began = time.perf_counter()
    for number in range(count):
        wait = began + number / rate - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        publisher.publish(payload)


def run(
    root: str, size: int, count: int, rate: float, members: int = 1, *, more: str = ""
) -> dict[str, float]:
    """Run one stream through this many nodes; return its figures.

    Args:
        root: directory of everything.
        size: the size of a message, in bytes.
        count: the number of messages.
        rate: messages a second; 0 is as many as go.
        members: how many nodes.
        more: lines of each node's settings, beside the usual ones.
    """
    with nodes(root, members, more) as (places, running):
        addresses = [parse_address(place.address) for place in places]
        here, there = SPAWN.Pipe()
        plan = {"size": size, "count": count, "rate": rate}
        process = SPAWN.Process(target=publish, args=(root, addresses, plan, there))
        process.start()
        contexts = Contexts(
            certificate_files(os.path.join(root, "certs"), "subscriber"), client_context
        )
        pull = PullClient(os.path.join(root, "sub"), STREAM, addresses, contexts)
        pull.start()
        with Subscriber(os.path.join(root, "sub"), stream=STREAM) as subscriber:
            here.recv()
            began_s = processor_s(running)
            here.send("go")
            figures = _receive(subscriber, count, size, paced=bool(rate))
            figures["nodes_us"] = (processor_s(running) - began_s) / count * 1e6
        here.recv()
        process.join()
        pull.stop()
    return figures


def processor_s(running: list[Child]) -> float:
    """Return the processor time that these processes have taken so far, in seconds."""
    # The id of another process's clock, as Linux makes it; /proc counts hundredths of a second.
    return sum(time.clock_gettime((~child.pid << 3) | 2) for child in running)


def _receive(subscriber: Subscriber, count: int, size: int, *, paced: bool) -> dict[str, float]:
    delays: list[int] = []
    received, began = 0, time.perf_counter()
    for batch in subscriber.batches():
        now = time.time_ns()
        if not received:
            began = time.perf_counter()
        received += len(batch)
        if paced:
            delays += [now - sent for sent in batch.columns.times[batch.first :].tolist()]
        else:
            batch.columns.payloads()
        if received > count:
            break
    elapsed = time.perf_counter() - began
    figures = {"messages_s": count / elapsed, "mb_s": count * size / elapsed / 1e6}
    if paced:
        delays = sorted(delays[1:])
        figures["p50_ms"] = delays[len(delays) // 2] / 1e6
        figures["p99_ms"] = delays[int(len(delays) * 0.99)] / 1e6
    return figures


def _beside_the_limit(count: int) -> tuple[list[float], list[float]]:
    """Delays of one node and of the limit program with one sync, in turn: p50 and p99, in ms."""
    ours, bare = [], []
    for _ in range(_TURNS):
        with directory() as root:
            paced = run(root, 100, count, 1000)
        ours.append((paced["p50_ms"], paced["p99_ms"]))
        delays = latencies(SPAWN, 100, count, 1000)
        bare.append((delays[count // 2] / 1e6, delays[int(count * 0.99)] / 1e6))
    return [median(each) for each in zip(*ours, strict=True)], [
        median(each) for each in zip(*bare, strict=True)
    ]


def rows(quick: bool) -> list[Row]:
    """Latency at 1,000 messages a second, and throughput of small and large messages."""
    count = 3000 if quick else 20_000
    paced, bare = _beside_the_limit(count // _TURNS)
    deciding = latencies(SPAWN, 100, count, 1000, work=partial(node, decides=True))
    with directory() as root:
        small = run(root, 100, 1_000_000 if quick else 10_000_000, 0)
    with directory() as root:
        large = run(root, 1024, 200_000 if quick else 1_000_000, 0)
    return [
        Row(
            "append to delivery p50, 1,000/s",
            paced[0],
            "ms",
            1.4,
            bare[0],
            at_most=True,
            is_ratio=True,
        ),
        Row("append to delivery p99, 1,000/s", paced[1], "ms", 3.0, bare[1], at_most=True),
        Row("the limit program p50, decisions synced too", deciding[count // 2] / 1e6, "ms", 0),
        Row("delivered, one node, 100 B", small["messages_s"], "messages/s", 800_000),
        Row("delivered, one node, 1 KiB", large["mb_s"], "MB/s", 120),
    ]
