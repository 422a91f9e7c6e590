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
from replicator.gather import GatherWindow
from replicator.greeting import greet
from replicator.link import HEARTBEAT_S, Link, pause, shut
from replicator.progress import SessionProgress, SessionStatus
from replicator.source_channel import SourceChannel
from replicator.source_connection import SourceConnection
from replicator.wire import PUSH, Ack
from rt.errors import CorruptLog, PeerError, Refused, spoken
from rt.log.directory import LogDirectory
from rt.log.watch import Wake
from rt.net.tls import Contexts, connect
from rt.position import START

Address = tuple[str, int]
_log: Final = logging.getLogger(__name__)
_BUSY_RETRY_S: Final = 0.5  # the node may still hold the connection that we have lost
_REFUSED_RETRY_S: Final = 30.0  # somebody has to mend something first
_SOON: Final = frozenset({"busy", "reserve", "behind"})


class ShippedSessions(Protocol):
    """Which sessions there are to ship."""

    directory: str
    stream: str

    def names(self) -> list[str]:
        """The sessions there are now."""

    def path(self, session: str) -> str:
        """The directory of a session."""

    def progress(self, session: str) -> SessionProgress:
        """What is known of a session."""


class PushConnection:
    """Keeps a connection to one node, and on it a channel for each session.

    Its thread and whoever tells it of a change take turns: who tells sends what is new where that
    is little and the node takes it at once, so that a message alone waits for no other thread.
    """

    def __init__(
        self, node: Address, contexts: Contexts, book: ShippedSessions, pace: GatherWindow
    ) -> None:
        self.name = f"{node[0]}:{node[1]}"
        self._node = node
        self._contexts = contexts
        self._book = book
        self._pace = pace
        self._wake = Wake()
        self._stopping = False
        self._backoff = Backoff(Random())
        self._complaint = Complaint(_log, f"push to {self.name}")
        self._complaints: dict[str, Complaint] = {}  # by session
        self._thread = threading.Thread(target=self._run, name=f"push {self.name}", daemon=True)
        self._outlets: dict[str, SourceChannel] = {}  # by session
        self._errors: dict[str, str] = {}  # by session; why it is not shipped
        self._retry_at_s: dict[str, float] = {}
        self._error = "not connected yet"
        self._hints: set[str] = set()  # sessions to be looked at
        self._is_to_look = False  # at all of them
        self._turn = threading.Lock()
        self._side: SourceConnection | None = None
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

    def offer(self, session: str) -> None:
        """This session may have grown; any thread may tell."""
        if self._sent_now(session):
            return
        if session in self._outlets:
            self._hints.add(session)
            self._wake.set()
        elif session not in self._errors:  # else it is tried again when all are looked at
            self.look()

    def look(self) -> None:
        """Any session may have changed, or be new; any thread may tell."""
        self._is_to_look = True
        if self._side is not None:  # else it is about to look at all, when it is connected
            self._wake.set()

    def has_settled(self, session: str, *, merged: bool = False) -> bool:
        """Whether the node has synced, or even merged, all that is in the session now."""
        outlet = self._outlets.get(session)
        if outlet is None or outlet.has_news():
            return False
        progress = self._book.progress(session)
        reached = progress.merged if merged else progress.durable
        # a file that has no frame yet, or never got one, holds nothing that a node could confirm
        return reached.get(self.name, START) >= outlet.log.manifest.frames_end(outlet.position)

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
            self._sock = None
            if time.monotonic() - began_s > LAST_S:
                self._backoff.reset()
            if not self._stopping:
                pause(self._wake, self._backoff.next_s())
        self._wake.close()  # `join` may not have waited so long

    def _ship(self) -> None:
        sock, _ = connect(self._node, self._contexts.current())
        with ExitStack() as undo:
            link = Link(sock, self._wake, self.name)
            undo.callback(link.close)
            self._sock = sock
            greet(link, PUSH, self._book.stream)
            side = self._begin_side(link)
            undo.callback(self._end_side)
            self._error = ""
            self._errors, self._retry_at_s = {}, {}
            _log.info("push to %s: connected", self.name)
            while not self._stopping:
                link.wait(self._take_turn(side))

    def _begin_side(self, link: Link) -> SourceConnection:
        self._is_to_look = True
        self._side = SourceConnection(link, acked=self._take_ack, refused=self._take_refusal)
        return self._side

    def _end_side(self) -> None:
        with self._turn:
            side, self._side, self._outlets = self._side, None, {}
            if side is not None:
                side.close()

    def _take_turn(self, side: SourceConnection) -> float:
        """Do what is to be done; return for how long to wait then."""
        with self._turn:
            if self._is_to_look:
                self._is_to_look = False
                self._look_at_all(side)
            while self._hints:
                outlet = self._outlets.get(self._hints.pop())
                if outlet is not None:
                    side.mark(outlet)
            side.turn()
            return 0.0 if side.busy else HEARTBEAT_S

    def _sent_now(self, session: str) -> bool:
        if not self._turn.acquire(blocking=False):
            return False
        try:
            outlet = self._outlets.get(session)
            if self._side is None or outlet is None or not self._side.send_now(outlet):
                return False
            self._pace.sent(session, outlet.position)
            return True
        finally:
            self._turn.release()

    def _look_at_all(self, side: SourceConnection) -> None:
        """Look at all sessions: what has changed without an event, and what is new."""
        for session, outlet in self._outlets.items():
            self._note(session)
            if outlet.has_news():
                side.mark(outlet)
            else:
                outlet.rest()
        now = time.monotonic()
        for name in self._book.names():
            if name not in self._outlets and now >= self._retry_at_s.get(name, 0.0):
                self._begin(side, name, LogDirectory(self._book.path(name)))

    def _begin(self, side: SourceConnection, name: str, log: LogDirectory) -> None:
        try:
            if log.refresh():
                self._errors.pop(name, None)
                self._outlets[name] = side.open(log)
                return
        except (CorruptLog, OSError) as error:
            self._refuse(name, Refused("corrupt", str(error)))
        log.close()

    def _take_ack(self, outlet: SourceChannel, ack: Ack) -> None:
        self._backoff.reset()
        self._complaint.reset()
        session = _session(outlet)
        self._complaints.pop(session, None)
        self._pace.merged(session, ack.merged)
        self._book.progress(session).take(self.name, ack)
        self._note(session)

    def _note(self, session: str) -> None:
        """Let the publisher know what was confirmed; where that fails it is tried every second."""
        try:
            self._book.progress(session).note()
        except OSError as error:
            self._errors[session] = f"what the node confirmed cannot be noted: {spoken(error)}"
        else:
            self._errors.pop(session, None)

    def _complaint_of(self, session: str) -> Complaint:
        found = self._complaints.get(session)
        if found is None:
            found = Complaint(_log, f"push of session {session} to {self.name}")
            self._complaints[session] = found
        return found

    def _take_refusal(self, outlet: SourceChannel, why: Refused) -> None:
        name = _session(outlet)
        self._outlets.pop(name, None)
        self._refuse(name, why)

    def _refuse(self, name: str, why: Refused) -> None:
        self._errors[name] = str(why)
        self._complaint_of(name).say(str(why))
        retry_s = _BUSY_RETRY_S if why.code in _SOON else _REFUSED_RETRY_S
        self._retry_at_s[name] = time.monotonic() + retry_s


def _session(outlet: SourceChannel) -> str:
    """Return what the directory calls a session; its manifest may be another's."""
    return os.path.basename(outlet.log.path)
