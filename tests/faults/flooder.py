"""`python -m tests.faults.flooder KIND CERTS PORT...`: one hostile peer, until it is killed.

It runs at the lowest priority, so that a measurement shows what it costs a node, not what it takes
from the processor that node and flooder share.
"""

import http.client
import os
import random
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle

from replicator.wire.codec import PULL, PUSH, VERSION, Hello, encode
from replicator.wire.messages import Ack, Data, Heartbeat, Open, RolledNotice
from rt.errors import RtError
from rt.format.columns import encode_columns
from rt.format.frame import encode_frame, session_tag
from rt.format.manifest import SESSION, LogIdentity, Rolled
from rt.net.admin import ADMIN_ALPN
from rt.net.authority.certificates import certificate_files
from rt.net.question import STATUS_ALPN
from rt.net.tls import client_context, connect, offering
from rt.position import START, Position

HELD = 600
CHATTERING = 12
PATIENCE_S = 10.0
FILING = 12
FILING_SESSIONS = 85  # on each connection: 1,020 in all, of the 1,024 that a name may push
FILES = 50  # in each session; 64 without a frame are refused
REOPENED_S = 1.0
ACKED = (START,) * 5
ASKING = 24  # threads, each with its own connection, that ask again when they have an answer
SESSIONS = 1000  # in the stream, so that an answer about all of them is large
OPENED = 100  # on one connection
QUIET_S = 1.5
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
    """Connect, send something that is not TLS, and disconnect."""
    while True:
        with suppress(OSError), socket.create_connection(next(addresses), 1) as sock:
            sock.sendall(random.randbytes(random.randrange(64)))


def holding(name: str, alpn: str, first: bytes) -> Callable[[Iterator[Address], str], None]:
    """Return a flood of connections by one certificate's holder, as many as it gets."""

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
            held.append(connect(next(addresses), context, PATIENCE_S)[0])
            held[-1].sendall(first)
            held[-1].settimeout(0)
        for sock in cycle(held):
            with suppress(OSError):
                sock.send(chatter)

    return flood


def filing(name: str) -> Callable[[Iterator[Address], str], None]:
    """Return a flood of small files, in as many sessions as one name may push.

    Its connections are made again as soon as they have sent all files.
    """

    def flood(addresses: Iterator[Address], certs: str) -> None:
        files = certificate_files(certs, name)
        context = client_context(files.ca, files.cert, files.key)
        sent = [_files(name, number * FILING_SESSIONS) for number in range(FILING)]
        held: dict[int, tuple[ssl.SSLSocket, memoryview, float]] = {}
        for number in cycle(range(FILING)):
            with suppress(OSError, RtError):
                if number not in held:
                    sock, _ = connect(next(addresses), context, 2)
                    held[number] = sock, memoryview(sent[number]), 0.0
                held[number] = _pushed(*held[number])
                if 0 < held[number][2] < time.monotonic():
                    held.pop(number)[0].close()
                continue
            if number in held:
                held.pop(number)[0].close()

    return flood


def asking(request: bytes, alpn: str = ADMIN_ALPN) -> Callable[[Iterator[Address], str], None]:
    """Return a flood of one question, over persistent connections where possible.

    Args:
        request: the question; empty if a connection alone is answered.
        alpn: the protocol.
    """

    def flood(addresses: Iterator[Address], certs: str) -> None:
        files = certificate_files(certs, "subscriber")
        context = offering(client_context(files.ca, files.cert, files.key), alpn)

        def ask(address: Address) -> None:
            while True:
                with suppress(OSError, RtError):
                    sock, _ = connect(address, context, PATIENCE_S)
                    with sock:
                        sock.settimeout(PATIENCE_S)
                        _converse(sock, request)
                        continue
                time.sleep(0.01)

        _at_once(ask, addresses)

    return flood


def _converse(sock: ssl.SSLSocket, request: bytes) -> None:
    """Ask until the other side hangs up."""
    if request:
        sock.sendall(request)
    while data := sock.recv(1 << 18):
        if request and data.endswith(b"\n"):
            sock.sendall(request)


def browsing(path: str) -> Callable[[Iterator[Address], str], None]:
    """Return a flood of requests for a path of the HTTP ports, which follow those of the nodes."""

    def flood(addresses: Iterator[Address], _certs: str) -> None:
        def ask(address: Address) -> None:
            while True:
                with suppress(OSError, http.client.HTTPException):
                    page = http.client.HTTPConnection("127.0.0.1", address[1], timeout=PATIENCE_S)
                    while True:
                        page.request("GET", path)
                        page.getresponse().read()

        _at_once(ask, addresses, 60)

    return flood


def _at_once(ask: Callable[[Address], None], addresses: Iterator[Address], count: int = ASKING):
    threads = [
        threading.Thread(target=ask, args=(next(addresses),), daemon=True) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def crowd(address: Address, certs: str, name: str) -> None:
    """Open as many sessions as a large stream has, each with a frame that is merged."""
    files = certificate_files(certs, name)
    context = client_context(files.ca, files.cert, files.key)
    for first in range(0, SESSIONS, OPENED):
        sock, _ = connect(address, context, PATIENCE_S)
        with sock:
            sock.sendall(_begun(name, first))
            sock.settimeout(QUIET_S)  # once quiet, it has answered everything
            end_s = time.monotonic() + PATIENCE_S
            with suppress(TimeoutError):
                while time.monotonic() < end_s and sock.recv(1 << 16):
                    pass


def _begun(name: str, first: int) -> bytes:
    said = [encode(Hello(VERSION, VERSION, PUSH, STREAM, "x"))]
    for channel in range(OPENED):
        session = f"{name}-{first + channel}"
        identity = LogIdentity(SESSION, STREAM, session, f"{first + channel + 1:032x}", 1)
        said += encode(Open(channel, identity)), encode(Data(channel, START, _frame(session)))
    return b"".join(said)


def _frame(session: str, start: Position = START, sequence: int = 0) -> memoryview:
    return memoryview(b"".join(encode_frame(
        encode_columns([1], [b"x"]), position=start, sequence=sequence, time_ns=1, messages=1,
        durable=start, session_tag=session_tag(session),
    ).parts))  # fmt: skip


def _pushed(
    sock: ssl.SSLSocket, left: memoryview, until_s: float
) -> tuple[ssl.SSLSocket, memoryview, float]:
    sock.settimeout(0)
    with suppress(ssl.SSLWantReadError):
        if not sock.recv(1 << 16):
            raise OSError("it hung up")
    with suppress(ssl.SSLWantWriteError):
        left = left[sock.send(left[: 1 << 14]) :] if left else left
    return sock, left, until_s or (0.0 if left else time.monotonic() + REOPENED_S)


def _files(name: str, first: int) -> bytes:
    """Return messages that offer some sessions: half with files without a frame, half with one."""
    said = [encode(Hello(VERSION, VERSION, PUSH, STREAM, "x"))]
    for channel in range(FILING_SESSIONS):
        session = f"{name}-{first + channel}"
        identity = LogIdentity(SESSION, STREAM, session, f"{first + channel + 1:032x}", 1)
        said.append(encode(Open(channel, identity)))
        for run in range(FILES):
            start = Position.of(run, 0, 0)
            if channel % 2:
                said.append(encode(RolledNotice(channel, Rolled(start, 0, 0, 0, 0, 0, 0))))
                continue
            frame = _frame(session, start, run)
            said.append(encode(Data(channel, start, frame)))
            line = Rolled(start, len(frame), run, run + 1, 1, 1, 1)
            said.append(encode(RolledNotice(channel, line)))
    return b"".join(said)


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
    "files": filing("publisher"),
    "mirror": chattering(
        "mirror",
        encode(Hello(VERSION, VERSION, PULL, STREAM, "x")),
        encode(Ack(0, *ACKED)) * 512,
    ),
    "member": chattering(
        "n3", encode(Hello(VERSION, VERSION, PUSH, STREAM, "x")), encode(Heartbeat()) * 4096
    ),
    "pullers": holding("subscriber", "", encode(Hello(VERSION, VERSION, PULL, STREAM, "x"))),
    "sessions": asking(b'{"do": "sessions", "stream": "flights", "keep": true}\n'),
    "plan": asking(b'{"do": "plan", "stream": "flights", "keep": true}\n'),
    "cursors": asking(b'{"do": "cursors", "stream": "flights", "keep": true}\n'),
    "log-history": asking(b'{"do": "log-history", "stream": "flights"}\n'),
    "status": asking(b"", STATUS_ALPN),
    "http": browsing("/log-history"),
    "http-sessions": browsing("/status"),
    "gateway": browsing("/v1/log?from=earliest&where=.none=1"),
    "operator": holding("operator", ADMIN_ALPN, b'{"do":'),
    "stranger": holding("n9", ADMIN_ALPN, b'{"do":'),
}


OVER_HTTP = ("http", "http-sessions")  # kinds that flood the HTTP ports
OVER_GATEWAY = ("gateway",)  # kinds that flood a gateway


def main() -> None:
    """Flood until killed."""
    kind, certs, *ports = sys.argv[1:]
    os.nice(19)
    KINDS[kind](cycle(("localhost", int(port)) for port in ports), certs)


if __name__ == "__main__":
    main()
