"""ServerRecord: a server's present and past clients, and counts of its refusals."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from rt.amounts import duration_text
from rt.net.repeated import RepeatedLines
from rt.position import Position
from rt.traffic import Traffic
from rt.version import SOFTWARE

PUSHES: Final = "push"
PULLS: Final = "pull"
# Reasons of refusals that are counted separately. All others are counted as `OTHER`: peers can
# invent reasons, and each would be a permanent series of its own.
REASONS: Final = (
    "behind", "busy", "corrupt", "disk", "displaced", "diverged", "foreign", "memory", "name",
    "name-taken", "not-a-member", "other-log", "other-stream", "owned", "poisoned", "protocol",
    "reserve", "role", "session", "sessions", "stopping", "stream", "tls", "too-large",
)  # fmt: skip
OTHER: Final = "other"
KEPT_NS: Final = 24 * 3600 * 1_000_000_000  # a client that has left is shown for a day
_LEFT_MAX: Final = 1000  # so that clients that keep reconnecting do not fill memory


@dataclass(frozen=True, slots=True)
class ClientView:
    """ClientView: one connection of a client, as it is now or was when it ended.

    Attributes:
        peer: the name in its certificate.
        kind: `PUSHES` or `PULLS`.
        address: host:port.
        began_ns: when the connection was admitted, ns since the epoch.
        ended_ns: when the connection ended, ns since the epoch; None if it has not ended.
        position: the end of the merged log sent to the client; None if the client pushes.
        sent: bytes of the merged log sent to the client.
        waiting_s: for how many seconds the oldest bytes that the client lacks have waited; 0 if not
            measured.
        software: the name and version of the client's software, as it reports them.
        acked: the end of the merged log that the client has confirmed; None if the client pushes.
    """

    peer: str
    kind: str
    address: str
    began_ns: int
    ended_ns: int | None
    position: Position | None
    sent: int
    waiting_s: float = 0.0
    software: str = ""
    acked: Position | None = None


@dataclass(slots=True, eq=False)
class ServedClient:
    """A client that is connected; its connection's thread adds to `sent` and sets `ends`.

    `ends` returns the end of what was sent to a puller, and the end of what the puller has
    confirmed. For a pusher, `ends` is None.
    """

    peer: str
    kind: str
    address: str
    began_ns: int = field(default_factory=time.time_ns)
    sent: Traffic = field(default_factory=Traffic)
    ends: Callable[[], tuple[Position, Position]] | None = None
    software: str = ""

    def view(self, ended_ns: int | None = None) -> ClientView:
        """Return a view of the client; `ended_ns` is when it left, None while it is connected.

        If the client has left, the view's `position` includes only what the client has confirmed.
        """
        position, acked = (None, None) if self.ends is None else self.ends()
        if ended_ns is not None and position is not None and acked is not None:
            position = min(position, acked)
        return ClientView(
            self.peer, self.kind, self.address, self.began_ns, ended_ns, position, self.sent.bytes,
            software=self.software, acked=acked,
        )  # fmt: skip


class _Known(NamedTuple):
    """What is known of the clients at one moment; `sent` is what was sent to those that left."""

    here: tuple[ServedClient, ...] = ()
    left: tuple[ClientView, ...] = ()
    sent: Traffic = Traffic()  # never changed, but replaced


class ServerRecord:
    """ServerRecord: a server's clients, with counts of what was sent to them and of refusals.

    Threads: the server's loop calls `join`, `leave` and `refuse`; any thread may call the rest.
        `_known` is replaced as a whole, and `_refused` is changed one number at a time.
    """

    def __init__(self, log: logging.Logger, about: str = "") -> None:
        """Log clients that join and leave to `log`, in lines that begin with `about`."""
        self.lines = RepeatedLines(log)
        self.about = about
        self._known = _Known()
        self._refused: Counter[str] = Counter()

    def join(self, client: ServedClient) -> None:
        """Record a client that was admitted."""
        known = self._known
        self._known = known._replace(here=(*known.here, client))
        other = "" if client.software in ("", SOFTWARE) else f"; it runs {client.software}"
        words = f"{self.about}{client.peer} at {client.address} joined, to {client.kind}{other}"
        self.lines.say(logging.INFO, f"joined {client.peer} {client.kind}", words)

    def leave(self, client: ServedClient) -> None:
        """Record that a client has left; does nothing if it never joined."""
        known, now_ns = self._known, time.time_ns()
        if client not in known.here:
            return
        sent = replace(known.sent)
        sent.add_from(client.sent)
        here = tuple(each for each in known.here if each is not client)
        self._known = _Known(here, (*known.left, client.view(now_ns))[-_LEFT_MAX:], sent)
        lasted_s = (now_ns - client.began_ns) / 1e9
        words = (
            f"{self.about}{client.peer} at {client.address} left, after {duration_text(lasted_s)}"
        )
        self.lines.say(logging.INFO, f"left {client.peer} {client.kind}", words)

    def refuse(self, code: str) -> None:
        """Count a refusal by its code."""
        self._refused[code if code in REASONS else OTHER] += 1

    def refused(self) -> dict[str, int]:
        """Return how often peers were refused, by code; 0 for codes that were never sent."""
        return {reason: self._refused[reason] for reason in (*REASONS, OTHER)}

    def clients(self) -> tuple[ClientView, ...]:
        """Return the connected clients and those that have left within a day, oldest first."""
        known, since_ns = self._known, time.time_ns() - KEPT_NS
        gone = [each for each in known.left if (each.ended_ns or 0) >= since_ns]
        return (*gone, *(each.view() for each in known.here))

    def sent(self) -> Traffic:
        """Return what was sent to all clients since the start."""
        known, total = self._known, Traffic()
        for each in (known.sent, *(client.sent for client in known.here)):
            total.add_from(each)
        return total
