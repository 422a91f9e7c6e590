"""The limit program of a stream: the same hops and syncs, and nothing else.

A publisher process (append, a push thread a node) -> node processes (receive, sync, merge, send)
-> a subscriber process (receive, append, read), which takes from the first node, TLS 1.3 on all
links. No checks, no agreement, no recovery: a floor for any log-shipping transport in
Python.
"""

import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

from benchmarks.log import directory
from rt.net.authority.certificates import certificate_files, init_authority, issue
from rt.net.authority.identity import CertificateRole
from rt.net.tls import client_context, server_context

HEAD = struct.Struct("<qI")  # of a message: time sent in ns, bytes of payload


class Tail:
    """A file that one thread appends to and another waits for."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_CREAT | os.O_RDWR)
        self.end = 0
        self._more = threading.Condition()

    def append(self, data: bytes) -> None:
        """Write, and wake the readers."""
        os.write(self.fd, data)
        self.announce(self.end + len(data))

    def announce(self, end: int) -> None:
        """Say that bytes up to `end` may be read."""
        with self._more:
            self.end = end
            self._more.notify_all()

    def read_from(self, place: int) -> bytes:
        """Wait for bytes from `place` on and read up to 1 MiB of them."""
        with self._more:
            self._more.wait_for(lambda: self.end > place)
        return os.pread(self.fd, min(1 << 20, self.end - place), place)


def ship(tail: Tail, sock: ssl.SSLSocket) -> None:
    """Send whatever is appended, until the process ends."""
    place = 0
    while True:
        data = tail.read_from(place)
        sock.sendall(data)
        place += len(data)


def receive(sock: ssl.SSLSocket, tail: Tail) -> None:
    """Append whatever arrives, until the peer hangs up."""
    while data := sock.recv(1 << 20):
        tail.append(data)


class Place(NamedTuple):
    """Where a node runs: its number, directory, and the ports of the nodes started before it."""

    number: int
    root: str
    certs: str
    ports: list[int]


Node = Callable[[Place, Connection], None]


def node(place: Place, ready: Connection, *, decides: bool = False) -> None:
    """Receive on one connection, sync, merge; the first node sends on another connection.

    Args:
        place: the place of the node.
        ready: is sent the port.
        decides: whether the decision is also synced before merging, as a node must do to merge the
            same again after a crash.
    """
    root = place.root
    listener = socket.create_server(("127.0.0.1", 0))
    ready.send(listener.getsockname()[1])
    sinks = int(place.number == 0)
    source, *others = (accepted(listener, place.certs) for _ in range(1 + sinks))
    received, synced = Tail(os.path.join(root, "in")), Tail(os.path.join(root, "in"))
    merged, decisions = Tail(os.path.join(root, "out")), Tail(os.path.join(root, "decisions"))

    def sync() -> None:
        while True:
            received.read_from(synced.end)
            end = received.end
            os.fdatasync(received.fd)
            synced.announce(end)

    def merge() -> None:
        while True:
            data = synced.read_from(merged.end)
            if decides:
                decisions.append(HEAD.pack(merged.end, len(data)))
                os.fdatasync(decisions.fd)
            merged.append(data)

    for work in (sync, merge):
        threading.Thread(target=work, daemon=True).start()
    for sink in others:
        threading.Thread(target=ship, args=(merged, sink), daemon=True).start()
    receive(source, received)


def publish(
    ports: list[int], certs: str, root: str, plan: tuple[int, int, float], go: Connection
) -> None:
    """Append messages with their times; one thread per node ships the file."""
    tail = Tail(os.path.join(root, "session"))
    for port in ports:
        sock = dial(port, certs, "pub")
        threading.Thread(target=ship, args=(tail, sock), daemon=True).start()
    go.recv()
    size, count, rate = plan
    began = time.perf_counter()
    for number in range(count):
        wait = began + number / rate - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        tail.append(HEAD.pack(time.time_ns(), size) + bytes(size))
    go.recv()


def latencies(
    spawn: object, size: int, count: int, rate: float, nodes: int = 1, *, work: Node = node
) -> list[int]:
    """Run it; return the delay of each message in ns, sorted.

    Args:
        spawn: the context that makes processes.
        size: the size of a message, bytes.
        count: messages.
        rate: messages a second.
        nodes: that all are sent to.
        work: of a node, in a process of its own.
    """
    with directory() as root:
        certs = os.path.join(root, "certs")
        init_authority(certs)
        issue(certs, "n1", CertificateRole.NODE)
        issue(certs, "pub", CertificateRole.PUBLISHER)
        issue(certs, "sub", CertificateRole.SUBSCRIBER)
        servers = []
        ports: list[int] = []
        for number in range(nodes):
            home = os.path.join(root, f"n{number}")
            os.mkdir(home)
            here, there = spawn.Pipe()  # type: ignore[attr-defined]
            arguments = (Place(number, home, certs, ports), there)
            servers.append(spawn.Process(target=work, args=arguments))  # type: ignore[attr-defined]
            servers[-1].start()
            ports.append(here.recv())
        go, gone = spawn.Pipe()  # type: ignore[attr-defined]
        plan = (ports, certs, root, (size, count, rate), gone)
        publisher = spawn.Process(target=publish, args=plan)  # type: ignore[attr-defined]
        publisher.start()
        time.sleep(1)  # a node takes its source first
        tail = Tail(os.path.join(root, "copy"))
        threading.Thread(
            target=receive, args=(dial(ports[0], certs, "sub"), tail), daemon=True
        ).start()
        go.send("go")
        delays: list[int] = []
        step, place = HEAD.size + size, 0
        while len(delays) < count:
            data = tail.read_from(place)
            now = time.time_ns()
            whole = len(data) // step
            delays += [now - HEAD.unpack_from(data, n * step)[0] for n in range(whole)]
            place += whole * step
        go.send("end")
        publisher.join()
        for server in servers:
            server.kill()
            server.join()
    return sorted(delays)


def paths_of(certs: str, name: str) -> tuple[str, str, str]:
    """Return the authority, certificate and key of a name."""
    files = certificate_files(certs, name)
    return files.ca, files.cert, files.key


def accepted(listener: socket.socket, certs: str) -> ssl.SSLSocket:
    """Accept the next connection."""
    plain = listener.accept()[0]
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server_context(*paths_of(certs, "n1")).wrap_socket(plain, server_side=True)


def dial(port: int, certs: str, name: str) -> ssl.SSLSocket:
    """Connect to a port of this machine under this name."""
    plain = socket.create_connection(("127.0.0.1", port))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client_context(*paths_of(certs, name)).wrap_socket(plain, server_hostname="localhost")
