"""Connected programs: readers that divide a stream, takeovers, confirmed messages, their delay."""

import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rt
from benchmarks import takeovers
from benchmarks.log import directory
from benchmarks.report import Row
from benchmarks.stream import STREAM
from rt.client.client import Client, connect
from rt.config.settings import load
from rt.node.founding.cluster_files import init_local_cluster
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings

SPAWN = multiprocessing.get_context("spawn")
HANDLER_S = 0.001
THREADS = 32
ROUNDS = 8
TURNS = 3  # of what takes a second: other programs disturb it
CONFIRMED = 20_000  # futures are open at once; with more the garbage collector is measured
PAYLOAD = bytes(100)
BATCH = 100
WAIT_S = 120.0


def rows(quick: bool) -> list[Row]:
    """All of them."""
    count = 4_000 if quick else 12_000
    with cluster() as config:
        published(config, "work", count)
        ratios = {}
        for how in ("group", "shares"):
            ratios[how] = statistics.median(
                four / alone
                for alone, four in (
                    [working(config, how, members, turn, count) for members in (1, 4)]
                    for turn in range(TURNS)
                )
            )
        times = 3 if quick else 8  # with the groups before, no more names than one owner may have
        cursor_s, group_s = takeovers.cursor_s(config, times), takeovers.group_s(config, times)
        turns = TURNS if quick else 3 * TURNS
        confirmed_s = statistics.median(confirming(config, CONFIRMED) for _ in range(turns))
        cost = limited(config, 50_000 if quick else 200_000)
        merged_ms, delivered_ms = delays(config, 500 if quick else 3_000)
    return [
        Row("client: 4 members of a group, of one, 1 ms handlers", ratios["group"], "x", 3.5),
        Row("client: 4 shares of the keys, of one, 1 ms handlers", ratios["shares"], "x", 3.5),
        Row("client: slowest takeover of a cursor", cursor_s, "s", 1.0, at_most=True),
        Row("client: slowest takeover of a member's range", group_s, "s", 1.0, at_most=True),
        Row("client: confirmed as merged, 32 threads", confirmed_s, "messages/s", 20_000),
        Row("client: cost of publishing with limits, of without", cost, "x", 1.05, at_most=True),
        Row("client: merged p50, of delivery", merged_ms / delivered_ms, "x", 1.3, at_most=True),
        Row("client: merged p50", merged_ms, "ms", 0),
        Row("client: delivered p50", delivered_ms, "ms", 0),
    ]


@contextmanager
def cluster() -> Iterator[str]:
    """Run three nodes, each in a process of its own; give the path of `clients.toml`."""
    with directory() as root:
        places = init_local_cluster(root, STREAM, 3)
        stop = SPAWN.Event()
        processes = [SPAWN.Process(target=_node, args=(each.config, stop)) for each in places]
        for process in processes:
            process.start()
        try:
            yield os.path.join(root, "clients.toml")
        finally:
            stop.set()
            for process in processes:
                process.join()


def _node(config: str, stop: Any) -> None:
    node = Node(load(NodeSettings, config, "node", {}, {"reserve": 0}), founding=True)
    node.start()
    stop.wait()
    node.stop()


def _client(config: str, name: str) -> Client:
    return connect(config, root=os.path.join(os.path.dirname(config), f"client-{name}"))


def published(config: str, session: str, count: int) -> None:
    """Publish messages of a hundred bytes with a thousand keys, and wait until they are merged."""
    with _client(config, "source") as client, client.publisher(session) as publisher:
        keys = [b"%d" % (number % 1000) for number in range(count)]
        publisher.publish_many([bytes(100)] * count, keys)
        publisher.flush("merged", WAIT_S)


def working(config: str, how: str, members: int, turn: int, count: int) -> float:
    """Have so many processes handle all messages; return how many a second."""
    begin, done = SPAWN.Barrier(members + 1), SPAWN.Queue()
    processes = [
        SPAWN.Process(target=_member, args=(config, how, (number, members, turn), begin, done))
        for number in range(members)
    ]
    for process in processes:
        process.start()
    begin.wait(WAIT_S)
    began_s = time.monotonic()
    handled = sum(done.get(timeout=WAIT_S) for _ in processes)
    took_s = time.monotonic() - began_s
    for process in processes:
        process.join()
    if handled != count:
        raise RuntimeError(f"{handled} of {count} messages were handled by {members} members")
    return count / took_s


def _member(config: str, how: str, place: tuple[int, int, int], begin: Any, done: Any) -> None:
    number, members, turn = place
    name = f"work-{members}-{turn}"
    with _client(config, f"{how}-{name}-{number}") as client:
        client.subscriber(follow=False).close()  # the copy is there; what is measured is the work
        reading: dict[str, Any] = {"group": name}
        if how == "shares":
            share = f"{number + 1}/{members}"
            reading = {"cursor": f"{name}-{number}", "share": share}
        handled = 0
        with client.subscriber(follow=False, sessions=["work"], **reading) as messages:
            begin.wait(WAIT_S)
            for message in messages:
                time.sleep(HANDLER_S)
                # on a machine that is too busy a member falls silent, and its messages come again
                handled += not getattr(message, "redelivered", 0)
        done.put(handled)


def confirming(config: str, count: int) -> float:
    """Have many threads of one publisher wait for `merged`; return messages a second."""
    with _client(config, "confirming") as client, client.publisher("confirmed") as publisher:
        publisher.publish(b"first", confirm="merged")
        each = count // THREADS

        def publish() -> None:
            window = [publisher.publish_future(bytes(100)) for _ in range(each)]
            for future in window:
                future.result(WAIT_S)

        threads = [threading.Thread(target=publish) for _ in range(THREADS)]
        began_s = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return each * THREADS / (time.monotonic() - began_s)


def limited(config: str, count: int) -> float:
    """Return the processor time of publishing with limits that are not met, of without.

    Until the nodes have merged everything: what shipping takes is that of without, as the limits
    have no part in it and the machine's other work disturbs it by more than they cost. What the
    calls take is of their own thread. Medians of several rounds, in turns.
    """
    limits: dict[str, Any] = {
        "flight": rt.FlightLimit(messages=100 * count, bytes=1 << 40),
        "disk_limit": rt.DiskLimit(1 << 30),
    }
    with _client(config, "limits") as client:
        publishers = client.publisher("free"), client.publisher("limited", **limits)
        calls_s: tuple[list[float], list[float]] = [], []
        whole_s = []
        for turn in range(2 * ROUNDS):
            for number in (0, 1) if turn % 2 else (1, 0):
                began_s, call_began_s = time.process_time(), time.thread_time()
                for _ in range(count // BATCH):
                    publishers[number].publish_many([PAYLOAD] * BATCH)
                calls_s[number].append(time.thread_time() - call_began_s)
                publishers[number].flush("merged", WAIT_S)
                if not number:
                    whole_s.append(time.process_time() - began_s)
        added_s = statistics.median(calls_s[1]) - statistics.median(calls_s[0])
        return 1 + added_s / statistics.median(whole_s)


def delays(config: str, count: int) -> tuple[float, float]:
    """Publish one message after another; return the p50 until `merged` and until delivery, ms."""
    with _client(config, "delays") as client, client.publisher("delayed") as publisher:
        arrived, merged = {}, {}
        reader = client.subscriber(start="latest", sessions=["delayed"])

        def read() -> None:
            for message in reader:
                arrived[message.sequence] = time.monotonic()

        thread = threading.Thread(target=read)
        thread.start()
        began = {}
        for number in range(count):
            began[number] = time.monotonic()
            publisher.publish(b"x", confirm="merged")
            merged[number] = time.monotonic()
            time.sleep(0.001)
        end_s = time.monotonic() + WAIT_S
        while len(arrived) < count and time.monotonic() < end_s:
            time.sleep(0.01)
        reader.stop()
        thread.join()
    wait_ms = [1000 * (merged[number] - began[number]) for number in range(count)]
    delivery_ms = [1000 * (arrived[number] - began[number]) for number in sorted(arrived)]
    return statistics.median(wait_ms), statistics.median(delivery_ms)
