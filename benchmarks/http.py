"""The HTTP port: what it costs a node, in processor time, since others may load the machine."""

import http.client
import multiprocessing
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Final, cast

from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest

from benchmarks.log import directory
from benchmarks.report import Row
from benchmarks.stream import SPAWN, STREAM, Address, nodes, processor_s
from replicator.push.client import PushClient
from rt import Fsync, Publisher, WriterSettings
from rt.config.settings import load
from rt.net.addresses import parse_address
from rt.net.authority.certificates import certificate_files
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import init_local_cluster
from rt.node.host.node import Node
from rt.node.ingest.inbox import NodeInbox
from rt.node.observe.sample import NodeSample, SessionView
from rt.node.observe.sampler import NodeSampler
from rt.node.settings.http import HttpSettings
from rt.node.settings.node import NodeSettings
from rt.position import Position
from rt.traffic import Traffic
from rt.web.nodes.node_site import NodeSite
from rt.web.serving.app import encoded
from rt.web.serving.collector import SiteCollector
from rt.web.serving.recent import RecentEvents
from rt.web.serving.server import WebServer

SESSIONS: Final = 1000
Times = tuple[float, float]  # least and median, in ms
Used = tuple[float, float]  # processor time of a node and of the threads for those who look, in s
_SCRAPE_S: Final = 1.0  # Prometheus asks every 15 s by default
_LOOKS: Final = 200
_SCRAPES: Final = 50
_SETTLE_S: Final = 3.0  # after the start, until the page is open
_LOOKING: Final = ("http", "pool", "others", "AnyIO worker")  # threads for those who look
_FORGOTTEN_S: Final = 12.0  # after a page was closed: the node samples for ten seconds more


def rows(quick: bool) -> list[Row]:
    """A scrape and an event of the page with 1,000 sessions; a node with the port and without."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:  # so that the node's threads end with it
        scrape, event, look, asked_ms = pool.apply(_rendered)
    rounds = 3 if quick else 5
    cost, share = _looking(1_000_000 if quick else 4_000_000, 3 if quick else 9)
    idle_off, idle_on = _in_turn(lambda more: _idle_ms(10.0 if quick else 30.0, more), rounds)
    idle_share = max(0.0, idle_on - idle_off) / 10  # of the 1,000 ms that a core has a second
    print(f"  load of the machine, 1, 5 and 15 minutes: {os.getloadavg()}")
    return [
        Row("GET /metrics, 1,000 sessions that wait, median of 50, by the wall clock", asked_ms,
            "ms", 50, at_most=True),
        Row("a scrape, 1,000 sessions that wait, least", scrape[0], "ms", 50, at_most=True),
        Row("a scrape, 1,000 sessions that wait, median", scrape[1], "ms", 50, at_most=True),
        Row("a look at a node, 1,000 sessions, median", look[1], "ms", 50, at_most=True),
        Row("an event of the page, 1,000 sessions, median", event[1], "ms", 50, at_most=True),
        Row("an event of the page, 1,000 sessions", event[2], "kB", 50, at_most=True),
        Row("a message of 100 B, processor time of the node", cost, "us", 0),
        Row("an open page and a scrape a second beside it, of a core", share, "%", 1, at_most=True),
        Row("a second at rest, processor time of the node, no port", idle_off, "ms", 0),
        Row("the same, with a scrape a second and an open page", idle_on, "ms", idle_off + 10,
            idle_off, at_most=True),
        Row("the difference, of a core that is busy", idle_share, "%", 1, at_most=True),
    ]  # fmt: skip


def _rendered() -> tuple[Times, tuple[float, float, float], Times, float]:
    """Return what a scrape takes, an event of the page, with its kB, and a look at the node.

    The last figure is how long those who scrape wait for it.
    """
    with directory() as root:
        (place,) = init_local_cluster(root, STREAM, 1)
        node = Node(load(NodeSettings, place.config, "node", {}, {"reserve": 0}), founding=True)
        node.periodic_sampler.pause_s = 3600.0
        node.start()
        site = NodeSite(node, RecentEvents())
        try:
            node.periodic_sampler.take_sample()
            node.periodic_sampler.sample = _crowded(node.periodic_sampler.sample)
            registry = CollectorRegistry(auto_describe=False)
            registry.register(SiteCollector(site))
            scrape = _times_ms(lambda: generate_latest(registry))
            event = _times_ms(lambda: encoded(site.overview()))
            size = len(encoded(site.overview())) / 1000
            inboxes = [_inbox(number) for number in range(SESSIONS)]
            watched = replace(node._watched(), inboxes=lambda: inboxes)
            look = _times_ms(NodeSampler(watched).sample)
            return scrape, (*event, size), look, _asked_ms(site)
        finally:
            site.stop()
            node.stop()


def _asked_ms(site: NodeSite) -> float:
    """Return the median time, by the wall clock, until a scrape has its answer."""
    web = WebServer(HttpSettings("127.0.0.1:0"), site)
    web.start()
    times = []
    try:
        for _ in range(_SCRAPES):
            began_s = time.perf_counter()
            connection = http.client.HTTPConnection(web.url.partition("//")[2], timeout=10)
            connection.request("GET", "/metrics")
            connection.getresponse().read()
            connection.close()
            times.append((time.perf_counter() - began_s) * 1000)
    finally:
        web.stop()
    return statistics.median(times)


def _inbox(number: int) -> NodeInbox:
    """Return what a sampler asks of the copy of a session that waits to be merged."""
    fields = {
        "session": f"session-{number:04}", "peer": "publisher", "merged": Position(500_000),
        "durable": Position(900_000), "appender": SimpleNamespace(end=Position(900_000 + number)),
        "traffic": Traffic(1_000_000, 10_000, 100),
    }  # fmt: skip
    return cast("NodeInbox", SimpleNamespace(**fields))


def _crowded(sample: NodeSample) -> NodeSample:
    """Return a sample with 1,000 sessions, all of which wait to be merged."""
    now_ns = time.time_ns()
    sessions = tuple(
        SessionView(
            f"session-{number:04}", "publisher", Position(900_000 + number), Position(900_000),
            Position(500_000), Traffic(1_000_000, 10_000, 100), 1000.0, now_ns, now_ns, 5.0,
        )
        for number in range(SESSIONS)
    )  # fmt: skip
    return replace(sample, sessions=sessions)


def _times_ms(work: Callable[[], object]) -> Times:
    """Return the least and the median processor time of this thread."""
    times = []
    for _ in range(_LOOKS):
        began_s = time.thread_time()
        work()
        times.append((time.thread_time() - began_s) * 1000)
    return min(times), statistics.median(times)


def _in_turn(work: Callable[[str], float], rounds: int) -> tuple[float, float]:
    """Return the medians of what is measured without the port and with it.

    Args:
        work: measures a node that has these settings besides the usual ones.
        rounds: how often each is measured.
    """
    off, on = [], []
    for _ in range(rounds):
        off.append(work(""))
        port = _free_port()
        with _looked_at(port):
            on.append(work(f'http = "127.0.0.1:{port}"\n'))
        print(f"  {off[-1]:.3f} without the port, {on[-1]:.3f} with it")
    return statistics.median(off), statistics.median(on)


def _looking(count: int, rounds: int) -> tuple[float, float]:
    """Return what a message costs a node, and what those who look take of a core meanwhile.

    On a machine that does other things, what a message costs differs by a third from turn to turn,
    and one percent is lost in that. So the threads that serve those who look are timed themselves.

    Args:
        count: the number of messages in a turn.
        rounds: how many turns there are of each kind.

    Returns:
        The median processor time of a message, in us; how much of a core the threads of the port
        and of the sampler take while a page is open, in percent, less what they take when no one
        looks: what a node that is busy has less for messages.
    """
    port = _free_port()
    costs: list[float] = []
    shares: dict[bool, list[float]] = {False: [], True: []}
    with _stream(port, count) as (publish, used):

        def turn(*, is_looked_at: bool) -> None:
            began_s, before = time.monotonic(), used()
            publish()
            whole, looking = (now - then for now, then in zip(used(), before, strict=True))
            costs.append(whole / count * 1e6)
            shares[is_looked_at].append(100 * looking / (time.monotonic() - began_s))

        for _ in range(rounds):
            with _looked_at(port):
                time.sleep(_SETTLE_S)
                turn(is_looked_at=True)
            time.sleep(_FORGOTTEN_S)
            turn(is_looked_at=False)
            print(f"  {shares[True][-1]:.2f} % of a core looked at, {shares[False][-1]:.2f} % not")
    on, off = (statistics.median(shares[each]) for each in (True, False))
    return statistics.median(costs), on - off


@contextmanager
def _stream(port: int, count: int) -> Iterator[tuple[Callable[[], None], Callable[[], Used]]]:
    """Run a node with this port, and a publisher; yield what publishes, and what the node used."""
    (here, there), (ours, node) = SPAWN.Pipe(), SPAWN.Pipe()
    with directory() as root:
        (place,) = init_local_cluster(root, STREAM, 1)
        at = [parse_address(place.address)]
        processes = [
            SPAWN.Process(target=_shown_node, args=(place.config, port, node)),
            SPAWN.Process(target=_publish_turns, args=(root, at, count, there)),
        ]
        for process in processes:
            process.start()

        def publish() -> None:
            here.send("go")
            here.recv()

        def used() -> Used:
            ours.send("used")
            answer: Used = ours.recv()
            return answer

        try:
            yield publish, used
        finally:
            for line in (here, ours):
                line.send("end")
            for process in processes:
                process.join()


def _shown_node(config: str, port: int, line: Connection) -> None:
    """Run a node with a port; answer how long it, and those who look, have used a processor."""
    node = Node(load(NodeSettings, config, "node", {}, {"reserve": 0}), founding=True)
    node.start()
    site = NodeSite(node, RecentEvents())
    web = WebServer(HttpSettings(f"127.0.0.1:{port}"), site)
    web.start()
    for _ in iter(line.recv, "end"):
        looking = [each for each in threading.enumerate() if each.name.startswith(_LOOKING)]
        clocks = [time.pthread_getcpuclockid(each.ident) for each in looking if each.ident]
        line.send((time.process_time(), sum(map(time.clock_gettime, clocks))))
    web.stop()
    site.stop()
    node.stop()


def _publish_turns(root: str, places: list[Address], count: int, line: Connection) -> None:
    """Publish and push so many messages at each word that comes; the target of a process."""
    data, certs = os.path.join(root, "pub"), os.path.join(root, "certs")
    contexts = Contexts(certificate_files(certs, "publisher"), client_context)
    writer = WriterSettings(fsync=Fsync.INTERVAL)
    batch = [bytes(100)] * 1000
    with Publisher(data, stream=STREAM, session="p1", writer=writer) as publisher:
        push = PushClient(data, STREAM, places, contexts)
        push.start()
        for _ in iter(line.recv, "end"):
            for _ in range(count // len(batch)):
                publisher.publish_many(batch)
            publisher.flush("merged", timeout_s=120)
            line.send("done")
        push.stop()


def _idle_ms(length_s: float, more: str) -> float:
    """Return a node's processor time for each second in which nothing is published."""
    with directory() as root, nodes(root, 1, more) as (_, running):
        time.sleep(_SETTLE_S)
        began_s, taken_s = time.monotonic(), processor_s(running)
        time.sleep(length_s)
        return (processor_s(running) - taken_s) / (time.monotonic() - began_s) * 1000


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@contextmanager
def _looked_at(port: int) -> Iterator[None]:
    """Scrape a port, and keep a page open, from when it is there to the end of the block."""
    ending = threading.Event()
    threads = [threading.Thread(target=each, args=(port, ending)) for each in (_scrape, _page)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def _scrape(port: int, ending: threading.Event) -> None:
    while not ending.wait(_SCRAPE_S):
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/metrics")
            connection.getresponse().read()
            connection.close()


def _page(port: int, ending: threading.Event) -> None:
    """Read events as a page does, and connect again when they end."""
    while not ending.wait(_SCRAPE_S):
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/events")
            answer = connection.getresponse()
            while not ending.is_set() and answer.readline():
                pass
            connection.close()
