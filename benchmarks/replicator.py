"""Push over mutual TLS, disk to disk, beside the same bytes through a bare TLS socket.

    python -m benchmarks.replicator [--quick] [--json FILE] [--dir DIRECTORY]

Both move what a publisher wrote, 1 KiB messages in frames of 256 KiB, from one process to another
over loopback, and end when the receiver has synced it. The limit program is the shortest Python
that does it: read, send, receive and write, without looking at a byte.
"""

import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.log import directory
from benchmarks.report import Row, interleaved
from replicator.host import Bell
from replicator.limits.quotas import NO_QUOTA, Quota
from replicator.push.client import PushClient
from replicator.serve.client_record import ServerRecord
from replicator.serve.server import Server
from replicator.serve.streams import ServedStream, Streams
from rt import Publisher
from rt.errors import Refused
from rt.format.manifest import Archived, LogIdentity
from rt.log.files.disk import OsDisk
from rt.log.notify.confirmations import Confirmations
from rt.log.write.appender import Appender
from rt.net.authority.certificates import CertificateFiles, init_authority, issue
from rt.net.authority.identity import CertificateRole
from rt.net.tls import Contexts, client_context, server_context
from rt.position import Position
from rt.traffic import Traffic

STREAM, SESSION = "bench", "jfk"
MESSAGE = bytes(range(256)) * 4
MIB = 1 << 20


class BenchInbox:
    """A session's copy, synced again whenever the last sync has ended."""

    def __init__(self, appender: Appender) -> None:
        self.appender = appender
        self.traffic = Traffic()
        self.durable: Position = appender.sync()
        self.bell: Bell | None = None
        self.news = threading.Event()
        threading.Thread(target=self._sync, daemon=True).start()

    def written(self) -> None:
        """Schedule a sync."""
        self.news.set()

    @property
    def confirmations(self) -> Confirmations:
        """What is durable."""
        return Confirmations(self.durable, self.durable)

    def keeps(self, _entry: Archived) -> bool:
        """Keep all."""
        return True

    leave = None  # one connection fills it

    def needs(self, _end: Position) -> bool:
        """Nothing is merged."""
        return False

    def doubted(self, _why: str) -> None:
        """Its bytes are what came."""

    def release(self) -> None:
        """The connection has ended."""
        self.bell = None

    def _sync(self) -> None:
        while self.news.wait():
            self.news.clear()
            self.durable = self.appender.sync()
            if self.bell is not None:
                self.bell.set()


class BenchHost:
    """The minimum a server needs."""

    stream = STREAM
    is_first = True

    def __init__(self, root: str) -> None:
        self.root = root
        self.disk = OsDisk()

    def is_member(self, _name: str) -> bool:
        """No other node pushes here."""
        return False

    def quota(self, _publisher: str) -> Quota:
        """No limit."""
        return NO_QUOTA

    def claim(self, identity: LogIdentity, _peer: str, wake: Bell, *, relays: bool) -> BenchInbox:
        """Begin a copy."""
        if relays:
            raise Refused("role", "a publisher is wanted")
        inbox = BenchInbox(Appender(self.disk, os.path.join(self.root, identity.name), identity))
        inbox.bell = wake
        return inbox

    def why_no_headers(self) -> str:
        """They may be written."""
        return ""

    def handle_appends(self) -> None:
        """Its inboxes sync by themselves."""

    def feed(self, _wake: Bell) -> Any:
        """Refuses: this host serves no log."""
        raise Refused("feed", "this host takes pushes only")

    def damaged(self, _error: Exception, _growing: bool) -> None:
        """Serves nothing that could be."""


def serve_node(root: str, files: CertificateFiles, pipe: Connection) -> None:
    """Be a node until told to end."""
    served = ServedStream(BenchHost(root), ServerRecord(logging.getLogger("replicator.server")))
    server = Server(("localhost", 0), Contexts(files, server_context), Streams(served))
    server.start()
    pipe.send(server.address[1])
    pipe.recv()
    server.stop()
    pipe.send(time.process_time())


def serve_bare(root: str, files: CertificateFiles, pipe: Connection) -> None:
    """Receive one connection's bytes into a file, sync it, and say so."""
    context = server_context(files.ca, files.cert, files.key)
    listener = socket.create_server(("localhost", 0))
    pipe.send(listener.getsockname()[1])
    plain, _ = listener.accept()
    buffer = memoryview(bytearray(MIB))
    with context.wrap_socket(plain, server_side=True) as sock:
        target = os.open(os.path.join(root, "bare"), os.O_WRONLY | os.O_CREAT, 0o600)
        filled = 0
        while count := sock.recv_into(buffer[filled:]):
            filled += count
            if filled == len(buffer):
                os.write(target, buffer)
                filled = 0
        os.write(target, buffer[:filled])
        os.fdatasync(target)
        os.close(target)
    pipe.send(time.process_time())


def push(top: str, node: CertificateFiles, publisher: CertificateFiles, size: int) -> float:
    """Return bytes a second of the push client, up to the node's acknowledgement."""
    root = tempfile.mkdtemp(dir=top)
    process, pipe, port = _start(serve_node, root, node)
    client = PushClient(top, STREAM, [("localhost", port)], Contexts(publisher, client_context))
    began = time.perf_counter()
    client.start()
    if not client.stop(drain_s=300):
        sys.exit("the push did not end")
    took_s = time.perf_counter() - began
    pipe.send("end")
    _end(process, pipe, root)
    os.unlink(os.path.join(top, STREAM, SESSION, "confirmed"))
    return size / took_s


def bare(top: str, node: CertificateFiles, publisher: CertificateFiles, size: int) -> float:
    """Return bytes a second of the limit program."""
    root = tempfile.mkdtemp(dir=top)
    process, pipe, port = _start(serve_bare, root, node)
    context = client_context(publisher.ca, publisher.cert, publisher.key)
    directory = os.path.join(top, STREAM, SESSION)
    began = time.perf_counter()
    plain = socket.create_connection(("localhost", port))
    with context.wrap_socket(plain, server_hostname="localhost") as sock:
        for name in sorted(name for name in os.listdir(directory) if _is_log(name)):
            with open(os.path.join(directory, name), "rb", buffering=0) as file:
                while data := file.read(MIB):
                    sock.sendall(data)
    pipe.poll(300)
    took_s = time.perf_counter() - began
    _end(process, pipe, root)
    return size / took_s


def _is_log(name: str) -> bool:
    return name.startswith("log.") and not name.endswith(".idx")


def _start(work: Any, root: str, files: CertificateFiles) -> tuple[Any, Connection, int]:
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=work, args=(root, files, theirs))
    process.start()
    return process, ours, ours.recv()


def _end(process: Any, pipe: Connection, root: str) -> None:
    pipe.recv()
    process.join()
    shutil.rmtree(root)


def make_log(top: str, megabytes: int) -> int:
    """Publish the messages; return the bytes of the log."""
    with Publisher(top, stream=STREAM, session=SESSION) as publisher:
        for _ in range(megabytes):
            publisher.publish_many([MESSAGE] * 1000)
    directory = os.path.join(top, STREAM, SESSION)
    return sum(
        os.stat(os.path.join(directory, name)).st_size
        for name in os.listdir(directory)
        if _is_log(name)
    )


def rows(quick: bool) -> list[Row]:
    """Push over mutual TLS, disk to disk, against a bare TLS socket in the same run."""
    with directory() as top:
        certs = os.path.join(top, "certs")
        init_authority(certs)
        node = issue(certs, "node-1", CertificateRole.NODE)
        publisher = issue(certs, "pub", CertificateRole.PUBLISHER, sessions=["*"])
        size = make_log(top, 100 if quick else 1000)
        value, limit = interleaved(
            lambda: push(top, node, publisher, size) / 1e6,
            lambda: bare(top, node, publisher, size) / 1e6,
        )
    what = "push over mutual TLS, disk to disk, 1 KiB"
    return [Row(what, value, "MB/s", 0.7, limit, is_ratio=True)]
