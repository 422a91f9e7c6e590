"""PushWatch: looks at a pusher again and again, whether it has an HTTP port or not."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from replicator.progress import SessionStatus
from replicator.push import PushClient
from rt.node.stalls import HopProgress, Waits
from rt.position import Position
from rt.text import printable
from rt.web.watch import SiteWatch

PUSH: Final = "push"  # the hop


class PushWatch(SiteWatch):
    """Knows what each node was sent of each session, how long it has waited, and what is stalled.

    A session is stalled when bytes of it wait, no node has said for ten seconds that a majority
    holds more, and no node has synced more. One node that is down stalls nothing.

    Threads: as of `SiteWatch`; a look alone uses `_waits`, and replaces `status` and `_waiting` as
        a whole.
    """

    def __init__(self, client: PushClient, pause_s: float) -> None:
        """Look at nothing before `start`.

        Args:
            client: which.
            pause_s: between two looks.
        """
        super().__init__(pause_s)
        self.status: Sequence[SessionStatus] = ()
        self._client = client
        self._waiting: Mapping[str, float] = {}  # by `session to node`
        self._waits = Waits()

    def waited(self, status: SessionStatus) -> float:
        """Return how long the oldest bytes that a node has not synced have waited."""
        return self._waiting.get(_name(status), 0.0)

    def words(self, hop: str) -> str:
        """Return a sentence about a session that is stalled."""
        mine = [each for each in self.status if each.session == hop]
        reasons = dict.fromkeys(f"{each.node}: {each.error}" for each in mine if each.error)
        said = "; ".join(map(printable, reasons)) or "no node says why; rt status may"
        return f"what is published is not taken (session {hop}): {said}"

    def progress(self) -> Mapping[str, HopProgress]:
        """Look at the client; return how far each session has come."""
        self.status, now_s = self._client.status(), time.monotonic()
        waiting: dict[str, float] = {}
        by_session: dict[str, list[SessionStatus]] = {}
        for each in self.status:
            by_session.setdefault(each.session, []).append(each)
            reached = max(each.durable, each.position if not each.connected else Position(0))
            waiting[_name(each)] = self._waits.look(
                _name(each), reached=reached, end=_end(each), now_s=now_s
            )
        self._waits.keep(waiting.keys())
        self._waiting = waiting
        return {name: _reached(status) for name, status in by_session.items()}


def _reached(status: Sequence[SessionStatus]) -> HopProgress:
    """Return how far a session has come, and whether a majority has yet to hold all of it."""
    replicated = max(each.replicated for each in status)
    places = tuple(each.durable for each in status)
    return HopProgress((replicated, places), replicated < max(map(_end, status)))


def _end(status: SessionStatus) -> int:
    """Return where a session ends; 0 in a file that has no frame yet: no node can confirm that."""
    end = Position(status.position + status.lag_bytes)
    return end if end.offset else 0


def _name(status: SessionStatus) -> str:
    return f"{status.session} to {status.node}"
