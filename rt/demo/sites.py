"""The demo's two sites: one is lost, the other continues its log, and the first takes it back."""

import glob
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import click

from rt.amounts import duration_text
from rt.cli.cluster.found import found_streams
from rt.cli.common.console import note, table
from rt.cli.data.pace import Pace
from rt.cli.process.children import Child, Children
from rt.client.standby import read_record
from rt.config.settings import load
from rt.errors import Misuse, RtError
from rt.log.files.disk import make_private_directory
from rt.net.addresses import parse_address
from rt.net.authority.certificates import certificate_files, issue
from rt.net.authority.identity import CertificateRole
from rt.net.status import ask_status
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import CLIENTS_NAME, free_addresses, init_cluster
from rt.node.settings.node import NodeSettings
from rt.position import Position
from rt.publisher import Publisher
from rt.subscriber import Subscriber

STREAM: Final = "flights"
_NODES: Final = 3
_PARTS: Final = 4  # published at A, at A while B is cut off, at B, and at A again
_WAIT_S: Final = 60.0
_POLL_S: Final = 0.1
_CHUNK: Final = 1000  # flights that are published together
_SNAPSHOT_S: Final = "1"  # a standby gets the state that a node saved last
_SERVES: Final = r":(\d+)$"  # the first line of a node that is ready
_CLIENTS: Final = ("--publisher", "airports", "--subscriber", "subscriber")


@dataclass(slots=True)
class SitesReport:
    """SitesReport: the steps of the demo, how long each took, and their result.

    Attributes:
        steps: a sentence and seconds for each step.
        flights: how many flights of each airport arrived, each once and in order.
        sent_again: flights that only the lost site had merged, and that publishers sent again.
    """

    steps: list[tuple[str, float]] = field(default_factory=list)
    flights: dict[str, int] = field(default_factory=dict)
    sent_again: int = 0

    @contextmanager
    def step(self, words: str) -> Iterator[None]:
        """Print what the block does, and record how long it takes."""
        note(words)
        begun_s = time.monotonic()
        yield
        self.steps.append((words, time.monotonic() - begun_s))


def show_sites(root: str, flights: Mapping[str, Sequence[bytes]], rate: int) -> SitesReport:
    """Lose a site with messages that only it had, continue at the other site, and go back.

    Args:
        root: an empty directory.
        flights: the lines of each airport.
        rate: flights per second and airport.

    Raises:
        RtError: a step failed, or a flight is missing, doubled or out of order.
    """
    report = SitesReport()
    with Children() as children:
        sites = _Sites(root, flights, rate, children)
        with report.step("site A serves; at site B, rt pull --standby copies its log and state"):
            sites.begin()
            sites.publish(0)
            sites.wait_for_standby(sites.standby)
        with report.step("the line breaks: what is published now is confirmed, and only A has it"):
            sites.stop("standby")
            before = sites.merged
            sites.publish(1)
            report.sent_again = sites.merged - before
        with report.step("site A dies (SIGKILL); B goes on: rt standby promote --now"):
            sites.lose_first()
            sites.promote("b", sites.standby, "--now")
        with report.step("publishers send B again what it lacks, and go on"):
            sites.ship("b")
            sites.publish(2)
        with report.step("site A is back: rt standby rejoin makes its log a copy of B's"):
            sites.rejoin(sites.old)
            sites.pull_standby(sites.old, "b")
            sites.wait_for_standby(sites.old)
        with report.step("the way back, with nothing lost: rt standby promote --drained"):
            sites.promote("a2", sites.old, "--drained", *sites.link("b", "operator"))
            sites.stop("standby", "push", *sites.names["b"])
        with report.step("publishers go on at A"):
            sites.ship("a2")
            sites.publish(3)
        with report.step("the reader's copy follows: rt standby rejoin, rt pull"):
            sites.rejoin(sites.copy)
            sites.run("pull", "--once", "--root", sites.copy, *sites.link("a2", "subscriber"))
        report.flights = sites.check()
    return report


def print_sites(report: SitesReport) -> None:
    """Print the result of each step, and how many flights arrived."""
    click.echo()
    click.echo(table(["what", "seconds"], [[words, f"{took:.1f}"] for words, took in report.steps]))
    total = sum(report.flights.values())
    click.echo(
        f"\nEvery flight of {total:,} arrived once, and each airport's in order. When A died, "
        f"{report.sent_again:,} of them\nwere confirmed and nowhere else: publishers had kept them "
        "(rt push --keep standby), and sent them to B."
    )


class _Sites:
    """Two sites on one machine, each in its own directories.

    Threads: one thread calls everything but `_publish`, which a pool runs and which changes no
    field.
    """

    def __init__(
        self, root: str, flights: Mapping[str, Sequence[bytes]], rate: int, children: Children
    ) -> None:
        self._root, self._flights, self._rate = root, flights, rate
        self._children = children
        self._running: dict[str, Child] = {}
        self.names: dict[str, list[str]] = {}  # the nodes of each cluster
        self.merged = 0  # flights that were published and merged
        self._places: list[str] = []  # of the nodes that serve now
        self.standby, self.copy = os.path.join(root, "standby"), os.path.join(root, "copy")
        self.old = os.path.join(root, "a", "n1")

    def begin(self) -> None:
        """Found the first cluster, and start its clients and its standby."""
        a = os.path.join(self._root, "a")
        make_private_directory(a)
        init_cluster(
            a, STREAM, free_addresses(_NODES), publishers=("airports",),
            subscribers=("subscriber",), sessions=[each.lower() for each in self._flights],
        )  # fmt: skip
        issue(self._certs, "edge", CertificateRole.MIRROR, streams=(STREAM,))
        self._start_nodes("a")
        self.ship("a")
        self._begin("pull", "pull", "--root", self.copy, *self.link("a", "subscriber"))
        self.pull_standby(self.standby, "a")

    def ship(self, cluster: str) -> None:
        """Push to a cluster from now on."""
        self.stop("push")
        airports = os.path.join(self._root, "airports")
        link = self.link(cluster, "airports")
        self._begin("push", "push", "--root", airports, "--keep", "standby", *link)

    def pull_standby(self, root: str, cluster: str) -> None:
        """Start a puller that keeps a copy of a cluster's log and state."""
        self._begin("standby", "pull", "--root", root, "--standby", *self.link(cluster, "edge"))

    def publish(self, part: int) -> None:
        """Publish one part of the flights, and wait until all of it is merged."""
        shares = {
            airport: lines[len(lines) * part // _PARTS : len(lines) * (part + 1) // _PARTS]
            for airport, lines in self._flights.items()
        }
        with ThreadPoolExecutor(len(shares)) as pool:  # a process each would start 12 times
            self.merged += sum(pool.map(self._publish, shares, shares.values()))
        self._wait(lambda: self._served()[0] >= self.merged, "not all flights are merged")

    def _publish(self, airport: str, lines: Sequence[bytes]) -> int:
        """Publish an airport's lines at its rate; return how many."""
        pace, root = Pace(self._rate), os.path.join(self._root, "airports")
        with Publisher(root, stream=STREAM, session=airport.lower()) as publisher:
            for first in range(0, len(lines), _CHUNK):
                chunk = lines[first : first + _CHUNK]
                time.sleep(pace.wait_s(len(chunk), time.monotonic()))
                publisher.publish_many(chunk)
        return len(lines)

    def wait_for_standby(self, root: str) -> None:
        """Wait until a standby has all of the log, and the state as of the log's end."""

        def has_all() -> bool:
            with suppress(Misuse):
                record = read_record(root, STREAM)
                return bool(record.state_index) and record.proven_to == str(self._served()[1])
            return False

        self._wait(has_all, "the standby has not caught up")

    def lose_first(self) -> None:
        """Kill all nodes of the first cluster, and stop what was connected to them."""
        for name in self.names["a"]:
            self._running.pop(name).kill()
        self.stop("push", "pull")

    def promote(self, cluster: str, root: str, *how: str) -> None:
        """Found a cluster that continues a standby's log, and start it."""
        addresses = [word for each in free_addresses(_NODES) for word in ("--address", each)]
        self.run(
            "standby", "promote", os.path.join(self._root, cluster), "--root", root, "--stream",
            STREAM, "--authority", self._certs, *_CLIENTS, *addresses, *how,
        )  # fmt: skip
        self._start_nodes(cluster)

    def rejoin(self, root: str) -> None:
        """Turn a copy of the lost cluster's log into a copy of the log that continues it."""
        succession = os.path.join(self.standby, STREAM, "standby.succession")
        self.run("standby", "rejoin", "--root", root, "--stream", STREAM, "--certs", self._certs,
                 "--succession", succession)  # fmt: skip

    def check(self) -> dict[str, int]:
        """Return how many flights of each airport the copy has.

        Raises:
            RtError: a flight is missing, doubled or out of order.
        """
        found: dict[str, list[bytes]] = {each: [] for each in self._flights}
        with Subscriber(self.copy, stream=STREAM, follow=False) as reader:
            for batch in reader.batches():
                found[batch.session.upper()] += batch.payloads()
        for airport, lines in self._flights.items():
            if found[airport] != list(lines):
                raise RtError(
                    f"{airport}: {len(found[airport])} of {len(lines)} flights, or others"
                )
        return {airport: len(lines) for airport, lines in found.items()}

    def link(self, cluster: str, identity: str) -> list[str]:
        """Return the options with which a program reaches a cluster."""
        config = os.path.join(self._root, cluster, CLIENTS_NAME)
        return ["--config", config, "--certs", self._certs, "--identity", identity]

    def stop(self, *names: str) -> None:
        """Stop these processes, all at the same time; ignore those that do not run."""
        running = [self._running.pop(name) for name in names if name in self._running]
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(Child.stop, running):
                pass

    def run(self, *arguments: str) -> None:
        """Run a command to its end; `RtError` if it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "rt", *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RtError(
                f"rt {' '.join(arguments[:2])} ended with {done.returncode}: {done.stderr}"
            )

    @property
    def _certs(self) -> str:
        return os.path.join(self._root, "a", "certs")

    def _begin(self, name: str, *arguments: str) -> None:
        self._running[name] = self._children.start(name, *arguments)

    def _start_nodes(self, cluster: str) -> None:
        """Found and start the nodes of a cluster."""
        configs = sorted(glob.glob(os.path.join(self._root, cluster, "n*.toml")))
        for config in configs:
            found_streams(load(NodeSettings, config, "node", environment={}))
        names = [os.path.basename(config).removesuffix(".toml") for config in configs]
        for name, config in zip(names, configs, strict=True):
            self._begin(name, "node", "--config", config, "--snapshot-s", _SNAPSHOT_S)
        ports = [self._running[name].first_line(_SERVES)[1] for name in names]
        self._places = [f"localhost:{port}" for port in ports]
        self.names[cluster] = names

    def _served(self) -> tuple[int, Position]:
        """Return how many messages the furthest node has merged, and where its log ends."""
        contexts = Contexts(certificate_files(self._certs, "subscriber"), client_context)
        found = (0, Position(0))
        for place in self._places:
            with suppress(OSError, RtError):
                answer = ask_status(parse_address(place), contexts)
                end = Position.parse(str(answer["merged_end"]))
                found = max(found, (int(answer["messages"]), end))
        return found

    def _wait(self, is_over: Callable[[], bool], words: str) -> None:
        end_s = time.monotonic() + _WAIT_S
        while not is_over():
            if time.monotonic() > end_s:
                raise RtError(
                    f"{words} after {duration_text(_WAIT_S)}; this machine may be too busy"
                )
            time.sleep(_POLL_S)
