"""`python -m tests.faults.flooded [KIND...]`: a publisher's p99 before and under each flood.

Run it on a quiet machine: the nodes, the clients and the flood share its processors.
"""

import argparse
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from replicator.pull.client import PullClient
from replicator.push.client import PushClient
from rt import Publisher
from rt.net.admin import ask_any
from rt.net.authority.certificates import certificate_files, issue
from rt.net.authority.identity import CertificateRole
from rt.net.tls import Contexts, client_context
from tests.commands import clean_environment, start
from tests.faults.flooder import KINDS, OVER_GATEWAY, OVER_HTTP, SESSIONS, crowd

STREAM = "flights"
MESSAGES = 200
PATIENCE_S = 30.0
CURSORS = 24  # as many as one owner may have
ROLLED = 30
ROUNDS = 3  # the quietest round counts: other programs' load is no flood


class Stream:
    """Three nodes in processes of their own, and their clients in this one."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.pages = _free_ports(3)
        self.process = start(
            "up", "--nodes", "3", "--root", top / "up", "--stream", STREAM,
            "--http", f"127.0.0.1:{self.pages[0]}",
        )  # fmt: skip
        assert self.process.stdout is not None
        while b"3 nodes up" not in (line := self.process.stdout.readline()):
            assert b"the page of" in line, line
        self.certs = str(top / "up" / "certs")
        issue(self.certs, "n9", CertificateRole.NODE)
        others = {
            "jfk": CertificateRole.PUBLISHER,
            "spark": CertificateRole.SUBSCRIBER,
            "mirror": CertificateRole.MIRROR,
        }
        for name, role in others.items():
            issue(self.certs, name, role)
        with open(top / "up" / "clients.toml", "rb") as file:
            nodes = tomllib.load(file)["push"]["nodes"]
        issue(self.certs, "crowd", CertificateRole.PUBLISHER, sessions=["crowd-*"])
        self.ports = [each.rpartition(":")[2] for each in nodes]
        addresses = [("localhost", int(port)) for port in self.ports]
        self.push = PushClient(str(top / "pub"), STREAM, addresses, self.contexts("jfk"))
        self.pull = PullClient(str(top / "sub"), STREAM, addresses, self.contexts("spark"))
        self.publisher = Publisher(str(top / "pub"), stream=STREAM, session="jfk")
        self.sent = 0

    def begin(self) -> None:
        """Push, wait until a first message is merged, and pull."""
        self.push.start()
        self.publisher.publish(b"first")
        self.publisher.flush("merged", PATIENCE_S)
        self.sent = 1
        self.pull.start()
        self.gateway = start(
            "gateway", "--config", self.top / "up" / "clients.toml", "--root", self.top / "edge",
            "--listen", "127.0.0.1:0",
        )  # fmt: skip
        assert self.gateway.stdout is not None
        line = ""
        while not (found := re.search(r"http://127.0.0.1:(\d+)/", line)):
            line = self.gateway.stdout.readline().decode()
            assert line, "the gateway has ended"
        self.gateway_port = found[1]
        for port in self.ports:
            crowd(("localhost", int(port)), self.certs, "crowd")
        self.await_crowd()
        self.fill()

    def fill(self) -> None:
        """Register cursors and roll files, so that answers about them cost something."""
        addresses = [("localhost", int(port)) for port in self.ports]
        for number in range(CURSORS):
            asked = {"do": "cursor-open", "stream": STREAM, "name": f"c{number}"}
            ask_any(addresses, self.contexts("spark"), asked)
        for _ in range(ROLLED):
            self.publisher.publish(b"%d" % self.sent)
            self.publisher.flush("merged", PATIENCE_S)
            self.sent += 1
            ask_any(addresses, self.contexts("operator"), {"do": "roll", "stream": STREAM})

    def await_crowd(self) -> None:
        """Wait until all of its sessions are merged: then their answers are large."""
        addresses = [("localhost", int(port)) for port in self.ports]
        end_s = time.monotonic() + 4 * PATIENCE_S
        merged = 0
        while merged < SESSIONS and time.monotonic() < end_s:
            rows = ask_any(addresses, self.contexts("spark"), {"do": "sessions", "stream": STREAM})[
                "sessions"
            ]
            merged = sum(each["merged"] != "0.0.0" for each in rows)
            time.sleep(0.5)
        assert merged >= SESSIONS, f"{merged} sessions were merged"

    def contexts(self, name: str) -> Contexts:
        """Return the contexts of a certificate."""
        return Contexts(certificate_files(self.certs, name), client_context)

    def latencies(self) -> list[float]:
        """Publish messages one after another; return how long each took to be merged."""
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
        for each in (self.gateway, self.process):
            each.send_signal(signal.SIGTERM)
            each.communicate(timeout=PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Flooded:
    """The cost of a flood.

    Attributes:
        usual_s, flooded_s: the 99th percentile of the time to be merged, before it and under it.
        grown_bytes: by how much the memory of each node grew.
    """

    kind: str
    usual_s: float
    flooded_s: float
    grown_bytes: list[int]

    def __str__(self) -> str:
        return (
            f"{self.kind}: p99 {self.usual_s * 1e3:.1f} ms, flooded {self.flooded_s * 1e3:.1f} ms, "
            f"memory +{max(self.grown_bytes) >> 20} MiB"
        )


def flooded(stream: Stream, kind: str) -> Flooded:
    """Measure before and under one flood."""
    usual, before = stream.latencies(), stream.bytes_used()
    ports = [str(each) for each in stream.pages] if kind in OVER_HTTP else stream.ports
    ports = [stream.gateway_port] if kind in OVER_GATEWAY else ports
    command = [sys.executable, "-m", "tests.faults.flooder", kind, stream.certs, *ports]
    with subprocess.Popen(command, env=clean_environment()) as flooder:
        try:
            time.sleep(3)  # until the flood is at its height
            under = min(p99(stream.latencies()) for _ in range(ROUNDS))
            grown = [now - then for now, then in zip(stream.bytes_used(), before, strict=True)]
            assert flooder.poll() is None
        finally:
            flooder.kill()
    return Flooded(kind, p99(usual), under, grown)


def _free_ports(count: int) -> list[int]:
    """Return consecutive ports on which nothing listens now."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            found = list(range(first.getsockname()[1], first.getsockname()[1] + count))
        with suppress(OSError):
            for port in found:
                socket.create_server(("127.0.0.1", port)).close()
            return found


def p99(latencies: list[float]) -> float:
    """Return the 99th percentile of sorted times."""
    return latencies[len(latencies) * 99 // 100 - 1]


def main() -> int:
    """Print a line for each kind of flood."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.flooded", description=__doc__)
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; none named: all"
    )
    kinds = parser.parse_args().kinds or list(KINDS)
    if unknown := set(kinds) - KINDS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory() as top:
        stream = Stream(Path(top))
        try:
            stream.begin()
            for kind in kinds:
                print(flooded(stream, kind), flush=True)
        finally:
            stream.close()
            logging.disable()  # certificates are about to be deleted with the directory
    return 0


if __name__ == "__main__":
    sys.exit(main())
