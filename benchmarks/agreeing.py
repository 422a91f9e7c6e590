"""The limit program of a cluster: nodes that sync, agree, and sync again, and nothing else.

Like `benchmarks.bare`, plus agreement: followers report to the leader, the first node, what they
have synced. It decides on what a majority has, syncs the decision while the followers do, and
merges once a majority has synced it. One decision is in flight at a time and carries everything
that arrived meanwhile. No checks, no elections, no recovery.
"""

import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Final

from benchmarks.bare import Place, accepted, dial

MEMBERS: Final = 3
MAJORITY: Final = 2
_SAID: Final = struct.Struct("<cQ")  # kind, end
_HELD, _DECIDED, _TAKEN, _COMMITTED = b"H", b"D", b"T", b"C"


class Files:
    """A node's files."""

    def __init__(self, root: str) -> None:
        self._input, self._decisions, self._output = (
            os.open(os.path.join(root, name), os.O_CREAT | os.O_RDWR)
            for name in ("in", "decisions", "out")
        )
        self.held = self.merged = 0

    def take(self, data: bytes) -> None:
        """Keep what a publisher sent."""
        os.write(self._input, data)
        os.fdatasync(self._input)
        self.held += len(data)

    def decide(self, said: bytes) -> None:
        """Keep a decision."""
        os.write(self._decisions, said)
        os.fdatasync(self._decisions)

    def merge(self, end: int) -> bytes:
        """Merge up to `end`; return the bytes."""
        data = os.pread(self._input, end - self.merged, self.merged)
        os.write(self._output, data)
        self.merged = end
        return data


class Leading:
    """The leader; it acts in the thread that brings an update."""

    def __init__(self, files: Files, followers: list[ssl.SSLSocket]) -> None:
        self._files = files
        self._followers = followers
        self.subscriber: ssl.SSLSocket | None = None
        self._held = [0] * MEMBERS
        self._taken = [0] * MEMBERS
        self._decided = 0
        self._lock = threading.Lock()

    def hear(self, sender: int, said: list[tuple[bytes, int]]) -> None:
        """Take a follower's report; continue."""
        with self._lock:
            for what, end in said:
                (self._held if what == _HELD else self._taken)[sender] = end
            self._go_on()

    def hold(self) -> None:
        """More was synced here; continue."""
        with self._lock:
            self._held[0] = self._files.held
            self._go_on()

    def _go_on(self) -> None:
        files = self._files
        while True:
            if self._decided == files.merged:
                end = min(sorted(self._held)[-MAJORITY], self._held[0])
                if end <= files.merged:
                    return
                self._tell(_DECIDED, end)
                files.decide(_SAID.pack(_DECIDED, end))
                self._decided = self._taken[0] = end
            if sorted(self._taken)[-MAJORITY] < self._decided:
                return
            data = files.merge(self._decided)
            if self.subscriber is not None:
                self.subscriber.sendall(data)
            self._tell(_COMMITTED, files.merged)

    def _tell(self, what: bytes, end: int) -> None:
        for follower in self._followers:
            follower.sendall(_SAID.pack(what, end))


def node(place: Place, ready: Connection) -> None:
    """Lead if it is the first, else follow."""
    (_follow if place.number else _lead)(place, ready)


def _lead(place: Place, ready: Connection) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    ready.send(listener.getsockname()[1])
    files = Files(place.root)
    followers = [accepted(listener, place.certs) for _ in range(MEMBERS - 1)]
    leading = Leading(files, followers)
    for number, each in enumerate(followers, 1):
        _begin(partial(_listen, leading, number, each))
    source = accepted(listener, place.certs)
    leading.subscriber = accepted(listener, place.certs)
    while data := source.recv(1 << 20):
        files.take(data)
        leading.hold()


def _listen(leading: Leading, number: int, follower: ssl.SSLSocket) -> None:
    for said in _heard(follower):
        leading.hear(number, said)


def _follow(place: Place, ready: Connection) -> None:
    leader = dial(place.ports[0], place.certs, "n1")
    listener = socket.create_server(("127.0.0.1", 0))
    ready.send(listener.getsockname()[1])
    files, lock = Files(place.root), threading.Lock()

    def tell(what: bytes, end: int) -> None:
        with lock:
            leader.sendall(_SAID.pack(what, end))

    def obey() -> None:
        for said in _heard(leader):
            for what, end in said:
                if what == _DECIDED:
                    files.decide(_SAID.pack(what, end))
                    tell(_TAKEN, end)
                else:
                    files.merge(end)

    _begin(obey)
    source = accepted(listener, place.certs)
    while data := source.recv(1 << 20):
        files.take(data)
        tell(_HELD, files.held)


def _heard(sock: ssl.SSLSocket) -> Iterator[list[tuple[bytes, int]]]:
    data = b""
    while more := sock.recv(1 << 16):
        data += more
        whole = len(data) // _SAID.size * _SAID.size
        yield list(_SAID.iter_unpack(data[:whole]))
        data = data[whole:]


def _begin(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
