"""RegisteredReader: a cursor that the nodes store, held by this process until another takes it."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from rt.amounts import duration_text
from rt.client.readers.cursor import CursorState
from rt.client.readers.held_cursor import HeldCursor
from rt.errors import Fenced, Misuse, Refused, RtError, Stopped, spoken
from rt.log.files.continued import ContinuedLog
from rt.log.notify.fork_guard import ForkGuard
from rt.names import parse_cursor
from rt.net.admin import PASSING, AdminClient, NoLeader, reading_answers
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.timer import Aside, Timer
from rt.position import START, Position

_log: Final = logging.getLogger("rt.client")
_STANDBY_S: Final = 0.1  # how often a standby asks
_SIGNS: Final = 3  # signs of life in the time after which a holder counts as dead

Takeover = Literal["refuse", "fence", "wait"]
_TAKEOVERS: Final = ("refuse", "fence", "wait")


@dataclass(frozen=True, slots=True)
class Registered:
    """A cursor that the nodes store, so that a reader on another machine can continue.

    Attributes:
        name: the name of the cursor; its readers use certificates of one name.
        takeover: what to do while another reader holds the cursor: `refuse` raises an error, `wait`
            waits until that reader has died or closed, and `fence` takes the cursor from it.
        silence_s: another reader may take the cursor after this long without a sign of life.
        pin_bytes: the most unacknowledged bytes that the nodes keep despite the rules `time` and
            `limit`; this needs a certificate with a grant of leases.
        wait_s: how long `wait` waits; None waits for ever.
    """

    name: str
    takeover: Takeover = "refuse"
    silence_s: float = 0.75
    pin_bytes: int = 0
    wait_s: float | None = None

    def __post_init__(self) -> None:
        parse_cursor(self.name)
        if self.takeover not in _TAKEOVERS:
            raise Misuse(f"takeover is {self.takeover!r}; use refuse, fence or wait")


class RegisteredReader:
    """Holds one registered cursor for this process; it has the interface of `LocalCursor`.

    It sends the nodes several signs of life within each `silence_s`, and acknowledgements once a
    second. After a takeover every call raises `Fenced`.

    Threads: `_lock` guards `_held`, and `_asking` guards `_nodes`, so that one request is made at a
        time: by a thread of the loop that sends signs of life, by `ack` with `sync`, or by
        `open_at` or `close`. `_is_troubled` belongs to the loop, which sets `_error` once. The
        owner sets `lost` before the cursor can be lost.
    """

    def __init__(self, nodes: AdminClient, cursor: Registered, share: str, loop: EventLoop) -> None:
        """Take the cursor.

        Args:
            nodes: sends requests; closed with this reader, or when the cursor cannot be taken.
            cursor: its name, and how to take it.
            share: the share of the keys that is read with it; "" for all.
            loop: the event loop that sends signs of life when they are due.

        Raises:
            Refused: with code `held`, another reader holds the cursor; with `share`, it belongs to
                another share; or the certificate has no grant for it.
            TimeoutError: another reader still holds it after `wait_s`.
            Misuse: a setting is out of range.
            RtError: no node answers, or none leads.
        """
        self.name = cursor.name
        self.lost: Callable[[], None] = lambda: None  # called once another reader has taken it
        self._nodes = nodes
        request = {
            "do": "cursor-open", "name": self.name, "silence_s": cursor.silence_s,
            "pin_bytes": cursor.pin_bytes, "share": share,
            "holder": f"{socket.gethostname()}:{os.getpid()}",
            "takeover": "fence" if cursor.takeover == "fence" else "refuse",
            "asks_again": cursor.takeover == "wait",
        }  # fmt: skip
        with ExitStack() as undo:
            undo.callback(nodes.close)
            found = _taken(nodes, request, cursor.wait_s if cursor.takeover == "wait" else 0.0)
            with reading_answers():
                epoch, position = int(found["epoch"]), Position.parse(str(found["position"]))
            undo.pop_all()
        # nodes of an earlier version do not say it
        self.is_new = found.get("is_new", position == START) is True
        self._held = HeldCursor(self.name, epoch, position, time.monotonic())
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self.is_closed = False
        self._pause_s = cursor.silence_s / _SIGNS
        self._due_s = time.monotonic() + self._pause_s
        self._is_troubled = False
        self._error: RtError | None = None  # why no more signs of life are sent
        self._guard = ForkGuard("a Subscription", self._abandon)
        self._timer = Timer(loop, self._turn, self._give_up)
        self._timer.set()

    @property
    def state(self) -> CursorState:
        """The acknowledged state, whether the nodes have stored it yet or not."""
        return CursorState(self._held.position, self._held.epoch, 0, "")

    @property
    def log(self) -> str:
        """The id of the log that acknowledged positions belong to; "" while it is not known."""
        return self._held.log

    @log.setter
    def log(self, log_id: str) -> None:
        with self._lock:
            self._held.log = log_id

    def carry(self, continued: ContinuedLog) -> None:
        """Move the cursor from a log that has ended to the log that continues it."""
        with self._lock:
            self._held.carry(continued)

    def open_at(self, position: Position, log_id: str) -> None:
        """Store where a new cursor begins; errors as for `ack` with `sync`."""
        self.log = log_id
        if position > self._held.position:
            self.ack(position, sync=True)

    def ack(self, position: Position, *, sync: bool = False) -> None:
        """Acknowledge everything before `position`; an earlier position changes nothing.

        Args:
            position: a message's `next_position`.
            sync: have the nodes agree on the acknowledgement before this returns; otherwise it is
                sent within a second.

        Raises:
            Fenced: another reader has taken the cursor; nothing was acknowledged.
            Stopped: the reader was closed; nothing was acknowledged.
            Refused: with `sync`, no majority agreed in time; the acknowledgement is sent again.
            RtError: with `sync`, no node answers, or none leads; the acknowledgement is sent again.
        """
        self.demand_held()
        if self.is_closed:
            raise Stopped(f"cursor {self.name!r} is closed")
        with self._lock:
            self._held.ack(position)
        if sync:
            self._send()

    def demand_held(self) -> None:
        """Raise `Fenced` if another reader has taken the cursor; `Misuse` in a forked child."""
        self._guard.demand_owner()
        if (error := self._held.fenced or self._error) is not None:
            raise error

    def close(self) -> None:
        """Send what is acknowledged, and release the cursor at once. Idempotent.

        Does nothing in a forked child: the cursor and the connection are its parent's.
        """
        if self.is_closed or self._guard.is_copy:
            return
        self.is_closed = True
        self._timer.stop()
        if self._held.fenced is None:
            try:
                self._send(release=True)
            except (RtError, OSError) as error:
                _log.warning("cursor %s: not released: %s", self.name, spoken(error))
        with self._asking:
            self._nodes.close()

    def _abandon(self) -> None:
        """In a forked child: close its copy of the connection, without a message."""
        self._nodes.close()

    def _turn(self) -> float | Aside:
        """Have a thread send a sign of life if one is due; else return the seconds until one is."""
        if (left_s := self._due_s - time.monotonic()) > 0:
            return left_s
        return Aside(partial(self._send, is_sign=True), self._sent)

    def _sent(self, error: Exception | None) -> None:
        if isinstance(error, Fenced):
            self._give_up(error)
        elif error is not None and not self._is_troubled:
            _log.warning("cursor %s: %s; trying again", self.name, spoken(error))
        self._is_troubled = error is not None
        self._due_s = time.monotonic() + self._pause_s

    def _give_up(self, error: RtError) -> None:
        """Send no more signs of life, and call `lost`.

        Another reader has taken the cursor, or can soon, since no sign of life can be sent.
        """
        _log.warning("%s", error)
        self._error = error
        self._timer.stop(0)
        self.lost()

    def _send(self, *, is_sign: bool = False, release: bool = False) -> None:
        """Send a request for the cursor; if it is refused, repeat it requiring the latest state."""
        with self._asking:
            is_over = False
            while not is_over:
                with self._lock:
                    request = self._held.said(time.monotonic(), is_sign=is_sign, release=release)
                try:
                    self._nodes.ask(request)
                except (RtError, OSError) as error:
                    with self._lock:
                        is_over = not self._held.must_ask_again(request, error)
                else:
                    is_over = True
                    with self._lock:
                        self._held.record_done(request)


def _taken(nodes: AdminClient, request: dict[str, Any], wait_s: float | None) -> dict[str, Any]:
    """Open the cursor at the nodes; wait for its present holder to end, if the settings say so."""
    began_s = time.monotonic()
    while True:
        try:
            return nodes.ask(request)
        except (Refused, NoLeader) as error:
            passes = isinstance(error, NoLeader) or error.code in ("held", *PASSING)
            if not passes or wait_s == 0:
                raise
            if wait_s is not None and time.monotonic() > began_s + wait_s:
                raise TimeoutError(f"{error} after {duration_text(wait_s)}") from None
        time.sleep(_STANDBY_S)
