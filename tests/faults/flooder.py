"""`python -m tests.faults.flooder KIND CERTS PORT...`: one hostile peer, until it is killed.

It runs at the lowest priority, so that what is measured is what it takes from a node, and not what
it takes from the processor that node and flooder share.
"""

import os
import random
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle

from replicator.messages import Ack, Data, Heartbeat
from replicator.wire import PULL, PUSH, VERSION, Hello, encode
from rt.errors import RtError
from rt.net.admin import ADMIN_ALPN
from rt.net.certificates import certificate_files
from rt.net.tls import client_context, connect, offering
from rt.node.status import STATUS_ALPN
from rt.position import START

HELD = 600
CHATTERING = 12
ACKED = (START,) * 5
STREAM = "flights"
Address = tuple[str, int]


def idle(addresses: Iterator[Address], _certs: str) -> None:
    """Hold many connections that never begin a handshake; reopen those that end."""
    held: list[socket.socket] = []
    while True:
        with suppress(OSError):
            held.append(socket.create_connection(next(addresses), 1))
        if len(held) > HELD:
            held.pop(random.randrange(len(held))).close()
        time.sleep(0.001)


def churn(addresses: Iterator[Address], _certs: str) -> None:
    """Connect, send something that is not TLS, and go."""
    while True:
        with suppress(OSError), socket.create_connection(next(addresses), 1) as sock:
            sock.sendall(random.randbytes(random.randrange(64)))


def holding(name: str, alpn: str, first: bytes) -> Callable[[Iterator[Address], str], None]:
    """Return a flood by the holder of one certificate, with as many connections as it gets."""

    def flood(addresses: Iterator[Address], certs: str) -> None:
        files = certificate_files(certs, name)
        context = client_context(files.ca, files.cert, files.key)
        held: list[socket.socket] = []
        while True:
            with suppress(OSError, RtError):
                sock, _ = connect(next(addresses), offering(context, alpn) if alpn else context, 2)
                sock.sendall(first)
                held.append(sock)
            if len(held) > HELD:
                held.pop(0).close()

    return flood


def chattering(name: str, first: bytes, chatter: bytes) -> Callable[[Iterator[Address], str], None]:
    """Return a flood of short messages over a few connections, as fast as they are taken."""

    def flood(addresses: Iterator[Address], certs: str) -> None:
        files = certificate_files(certs, name)
        context = client_context(files.ca, files.cert, files.key)
        held: list[ssl.SSLSocket] = []
        for _ in range(CHATTERING):
            held.append(connect(next(addresses), context, 2)[0])
            held[-1].sendall(first)
            held[-1].settimeout(0)
        for sock in cycle(held):
            with suppress(OSError):
                sock.send(chatter)

    return flood


KINDS = {
    "idle": idle,
    "churn": churn,
    "publisher": holding(
        "publisher", "", encode(Hello(VERSION, VERSION, PUSH, STREAM, "x")) + b"\xff\xff\xff\x00"
    ),
    "hoarder": holding(
        "publisher",
        "",
        encode(Hello(VERSION, VERSION, PUSH, STREAM, "x"))
        + encode(Data(0, START, memoryview(bytes(1_000_000))))[:-1],
    ),
    "subscriber": holding("subscriber", STATUS_ALPN, b""),
    "chatter": chattering(
        "publisher", encode(Hello(VERSION, VERSION, PUSH, STREAM, "x")), encode(Heartbeat()) * 4096
    ),
    "reader": chattering(
        "subscriber",
        encode(Hello(VERSION, VERSION, PULL, STREAM, "x")),
        encode(Ack(0, *ACKED)) * 512,
    ),
    "operator": holding("operator", ADMIN_ALPN, b'{"do":'),
    "stranger": holding("n9", ADMIN_ALPN, b'{"do":'),
}


def main() -> None:
    """Flood until killed."""
    kind, certs, *ports = sys.argv[1:]
    os.nice(19)
    KINDS[kind](cycle(("localhost", int(port)) for port in ports), certs)


if __name__ == "__main__":
    main()
