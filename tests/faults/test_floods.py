"""Floods by strangers and by each role, with a publisher and a subscriber at work beside them."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from replicator.pull import PullClient
from replicator.push import PushClient
from rt import Publisher, Subscriber
from rt.net.certificates import certificate_files, issue
from rt.net.identity import CertificateRole
from rt.net.tls import Contexts, client_context
from tests.commands import clean_environment, start
from tests.faults.flooder import KINDS

STREAM = "flights"
MESSAGES = 200
PATIENCE_S = 30.0
GROWTH_BYTES_MAX = 128 << 20  # of each node
# Three times the usual; the floor is the noise of a machine whose two cores run everything here.
SLOWER_MAX, FLOOR_S = 3.0, 0.1
ROUNDS = 3  # the quietest counts: other programs of the machine are no flood


class Stream:
    """Three nodes in processes of their own, and clients of theirs in this one."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.process = start("up", "--nodes", "3", "--root", top / "up", "--stream", STREAM)
        assert self.process.stdout is not None
        assert b"3 nodes up" in self.process.stdout.readline()
        self.certs = str(top / "up" / "certs")
        issue(self.certs, "n9", CertificateRole.NODE)
        names = ("jfk", CertificateRole.PUBLISHER), ("spark", CertificateRole.SUBSCRIBER)
        for name, role in names:
            issue(self.certs, name, role)
        with open(top / "up" / "clients.toml", "rb") as file:
            nodes = tomllib.load(file)["push"]["nodes"]
        self.ports = [each.rpartition(":")[2] for each in nodes]
        addresses = [("localhost", int(port)) for port in self.ports]
        self.push = PushClient(str(top / "pub"), STREAM, addresses, self.contexts("jfk"))
        self.pull = PullClient(str(top / "sub"), STREAM, addresses, self.contexts("spark"))
        self.publisher = Publisher(str(top / "pub"), stream=STREAM, session="jfk")
        self.sent = 0

    def contexts(self, name: str) -> Contexts:
        """Return the contexts of a certificate."""
        return Contexts(certificate_files(self.certs, name), client_context)

    def latencies(self) -> list[float]:
        """Publish messages one after the other; return how long each took to be merged."""
        found = []
        for _ in range(MESSAGES):
            began = time.monotonic()
            self.publisher.publish(b"%d" % self.sent)
            self.publisher.flush("merged", PATIENCE_S)
            found.append(time.monotonic() - began)
            self.sent += 1
        return sorted(found)

    def bytes_used(self) -> list[int]:
        """Return the resident memory of each node."""
        found = []
        for directory in os.listdir("/proc"):
            try:
                with open(f"/proc/{directory}/cmdline", "rb") as file:
                    is_node = f"{self.top}/up/n".encode() in file.read()
                with open(f"/proc/{directory}/statm", encoding="ascii") as file:
                    pages = int(file.read().split()[1])
            except OSError:
                continue
            if is_node:
                found.append(pages * os.sysconf("SC_PAGE_SIZE"))
        return found

    def close(self) -> None:
        """Stop everything."""
        self.publisher.close()
        self.push.stop()
        self.pull.stop()
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """Return a cluster that is pushed to and pulled from."""
    stream = Stream(tmp_path_factory.mktemp("floods"))
    stream.push.start()
    stream.publisher.publish(b"first")
    stream.publisher.flush("merged", PATIENCE_S)
    stream.sent = 1
    stream.pull.start()
    yield stream
    stream.close()


def p99(latencies: list[float]) -> float:
    """Return the 99th percentile."""
    return latencies[len(latencies) * 99 // 100 - 1]


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
def test_a_flood_costs_a_publisher_and_a_subscriber_little(stream, kind, capsys):
    """Nothing of theirs is refused, nothing waits for the flood to end, memory stays bounded."""
    usual, before = stream.latencies(), stream.bytes_used()
    assert len(before) == 3
    command = [sys.executable, "-m", "tests.faults.flooder", kind, stream.certs, *stream.ports]
    with subprocess.Popen(command, env=clean_environment()) as flooder:
        try:
            time.sleep(3)  # the flood has to be at its height
            flooded = min((stream.latencies() for _ in range(ROUNDS)), key=p99)
            grown = [now - then for now, then in zip(stream.bytes_used(), before, strict=True)]
            assert flooder.poll() is None
        finally:
            flooder.kill()
    said = f"{kind}: p99 {p99(usual) * 1e3:.1f} ms, flooded {p99(flooded) * 1e3:.1f} ms"
    with capsys.disabled():
        print(f"\n{said}, memory +{max(grown) >> 20} MiB")
    assert p99(flooded) <= max(SLOWER_MAX * p99(usual), FLOOR_S), said
    assert max(grown) <= GROWTH_BYTES_MAX
    assert not [each.error for each in stream.push.status() if each.error]
    assert received(stream) == stream.sent


def received(stream: Stream) -> int:
    """Return how many messages the subscriber's copy holds, once it has all."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with Subscriber(str(stream.top / "sub"), stream=STREAM, follow=False) as subscriber:
            count = sum(1 for _ in subscriber)
        if count >= stream.sent:
            return count
        time.sleep(0.2)
    return count
