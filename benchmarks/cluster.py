"""Three nodes on one machine: latency, throughput, traffic, a death, a return."""

import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from benchmarks.agreeing import MEMBERS, node
from benchmarks.bare import latencies
from benchmarks.log import directory
from benchmarks.report import Row
from benchmarks.stream import SPAWN, STREAM, nodes, run
from replicator.pull.client import PullClient
from replicator.push.client import PushClient
from rt import Publisher, Subscriber
from rt.cli.process.children import Child
from rt.net.addresses import parse_address
from rt.net.authority.certificates import certificate_files
from rt.net.status import ask_status
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import Place
from rt.position import Position

LIVE_BYTES_S = 20_000_000
SMALL, LARGE = 100, 10 << 10  # bytes of a message


def rows(quick: bool) -> list[Row]:
    """All of them."""
    count = 3000 if quick else 20_000
    with directory() as root:
        paced = run(root, 100, count, 1000, MEMBERS)
    bare = latencies(SPAWN, 100, count, 1000, MEMBERS)
    agreeing = latencies(SPAWN, 100, count, 1000, MEMBERS, work=node)
    bare_p50, bare_p99 = bare[count // 2] / 1e6, bare[int(count * 0.99)] / 1e6
    with directory() as root:
        small = run(root, 100, 1_000_000 if quick else 5_000_000, 0, MEMBERS)
    with directory() as root:
        large = run(root, 1024, 200_000 if quick else 1_000_000, 0, MEMBERS)
    with directory() as root:
        relayed_mb_s = relayed(root, 200 if quick else 1000)
    with directory() as root:
        commits, p50_ms, flushes = committing(root, 500 if quick else 3000)
    with directory() as root:
        small_bytes, large_bytes = talking(root, 300 if quick else 1500)
    with directory() as root:
        pause = pausing(root)
    with directory() as root:
        ratio = returning(root, 500 if quick else 5000)
    return [
        Row(
            "3 nodes: append to delivery p50, 1,000/s",
            paced["p50_ms"],
            "ms",
            2,
            bare_p50,
            at_most=True,
        ),
        Row(
            "3 nodes: append to delivery p99, 1,000/s",
            paced["p99_ms"],
            "ms",
            10,
            bare_p99,
            at_most=True,
        ),
        Row("3 nodes: the limit program that agrees, p50", agreeing[count // 2] / 1e6, "ms", 0),
        Row("3 nodes: delivered, 100 B", small["messages_s"], "messages/s", 500_000),
        Row("3 nodes: delivered, 1 KiB", large["mb_s"], "MB/s", 80),
        Row("3 nodes: the same, by a publisher that reaches one node", relayed_mb_s, "MB/s", 0),
        Row("3 nodes: instructions, one in flight", commits, "/s", 500),
        Row("3 nodes: an instruction agreed, p50", p50_ms, "ms", 2, at_most=True),
        Row("3 nodes: publish and flush('merged')", flushes, "/s", 0),
        Row(
            "3 nodes: sent between nodes, 100 B messages",
            small_bytes,
            "B/instruction",
            2000,
            at_most=True,
        ),
        Row(
            "3 nodes: the same, 10 KiB messages",
            large_bytes,
            "B/instruction",
            1.1,
            small_bytes,
            at_most=True,
            is_ratio=True,
        ),
        Row("3 nodes: merging pauses after kill -9 of the leader", pause, "s", 0.5, at_most=True),
        Row("3 nodes: catching up, of the live rate", ratio, "times", 3),
    ]


def relayed(root: str, megabytes: int) -> float:
    """MB/s until all nodes have merged what a publisher pushes to one of them."""
    with nodes(root, MEMBERS) as (places, _), _Shipping(root, places[:1]) as publisher:
        began = time.perf_counter()
        for _ in range(megabytes // 10):
            publisher.publish_many([bytes(1012)] * 10_000)
        publisher.flush("merged", timeout_s=600)
        for place in places:
            _await(lambda place=place: _status(root, place)["messages"] == publisher.next_sequence)
        return megabytes / (time.perf_counter() - began)


def committing(root: str, count: int) -> tuple[float, float, float]:
    """Instructions when each waits for the one before.

    Returns:
        How many a second the leader's own time for one allows, from proposed to committed; that
        time's median, in ms; how many a second a publisher sees that waits for each message to be
        merged: its own sync, both hops and the merge are in that.
    """
    with nodes(root, MEMBERS) as (places, _), _Shipping(root, places) as publisher:
        began = time.perf_counter()
        for _ in range(count):
            publisher.publish(b"x")
            publisher.flush("merged")
        flushes = count / (time.perf_counter() - began)
        times = max((_status(root, each)["agreement_ms"] for each in places), key=_counted)
    return 1000 / times["mean"], times["p50"], flushes


def _counted(times: dict[str, float]) -> float:
    return times["count"]


def talking(root: str, count: int) -> list[float]:
    """Bytes that all nodes send each other for an instruction, with small and large messages."""
    with nodes(root, MEMBERS) as (places, _), _Shipping(root, places) as publisher:
        return [_said(root, places, publisher, bytes(size), count) for size in (SMALL, LARGE)]


def _said(
    root: str, places: list[Place], publisher: Publisher, message: bytes, count: int
) -> float:
    before = [_status(root, place) for place in places]
    for _ in range(count):
        publisher.publish(message)
        publisher.flush("merged")
    after = [_status(root, place) for place in places]
    said = sum(each["peer_bytes"] for each in after) - sum(each["peer_bytes"] for each in before)
    return said / (after[0]["committed"] - before[0]["committed"])


def pausing(root: str) -> float:
    """The longest time between two merges around the leader's kill -9, under a steady load."""
    with nodes(root, MEMBERS) as (places, children):
        addresses = [parse_address(place.address) for place in places]
        pull = PullClient(
            os.path.join(root, "sub"), STREAM, addresses, client_contexts(root, "subscriber")
        )
        pull.start()
        stop = threading.Event()
        with _Shipping(root, places) as publisher:
            feeding = threading.Thread(target=_feed, args=(publisher, stop))
            feeding.start()
            _await(lambda: _status(root, places[0])["messages"] > 500)
            leader = str(_status(root, places[0])["leader"])
            names = [place.name for place in places]
            killed_ns = time.time_ns()
            children[names.index(leader)].kill()
            time.sleep(4)
            stop.set()
            feeding.join()
            publisher.flush("merged", timeout_s=30)
            total = publisher.next_sequence
        merged: list[int] = []
        with Subscriber(os.path.join(root, "sub"), stream=STREAM) as subscriber:
            for batch in subscriber.batches(timeout_s=10):
                merged.append(batch.merge_time_ns or 0)
                if batch.number + len(batch) >= total:
                    break
        pull.stop()
    around = [time_ns for time_ns in merged if time_ns > killed_ns - 1_000_000_000]
    return max(later - earlier for earlier, later in pairwise(around)) / 1e9


def returning(root: str, megabytes: int) -> float:
    """How fast a node that missed this many MB catches up, as a multiple of the live rate."""
    with nodes(root, MEMBERS) as (places, children), _Shipping(root, places) as publisher:
        leader = str(_await(lambda: _status(root, places[0])["leader"]))
        away = next(number for number, place in enumerate(places) if place.name != leader)
        children[away].kill()
        for _ in range(megabytes // 10):
            publisher.publish_many([bytes(1012)] * 10_000)
        publisher.flush("merged", timeout_s=600)
        stop = threading.Event()
        feeding = threading.Thread(target=_flow, args=(publisher, stop))
        feeding.start()
        other = places[(away + 1) % MEMBERS]
        began = time.monotonic()
        back = Child(places[away].name, ["node", "--config", places[away].config])
        try:
            _await(lambda: _gap(root, places[away], other) < LIVE_BYTES_S // 10, 600)
            seconds = time.monotonic() - began
        finally:
            stop.set()
            feeding.join()
            back.stop()
    return (megabytes * 1e6 + seconds * LIVE_BYTES_S) / seconds / LIVE_BYTES_S


def _gap(root: str, behind: Place, ahead: Place) -> float:
    try:
        ours, theirs = (_status(root, place)["merged_end"] for place in (behind, ahead))
    except OSError:
        return float("inf")
    return Position.parse(theirs) - Position.parse(ours)


class _Shipping(Publisher):
    """A publisher that pushes from its own process."""

    def __init__(self, root: str, places: list[Place]) -> None:
        data = os.path.join(root, "pub")
        super().__init__(data, stream=STREAM, session="p1")
        addresses = [parse_address(place.address) for place in places]
        self._push = PushClient(data, STREAM, addresses, client_contexts(root, "publisher"))
        self._push.start()
        self.publish(b"first")
        self.flush("merged")

    def close(self) -> None:
        """Stop pushing too."""
        self._push.stop()
        super().close()


def _feed(publisher: Publisher, stop: threading.Event) -> None:
    while not stop.wait(0.001):
        publisher.publish(b"x" * 100)


def _flow(publisher: Publisher, stop: threading.Event) -> None:
    batch = [bytes(1012)] * (LIVE_BYTES_S // 1024 // 20)
    while not stop.wait(0.05):
        publisher.publish_many(batch)


def _status(root: str, place: Place) -> dict[str, Any]:
    return ask_status(parse_address(place.address), client_contexts(root, "subscriber"))


def client_contexts(root: str, name: str) -> Contexts:
    """Return the TLS contexts of one of the clients of a cluster made below `root`."""
    return Contexts(certificate_files(os.path.join(root, "certs"), name), client_context)


def _await(condition: Callable[[], Any], timeout_s: float = 30) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError("a condition of the benchmark was not met")
        time.sleep(0.05)
    return found
