"""Relay: pushes copies of sessions to a node that their publishers do not reach."""

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, NamedTuple

from replicator.backoff import Complaint
from replicator.greeting import greet
from replicator.link import HungUp, Link, shut
from replicator.source_channel import SourceChannel
from replicator.source_connection import SourceConnection
from replicator.wire import PUSH, Ack
from rt.errors import CorruptLog, PeerError, Refused, spoken
from rt.log.directory import LogDirectory
from rt.log.watch import Wake
from rt.net.tls import Contexts, connect
from rt.position import Position

_log: Final = logging.getLogger(__name__)
_POLL_S: Final = 0.02
# Who is given what it lacks does not ask any more: this long it is given what follows.
_IDLE_S: Final = 10.0
_BUSY_RETRY_S: Final = 0.5  # what fills the session there is told to leave it, and will
_RETRY_S: Final = 5.0  # what was refused is not tried before, however often it is asked for
_STOP_S: Final = 2.0
_DOUBTFUL: Final = frozenset({"corrupt", "diverged"})  # it may be our copy that is damaged


class HeldCopy(NamedTuple):
    """A session's copy.

    Attributes:
        directory: where it is.
        durable: gives up to where it may be passed on now; `Refused` if it was set aside.
        doubted: is told that it was found damaged, or other than another copy.
    """

    directory: str
    durable: Callable[[], Position]
    doubted: Callable[[], None]


class Relay:
    """Keeps a connection to one node for as long as that lacks something; remembers nothing."""

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        contexts: Contexts,
        stream: str,
        copy_of: Callable[[str], HeldCopy | None],
    ) -> None:
        """Stand ready; nothing is dialled before `want`.

        Args:
            name: of the node, which its certificate has to prove.
            address: where it listens.
            contexts: of `rt.net.tls.client_context`.
            stream: name of the stream.
            copy_of: gives the copy of a session; None if there is none.
        """
        self.name = name
        self._address = address
        self._contexts = contexts
        self._stream = stream
        self._copy_of = copy_of
        self._wake = Wake()
        self._stopping = False
        self._complaint = Complaint(_log, f"relay to node {name}")
        self._lock = threading.Lock()
        self._needed_s: dict[str, float] = {}  # sessions, and when they were last needed
        self._channels: dict[str, tuple[SourceChannel, HeldCopy]] = {}  # by session
        self._retry_at_s: dict[str, float] = {}  # sessions that were refused
        self._told: dict[str, str] = {}  # and the code that was said of each
        self._dial_at_s = 0.0
        self._sock: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def want(self, session: str) -> None:
        """The node lacks this session, and is given it; any thread may tell, again and again."""
        now_s = time.monotonic()
        with self._lock:
            if now_s < max(self._retry_at_s.get(session, 0.0), self._dial_at_s):
                return
            self._needed_s[session] = now_s
            if self._thread is None and not self._stopping:
                self._begin()

    def stop(self) -> None:
        """End the connection."""
        with self._lock:
            self._stopping = True
            sock, thread = self._sock, self._thread
        self._wake.set()
        if sock is not None:
            shut(sock)  # it may be waiting for a peer that takes nothing
        if thread is not None:
            thread.join(_STOP_S)
        if thread is None or not thread.is_alive():
            self._wake.close()

    def _begin(self) -> None:
        thread = threading.Thread(target=self._run, name=f"relay to {self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives us no more threads
            self._dial_at_s = time.monotonic() + _RETRY_S
            self._complaint.say(str(error))
        else:
            self._thread = thread

    def _run(self) -> None:
        try:
            self._pass_on()
            self._complaint.reset()
        except HungUp:
            _log.info("node %s has left", self.name)
        except (PeerError, Refused, OSError) as error:
            self._dial_at_s = time.monotonic() + _RETRY_S
            if not self._stopping:
                self._complaint.say(spoken(error))
        finally:
            with self._lock:  # who still lacks something asks again, and another thread begins
                self._thread = self._sock = None
                self._needed_s, self._channels = {}, {}

    def _pass_on(self) -> None:
        sock, identity = connect(self._address, self._contexts.current())
        with ExitStack() as undo:
            link = Link(sock, self._wake, self.name)
            undo.callback(link.close)
            if not identity.is_node or identity.name != self.name:
                host, port = self._address
                raise PeerError(f"{identity.name!r} answers at {host}:{port}")
            self._sock = sock
            greet(link, PUSH, self._stream)
            side = SourceConnection(link, acked=self._take_ack, refused=self._take_refusal)
            undo.callback(side.close)
            while not self._stopping and (needed := self._needed()):
                for session in needed:
                    if session not in self._channels:
                        self._open(side, session)
                for outlet, copy in self._channels.values():
                    if _has_more(outlet, copy):
                        side.mark(outlet)
                side.turn()
                link.wait(0.0 if side.busy else _POLL_S)

    def _needed(self) -> list[str]:
        """Return the sessions that are to be passed on: those that grow, and those asked for."""
        now_s = time.monotonic()
        with self._lock:
            for session, (outlet, copy) in self._channels.items():
                if _has_more(outlet, copy):
                    self._needed_s[session] = now_s
            return [each for each, at_s in self._needed_s.items() if now_s - at_s < _IDLE_S]

    def _open(self, side: SourceConnection, session: str) -> None:
        copy = self._copy_of(session)
        if copy is None:
            return  # it was set aside since it was asked for
        log = LogDirectory(copy.directory)
        try:
            if log.refresh():
                self._channels[session] = (side.open(log, copy.durable), copy)
                _log.info("session %s is passed on to node %s", session, self.name)
                return
        except (CorruptLog, OSError) as error:
            self._give_up(session, Refused("corrupt", str(error)))
        log.close()

    def _take_ack(self, outlet: SourceChannel, ack: Ack) -> None:
        if self._told and ack.received == outlet.position:
            self._told.pop(self._session_of(outlet), None)

    def _session_of(self, outlet: SourceChannel) -> str:
        return next(each for each, (ours, _) in self._channels.items() if ours is outlet)

    def _take_refusal(self, outlet: SourceChannel, why: Refused) -> None:
        session = self._session_of(outlet)
        _, copy = self._channels.pop(session)
        if why.code in _DOUBTFUL:
            copy.doubted()
        self._give_up(session, why)

    def _give_up(self, session: str, why: Refused) -> None:
        if self._told.get(session) != why.code:
            self._told[session] = why.code
            _log.warning("session %s is not passed on to node %s: %s", session, self.name, why)
        with self._lock:
            self._needed_s.pop(session, None)
            retry_s = _BUSY_RETRY_S if why.code == "busy" else _RETRY_S
            self._retry_at_s[session] = time.monotonic() + retry_s


def _has_more(outlet: SourceChannel, copy: HeldCopy) -> bool:
    try:
        return copy.durable() > outlet.position
    except Refused:
        return True  # whoever looks closer is told why there is no more, and ends the channel
