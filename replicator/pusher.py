"""Pusher: ships sessions to one node, by a thread of its own."""

import logging
import os
import socket
import threading
import time
from contextlib import ExitStack
from random import Random
from typing import Final, Protocol

from replicator.backoff import LAST_S, Backoff, Complaint
from replicator.greeting import greet
from replicator.link import Link, pause, shut
from replicator.outlet import Outlet
from replicator.progress import SessionProgress, SessionStatus
from replicator.source_side import SourceSide
from replicator.wire import PUSH, Ack
from rt import confirmations
from rt.errors import CorruptLog, PeerError, Refused, spoken
from rt.log_directory import LogDirectory
from rt.position import START
from rt.tls import Contexts, connect
from rt.watch import Wake, Watch

Address = tuple[str, int]
_log: Final = logging.getLogger(__name__)
_SWEEP_S: Final = 1.0  # a look at every session, for what no event told of
_SWEEP_ONLY_S: Final = 0.05  # where there are no events
_BUSY_RETRY_S: Final = 0.5  # the node may still hold the connection that we have lost
_REFUSED_RETRY_S: Final = 30.0  # somebody has to mend something first
_SOON: Final = frozenset({"busy", "reserve", "behind"})


class Book(Protocol):
    """Which sessions there are to ship."""

    directory: str
    stream: str

    def names(self) -> list[str]:
        """The sessions there are now."""

    def path(self, session: str) -> str:
        """The directory of a session."""

    def progress(self, session: str) -> SessionProgress:
        """What is known of a session."""


class Pusher:
    """Keeps a connection to one node, and on it a channel for each session."""

    def __init__(self, node: Address, contexts: Contexts, book: Book) -> None:
        self.name = f"{node[0]}:{node[1]}"
        self._node = node
        self._contexts = contexts
        self._book = book
        self._wake = Wake()
        self._stopping = False
        self._backoff = Backoff(Random())
        self._complaint = Complaint(_log, f"push to {self.name}")
        self._complaints: dict[str, Complaint] = {}  # by session
        self._thread = threading.Thread(target=self._run, name=f"push {self.name}", daemon=True)
        self._outlets: dict[str, Outlet] = {}  # by session
        self._errors: dict[str, str] = {}  # by session; why it is not shipped
        self._retry_at_s: dict[str, float] = {}
        self._error = "not connected yet"
        self._hints: set[str | None] = set()
        self._sock: socket.socket | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End soon."""
        self._stopping = True
        self._wake.set()
        if (sock := self._sock) is not None:
            shut(sock)  # it may be waiting for a peer that takes nothing

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._wake.close()

    def hint(self, session: str | None) -> None:
        """Look at this session, or at all, without waiting for an event."""
        self._hints.add(session)
        self._wake.set()

    def has_settled(self, session: str, *, merged: bool = False) -> bool:
        """Whether the node has synced, or even merged, all that is in the session now."""
        outlet = self._outlets.get(session)
        if outlet is None or outlet.has_news():
            return False
        progress = self._book.progress(session)
        reached = progress.merged if merged else progress.durable
        return reached.get(self.name, START) >= outlet.position

    def status(self, session: str) -> SessionStatus:
        """Return how a session stands with this node."""
        outlet = self._outlets.get(session)
        return SessionStatus(
            session, self.name, outlet is not None,
            outlet.position if outlet else START,
            self._book.progress(session).durable.get(self.name, START),
            outlet.bytes_left() if outlet else 0,
            self._errors.get(session) or self._error,
        )  # fmt: skip

    def _run(self) -> None:
        while not self._stopping:
            began_s = time.monotonic()
            try:
                self._ship()
            except (PeerError, Refused, OSError) as error:
                self._error = spoken(error)
                if not self._stopping:
                    self._complaint.say(self._error)
            self._outlets, self._sock = {}, None
            if time.monotonic() - began_s > LAST_S:
                self._backoff.reset()
            if not self._stopping:
                pause(self._wake, self._backoff.next_s())

    def _ship(self) -> None:
        sock, _ = connect(self._node, self._contexts.current())
        with ExitStack() as undo:
            link = Link(sock, self._wake, self.name)
            undo.callback(link.close)
            self._sock = sock
            greet(link, PUSH, self._book.stream)
            side = SourceSide(link, acked=self._take_ack, refused=self._take_refusal)
            undo.callback(side.close)
            # what each node confirms is noted beside the session's files
            watch = undo.enter_context(Watch(ignored=(confirmations.FILE_NAME,)))
            watch.add(self._book.directory)
            link.listen(watch.fileno())
            self._error = ""
            self._errors, self._retry_at_s = {}, {}
            _log.info("push to %s: connected", self.name)
            self._loop(link, side, watch)

    def _loop(self, link: Link, side: SourceSide, watch: Watch) -> None:
        sweep_s = _SWEEP_S if watch.fileno() >= 0 else _SWEEP_ONLY_S
        next_sweep_s = 0.0
        while not self._stopping:
            now = time.monotonic()
            if now >= next_sweep_s:
                self._sweep(side, watch)
                next_sweep_s = now + sweep_s
            side.turn()
            ready = link.wait(0 if side.busy else next_sweep_s - now)
            if watch.fileno() in ready:
                self._take_changes(side, watch)
            while self._hints:
                self._mark(side, self._hints.pop())

    def _take_changes(self, side: SourceSide, watch: Watch) -> None:
        changes, is_new = watch.changes(), False
        for directory in changes.directories:
            session = os.path.basename(directory)
            if directory == self._book.directory:
                is_new = True
            elif session in self._outlets:
                self._mark(side, session)
            else:
                is_new = is_new or session not in self._errors  # else the sweep tries it again
        if changes.rescan:
            self._sweep(side, watch)
        elif is_new:
            self._find(side, watch)

    def _mark(self, side: SourceSide, session: str | None) -> None:
        outlets = self._outlets
        for name in outlets if session is None else {session} & outlets.keys():
            side.mark(outlets[name])

    def _sweep(self, side: SourceSide, watch: Watch) -> None:
        """Look at all sessions: what has changed without an event, and what is new."""
        for outlet in self._outlets.values():
            if outlet.has_news():
                side.mark(outlet)
            else:
                outlet.rest()
        self._find(side, watch)

    def _find(self, side: SourceSide, watch: Watch) -> None:
        now = time.monotonic()
        for name in self._book.names():
            if name not in self._outlets and now >= self._retry_at_s.get(name, 0.0):
                path = self._book.path(name)
                watch.add(path)
                self._begin(side, name, LogDirectory(path))

    def _begin(self, side: SourceSide, name: str, log: LogDirectory) -> None:
        try:
            log.refresh()
        except (CorruptLog, OSError) as error:
            self._refuse(name, Refused("corrupt", str(error)))
            return
        if log.is_there:
            self._errors.pop(name, None)
            self._outlets[name] = side.open(log)

    def _take_ack(self, outlet: Outlet, ack: Ack) -> None:
        self._backoff.reset()
        self._complaint.reset()
        self._complaints.pop(_session(outlet), None)
        try:
            self._book.progress(_session(outlet)).take(self.name, ack)
        except OSError as error:
            self._errors[_session(outlet)] = f"what the node confirmed cannot be noted: {error}"

    def _complaint_of(self, session: str) -> Complaint:
        found = self._complaints.get(session)
        if found is None:
            found = Complaint(_log, f"push of session {session} to {self.name}")
            self._complaints[session] = found
        return found

    def _take_refusal(self, outlet: Outlet, why: Refused) -> None:
        name = _session(outlet)
        self._outlets.pop(name, None)
        self._refuse(name, why)

    def _refuse(self, name: str, why: Refused) -> None:
        self._errors[name] = str(why)
        self._complaint_of(name).say(str(why))
        retry_s = _BUSY_RETRY_S if why.code in _SOON else _REFUSED_RETRY_S
        self._retry_at_s[name] = time.monotonic() + retry_s


def _session(outlet: Outlet) -> str:
    """Return what the directory calls a session; its manifest may be another's."""
    return os.path.basename(outlet.log.path)
