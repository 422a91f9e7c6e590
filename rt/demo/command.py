"""`rt demo`: runs a whole stream on real data, checks every message, and tidies up."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Final

import click

from rt.amounts import duration_text
from rt.cli.cluster.up import start_nodes
from rt.cli.common.console import ProgressBar, note
from rt.cli.process.children import Child, Children
from rt.demo.cursor import kill_reader
from rt.demo.flights import AIRPORTS, flights_path, read_flights
from rt.demo.report import DemoReport, show_counts, show_report
from rt.demo.sites import print_sites, show_sites
from rt.demo.spark import Counts, check_counts, count_by_hand, count_by_spark, spark_is_there
from rt.errors import RtError
from rt.format.message import Batch
from rt.log.files.disk import make_private_directory
from rt.net.addresses import parse_address
from rt.net.authority.certificates import certificate_files
from rt.net.status import ask_status
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import Place, free_addresses, init_cluster
from rt.subscriber import Subscriber

STREAM: Final = "flights"
_SILENCE_S: Final = 30.0
_LEADER_S: Final = 15.0  # an election takes a second
_POLL_S: Final = 0.05


@click.command()
@click.option("--keep", metavar="DIR", help="Work in DIR, which must be empty, and keep its files.")
@click.option(
    "--rate", type=click.IntRange(1, 999_999_999), default=20_000, show_default=True,
    help="Flights per second and airport.",
)  # fmt: skip
@click.option(
    "--nodes", default=3, show_default=True, help="Size of the cluster: 1, 3, 5 or 7 nodes."
)
@click.option(
    "--spark/--no-spark", "by_spark", default=None,
    help="Count with Spark as well.  [default: if it is installed]",
)  # fmt: skip
@click.option(
    "--sites", is_flag=True,
    help="Show two sites instead: one is lost, the other goes on, and the first takes over again.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def demo(
    keep: str | None, rate: int, nodes: int, *, by_spark: bool | None, sites: bool, as_json: bool
) -> None:
    """Run a whole stream on real data: every flight out of New York in 2013.

    Three publishers (EWR, JFK, LGA) write to logs of their own. A pusher ships these over mutual
    TLS to three nodes, which merge them. Halfway through, the leader is killed. A puller copies the
    merged log to a subscriber, which checks that every flight arrived once and in its airport's
    order. A reader with a cursor is killed, and another continues where it stopped. Finally Spark,
    if it is installed, counts the flights from the same files.

    With --sites, a standby at a second site follows the first. The first is killed with messages
    that only it had. The second continues its log, and publishers send again what it lacks. Then
    the first site's files follow the new log, and it is promoted in its turn.

    \b
    rt demo
    rt demo --sites
    rt demo --keep /tmp/flights && rt log-history /tmp/flights/copy/flights/out
    """  # noqa: D301 - click reads the backspace character
    path = flights_path()
    with _directory(keep) as root:
        flights = read_flights(path)
        if sites:
            shown = show_sites(root, flights, rate)
            click.echo(json.dumps(asdict(shown), indent=1)) if as_json else print_sites(shown)
            return
        report = _stream(root, flights, rate, nodes)
        cursor = kill_reader(os.path.join(root, "copy"), STREAM)
        directory = os.path.join(root, "copy", STREAM, "out")
        if not as_json:
            show_report(report, cursor, directory)
        if spark_is_there() if by_spark is None else by_spark:
            report.spark = _count(directory, flights)
        if as_json:
            click.echo(json.dumps({**asdict(report), "cursor": asdict(cursor)}, indent=1))
        elif report.spark is not None:
            show_counts(report.spark)
        if keep is not None:
            note(f"everything is in {root}; try: rt dump {directory} --count 3")


def _count(directory: str, flights: dict[str, list[bytes]]) -> Counts:
    note("starting Spark, which takes a few seconds")
    counts = count_by_spark(directory)
    check_counts(counts, count_by_hand(flights))
    return counts


@contextmanager
def _directory(keep: str | None) -> Iterator[str]:
    if keep is None:
        root = tempfile.mkdtemp(prefix="rt-demo-")
        try:
            yield root
        finally:
            shutil.rmtree(root)
        return
    make_private_directory(keep)
    if os.listdir(keep):
        raise click.UsageError(f"{keep} is not empty; name another directory, or empty it")
    yield keep


def _stream(root: str, flights: dict[str, list[bytes]], rate: int, nodes: int) -> DemoReport:
    cluster = os.path.join(root, "cluster")
    make_private_directory(cluster)
    places = init_cluster(
        cluster, STREAM, free_addresses(nodes), publishers=("airports",),
        subscribers=("subscriber",), sessions=[each.lower() for each in AIRPORTS],
    )  # fmt: skip
    certs = os.path.join(cluster, "certs")
    _write_inputs(root, flights)
    note(f"{nodes} node(s), a pusher and a puller for stream {STREAM!r}, with mutual TLS")
    with Children() as children:
        running = start_nodes(children, cluster, STREAM, places)
        link = ["--stream", STREAM, "--certs", certs]
        for place in places:
            link += ["--nodes", place.address]
        copy, airports = os.path.join(root, "copy"), os.path.join(root, "airports")
        children.start("pull", "pull", "--root", copy, "--identity", "subscriber", *link)
        children.start("push", "push", "--root", airports, "--identity", "airports", *link)
        publishers = [_publish(children, root, airport, rate) for airport in flights]
        contexts = Contexts(certificate_files(certs, "subscriber"), client_context)
        named = {place.name: child for place, child in zip(places, running, strict=True)}
        kill = partial(kill_leader, named, partial(leader_of, places, contexts))
        report = _receive(copy, flights, kill if nodes > 1 else None)
        for publisher in publishers:
            publisher.wait()
    report.nodes = nodes
    return report


def kill_leader(
    nodes: Mapping[str, Child], leader: Callable[[], str], patience_s: float = _LEADER_S
) -> str:
    """Kill the leader with SIGKILL, as soon as there is one; return its name.

    Args:
        nodes: The processes, by the names of their nodes.
        leader: Asks the nodes which of them leads; "" while none does.
        patience_s: How long to wait for a leader.
    """
    deadline = time.monotonic() + patience_s
    while (name := leader()) not in nodes:
        if time.monotonic() > deadline:
            raise RtError(
                f"no node leads after {duration_text(patience_s)}, so none can be killed; this "
                "machine may be too busy: run `rt demo` again with a lower --rate"
            )
        time.sleep(_POLL_S)
    nodes[name].kill()
    return name


def leader_of(places: Sequence[Place], contexts: Contexts) -> str:
    """Return the leader, from the first node that knows it; "" if none does."""
    for place in places:
        with suppress(OSError, RtError):  # ask the next one
            if leader := ask_status(parse_address(place.address), contexts)["leader"]:
                return str(leader)
    return ""


def _write_inputs(root: str, flights: dict[str, list[bytes]]) -> None:
    for airport, lines in flights.items():
        with open(os.path.join(root, f"{airport.lower()}.csv"), "wb") as file:
            file.write(b"\n".join(lines) + b"\n")


def _publish(children: Children, root: str, airport: str, rate: int) -> Child:
    session = airport.lower()
    place = ("--root", os.path.join(root, "airports"), "--stream", STREAM, "--session", session)
    path = os.path.join(root, f"{session}.csv")
    return children.start(f"publisher {airport}", "publish", *place, "--rate", str(rate), path)


def _receive(
    copy: str, flights: dict[str, list[bytes]], kill: Callable[[], str] | None
) -> DemoReport:
    """Read the merged log as it grows; every flight must arrive once, in its airport's order."""
    report, watch = DemoReport(dict.fromkeys(flights, 0)), _Stopwatch()
    total = sum(map(len, flights.values()))
    with Subscriber(copy, stream=STREAM) as subscriber, ProgressBar(total) as progress:
        for batch in subscriber.batches(_SILENCE_S):
            watch.see(batch)
            _check(report, batch, flights)
            progress.show(f"{report.messages:,} of {total:,} flights", report.messages)
            if kill and not report.killed and report.messages > total // 2:
                report.killed = kill()
                watch.killed_ns = time.time_ns()
            if report.messages == total:
                break
        report.end = str(subscriber.position)
    if report.messages < total:
        raise RtError(f"only {report.messages:,} of {total:,} flights arrived, then none for 30 s")
    watch.sum_up(report)
    return report


class _Stopwatch:
    """Measures how long each message took, how long all took, and how long merging paused."""

    def __init__(self) -> None:
        self.killed_ns = 0
        self._delays: list[int] = []
        self._began_ns = 0
        self._merged_ns: list[int] = []

    def see(self, batch: Batch) -> None:
        """Record when a batch was received."""
        now = time.time_ns()
        self._began_ns = self._began_ns or now
        self._delays += [now - sent for sent in batch.columns.times[batch.first :].tolist()]
        if self.killed_ns and batch.merge_time_ns:
            self._merged_ns.append(batch.merge_time_ns)

    def sum_up(self, report: DemoReport) -> None:
        """Fill in the report's times."""
        report.seconds = (time.time_ns() - self._began_ns) / 1e9
        delays, last = sorted(self._delays), len(self._delays) - 1
        report.p50_ms = delays[last // 2] / 1e6
        report.p99_ms = delays[int(last * 0.99)] / 1e6
        report.max_ms = delays[last] / 1e6
        pauses = (later - earlier for earlier, later in pairwise(self._merged_ns))
        report.pause_s = max(pauses, default=0) / 1e9


def _check(report: DemoReport, batch: Batch, flights: dict[str, list[bytes]]) -> None:
    airport = batch.session.upper()
    payloads, seen = batch.payloads(), report.flights[airport]
    if payloads != flights[airport][seen : seen + len(payloads)]:
        raise RtError(f"{airport}: the flights from number {seen} on differ from those published")
    report.flights[airport] = seen + len(payloads)
    report.messages += len(payloads)
    report.payload_bytes += sum(map(len, payloads))
