"""64 subscribers of the node that leads, beside one: how soon a publisher hears that it is merged.

All subscribers are one process, with a copy each. Messages come alone, with time for all to be
delivered in between.
"""

import os
import threading
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from statistics import median, quantiles

from benchmarks.cluster import client_contexts
from benchmarks.log import directory
from benchmarks.report import Row
from benchmarks.stream import SPAWN, STREAM, Address, nodes
from replicator.pull.client import PullClient
from replicator.push.client import PushClient
from rt import Fsync, Publisher, Subscriber, WriterSettings
from rt.net.addresses import parse_address
from rt.net.status import ask_status

MANY = 64
MESSAGES = 600  # half for a quick run
GAP_S = 0.03  # between two of them
TURNS = 2
WAIT_S = 60.0
_LAST = b"last"
Figures = tuple[float, float]  # p50 and p99 of publish and flush, in ms


def rows(quick: bool) -> list[Row]:
    """One subscriber and many in turn, so that a slow phase of the machine meets both."""
    found: dict[int, list[Figures]] = {1: [], MANY: []}
    for count in (1, MANY) * TURNS:
        found[count].append(_case(count, MESSAGES // 2 if quick else MESSAGES))
    one, many = ([median(each) for each in zip(*cases, strict=True)] for cases in found.values())
    return [
        Row(f"one message to merged, 3 nodes, {MANY} subscribers of the leader, p50; limit: of one",
            many[0], "ms", 1.5, one[0], at_most=True, is_ratio=True),
        Row("the same, p99", many[1], "ms", 0, one[1], at_most=True),
    ]  # fmt: skip


def _case(count: int, messages: int) -> Figures:
    """Measure with that many subscribers."""
    with directory() as root, nodes(root, 3) as (places, _), ExitStack() as undo:
        addresses = [parse_address(place.address) for place in places]
        data, contexts = os.path.join(root, "pub"), client_contexts(root, "publisher")
        publisher = Publisher(
            data, stream=STREAM, session="s", writer=WriterSettings(fsync=Fsync.INTERVAL)
        )
        undo.callback(publisher.close)
        push = PushClient(data, STREAM, addresses, contexts)
        push.start()
        undo.callback(push.stop)
        _delay_ms(publisher, b"first")
        leader = ask_status(addresses[0], contexts)["leader"]
        [address] = [parse_address(each.address) for each in places if each.name == leader]
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(target=_subscribe, args=(root, address, count, there), daemon=True)
        process.start()
        here.recv()
        delays = [_delay_ms(publisher, bytes(100)) for _ in range(messages)]
        publisher.publish(_LAST)
        here.recv()
        process.join()
    return median(delays), quantiles(delays, n=100)[-1]


def _delay_ms(publisher: Publisher, message: bytes) -> float:
    time.sleep(GAP_S)
    began_s = time.perf_counter()
    publisher.publish(message)
    publisher.flush("merged", WAIT_S)
    return (time.perf_counter() - began_s) * 1e3


def _subscribe(root: str, address: Address, count: int, there: Connection) -> None:
    """Read with that many subscribers until the last message; the target of a child process."""
    ready = threading.Barrier(count + 1)
    threads = [
        threading.Thread(target=_read, args=(root, address, number, ready))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    there.send("ready")
    for thread in threads:
        thread.join()
    there.send("done")


def _read(root: str, address: Address, number: int, ready: threading.Barrier) -> None:
    copy = os.path.join(root, f"sub{number}")
    pull = PullClient(copy, STREAM, [address], client_contexts(root, "subscriber"), start="latest")
    pull.start()
    try:
        pull.wait_caught_up(WAIT_S)
        with Subscriber(copy, stream=STREAM) as subscriber:
            ready.wait()
            for message in subscriber:
                if message.payload == _LAST:
                    break
    finally:
        pull.stop()
