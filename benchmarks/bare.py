"""The limit program of a stream: the same hops and syncs, and nothing else.

A publisher process (append, a push thread a node) -> node processes (receive, sync, merge, send)
-> a subscriber process (receive, append, read), which takes from the first node, TLS 1.3 on all
links. No checks, no agreement, no recovery: what a log-shipping transport in Python cannot go
below.
"""

import os
import socket
import ssl
import struct
import threading
import time
from multiprocessing.connection import Connection

from benchmarks.log import directory
from rt.certificates import certificate_files, init_authority, issue
from rt.identity import Role
from rt.tls import client_context, server_context

_HEAD = struct.Struct("<qI")


class Tail:
    """A file that one thread appends to and another waits for."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_CREAT | os.O_RDWR)
        self.end = 0
        self._more = threading.Condition()

    def append(self, data: bytes) -> None:
        """Write, and tell who waits."""
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
    """Send what is appended, for ever."""
    place = 0
    while True:
        data = tail.read_from(place)
        sock.sendall(data)
        place += len(data)


def receive(sock: ssl.SSLSocket, tail: Tail) -> None:
    """Append what comes, until the other side hangs up."""
    while data := sock.recv(1 << 20):
        tail.append(data)


def node(certs: str, root: str, sinks: int, decides: bool, ready: Connection) -> None:
    """Take from one connection, sync, merge, give to another if there is one."""
    listener = socket.create_server(("127.0.0.1", 0))
    ready.send(listener.getsockname()[1])
    context = server_context(*_paths(certs, "n1"))
    source, *others = (
        context.wrap_socket(listener.accept()[0], server_side=True) for _ in range(1 + sinks)
    )
    for each in (source, *others):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
                decisions.append(_HEAD.pack(merged.end, len(data)))
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
    """Append messages with their times; a thread a node ships the file."""
    tail = Tail(os.path.join(root, "session"))
    for port in ports:
        sock = _dial(port, certs, "pub")
        threading.Thread(target=ship, args=(tail, sock), daemon=True).start()
    go.recv()
    size, count, rate = plan
    began = time.perf_counter()
    for number in range(count):
        wait = began + number / rate - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        tail.append(_HEAD.pack(time.time_ns(), size) + bytes(size))
    go.recv()


def latencies(
    spawn: object, size: int, count: int, rate: float, nodes: int = 1, *, decides: bool = False
) -> list[int]:
    """Run it; return the delay of each message, ns, in order of size.

    Args:
        spawn: the context that makes processes.
        size: of a message, bytes.
        count: messages.
        rate: of them, a second.
        nodes: that all are sent to.
        decides: whether what goes where is synced too before it is merged, as a node must do that
            is to merge the same again after a crash.
    """
    with directory() as root:
        certs = os.path.join(root, "certs")
        init_authority(certs)
        issue(certs, "n1", Role.NODE)
        issue(certs, "pub", Role.PUBLISHER)
        issue(certs, "sub", Role.SUBSCRIBER)
        servers, ports = [], []
        for number in range(nodes):
            place = os.path.join(root, f"n{number}")
            os.mkdir(place)
            here, there = spawn.Pipe()  # type: ignore[attr-defined]
            arguments = (certs, place, int(number == 0), decides, there)
            servers.append(spawn.Process(target=node, args=arguments))  # type: ignore[attr-defined]
            servers[-1].start()
            ports.append(here.recv())
        go, gone = spawn.Pipe()  # type: ignore[attr-defined]
        plan = (ports, certs, root, (size, count, rate), gone)
        publisher = spawn.Process(target=publish, args=plan)  # type: ignore[attr-defined]
        publisher.start()
        time.sleep(1)  # a node takes its source first
        tail = Tail(os.path.join(root, "copy"))
        threading.Thread(
            target=receive, args=(_dial(ports[0], certs, "sub"), tail), daemon=True
        ).start()
        go.send("go")
        delays: list[int] = []
        step, place = _HEAD.size + size, 0
        while len(delays) < count:
            data = tail.read_from(place)
            now = time.time_ns()
            whole = len(data) // step
            delays += [now - _HEAD.unpack_from(data, n * step)[0] for n in range(whole)]
            place += whole * step
        go.send("end")
        publisher.join()
        for server in servers:
            server.kill()
            server.join()
    return sorted(delays)


def _paths(certs: str, name: str) -> tuple[str, str, str]:
    files = certificate_files(certs, name)
    return files.ca, files.cert, files.key


def _dial(port: int, certs: str, name: str) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client_context(*_paths(certs, name)).wrap_socket(plain, server_hostname="localhost")
