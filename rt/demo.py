"""Demo: a whole stream on real data, checked message by message, shown, and tidied away."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final

import click

from rt.certificates import init_authority, issue
from rt.children import Child, Children
from rt.console import Progress, note
from rt.demo_flights import AIRPORTS, flights_path, read_flights
from rt.demo_report import show_report
from rt.errors import RtError
from rt.identity import Role
from rt.message import Batch
from rt.subscriber import Subscriber

STREAM: Final = "flights"
_SILENCE_S: Final = 30.0


@dataclass(slots=True)
class Report:
    """What the demo saw; all of it measured by the subscriber at the end of the road."""

    flights: dict[str, int]
    messages: int = 0
    payload_bytes: int = 0
    seconds: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    end: str = ""
    directory: str = ""


@click.command()
@click.option("--keep", metavar="DIR", help="Work in DIR, which must be empty, and leave it there.")
@click.option("--rate", default=20_000, show_default=True, help="Flights a second and airport.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def demo(keep: str | None, rate: int, *, as_json: bool) -> None:
    """Run a whole stream on real data: every flight out of New York in 2013.

    Three publishers (EWR, JFK, LGA) write to logs of their own; a pusher ships them over mutual
    TLS to a node, which merges them; a puller copies the merged log to a subscriber, which checks
    that every flight came once and in its airport's order.

    \b
    rt demo
    rt demo --keep /tmp/flights && rt log-history /tmp/flights/copy/flights/out
    """  # noqa: D301 - click reads the backspace character
    flights = read_flights(flights_path())
    with _directory(keep) as root:
        report = _stream(root, flights, rate)
        if as_json:
            click.echo(json.dumps(asdict(report), indent=1))
        else:
            show_report(report, os.path.join(root, "copy", STREAM, "out"), kept=keep is not None)


@contextmanager
def _directory(keep: str | None) -> Iterator[str]:
    if keep is None:
        root = tempfile.mkdtemp(prefix="rt-demo-")
        try:
            yield root
        finally:
            shutil.rmtree(root)
        return
    os.makedirs(keep, exist_ok=True)
    if os.listdir(keep):
        raise click.UsageError(f"{keep} is not empty; name another directory, or empty it")
    yield keep


def _stream(root: str, flights: dict[str, list[bytes]], rate: int) -> Report:
    certs = os.path.join(root, "certs")
    _make_certificates(certs)
    _write_inputs(root, flights)
    note(f"starting a node, a pusher and a puller for stream {STREAM!r}, mutual TLS between them")
    with Children() as children:
        node = _start_node(children, root, certs)
        copy = os.path.join(root, "copy")
        link = ("--stream", STREAM, "--nodes", node, "--certs", certs)
        children.start("pull", "pull", "--root", copy, "--identity", "analyst", *link)
        pub = os.path.join(root, "airports")
        children.start("push", "push", "--root", pub, "--identity", "airports", *link)
        publishers = [_publish(children, root, airport, rate) for airport in flights]
        report = _receive(children, copy, flights)
        for publisher in publishers:
            publisher.wait()
    report.directory = root
    return report


def _make_certificates(certs: str) -> None:
    init_authority(certs)
    issue(certs, "n1", Role.NODE)
    issue(certs, "airports", Role.PUBLISHER, sessions=[each.lower() for each in AIRPORTS])
    issue(certs, "analyst", Role.SUBSCRIBER, streams=[STREAM])


def _write_inputs(root: str, flights: dict[str, list[bytes]]) -> None:
    for airport, lines in flights.items():
        with open(os.path.join(root, f"{airport.lower()}.csv"), "wb") as file:
            file.write(b"\n".join(lines) + b"\n")


def _start_node(children: Children, root: str, certs: str) -> str:
    place = ("--root", os.path.join(root, "node"), "--stream", STREAM, "--name", "n1")
    node = children.start("node", "node", *place, "--listen", "localhost:0", "--certs", certs)
    port = node.first_line(r":(\d+)$")[1]
    return f"localhost:{port}"


def _publish(children: Children, root: str, airport: str, rate: int) -> Child:
    session = airport.lower()
    place = ("--root", os.path.join(root, "airports"), "--stream", STREAM, "--session", session)
    path = os.path.join(root, f"{session}.csv")
    return children.start(f"publisher {airport}", "publish", *place, "--rate", str(rate), path)


def _receive(children: Children, copy: str, flights: dict[str, list[bytes]]) -> Report:
    """Read the merged log as it grows; every flight must come once, in its airport's order."""
    report = Report(dict.fromkeys(flights, 0))
    delays: list[int] = []
    began, total = time.perf_counter(), sum(map(len, flights.values()))
    with Subscriber(copy, stream=STREAM) as subscriber, Progress(total) as progress:
        for batch in subscriber.batches(_SILENCE_S):
            now = time.time_ns()
            if not report.messages:
                began = time.perf_counter()
            delays += [now - sent for sent in batch.columns.times[batch.first :].tolist()]
            _check(report, batch, flights)
            progress.show(f"{report.messages:,} of {total:,} flights", report.messages)
            if report.messages == total:
                break
        report.end = str(subscriber.position)
    report.seconds = time.perf_counter() - began
    if report.messages < total:
        children.check()
        raise RtError(f"only {report.messages:,} of {total:,} flights came before a long silence")
    delays.sort()
    report.p50_ms, report.p99_ms, report.max_ms = (
        delays[min(int(len(delays) * part), len(delays) - 1)] / 1e6 for part in (0.5, 0.99, 1)
    )
    return report


def _check(report: Report, batch: Batch, flights: dict[str, list[bytes]]) -> None:
    airport = batch.session.upper()
    payloads, seen = batch.payloads(), report.flights[airport]
    if payloads != flights[airport][seen : seen + len(payloads)]:
        raise RtError(f"{airport}: the flights from number {seen} on are not those published")
    report.flights[airport] = seen + len(payloads)
    report.messages += len(payloads)
    report.payload_bytes += sum(map(len, payloads))
