"""PushWatch: regularly checks a pusher's progress, with or without an HTTP port."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from replicator.push.client import PushClient
from replicator.push.progress import SessionStatus
from rt.client.site_watch import SiteWatch
from rt.node.observe.stall_clock import STALLED_S, HopProgress, Waits
from rt.position import Position
from rt.text import printable

PUSH: Final = "push"  # name of the hop


class PushWatch(SiteWatch):
    """Tracks how much of each session each node has, how long bytes wait, and what stalls.

    A session is stalled if it has bytes waiting and, for ten seconds, no node has synced more of it
    or reported that a majority holds more of it. A single node that is down stalls nothing.

    Threads: as for `SiteWatch`; only `check` uses `_waits`, and replaces `status` and `_waiting` as
        a whole.
    """

    def __init__(self, client: PushClient, pause_s: float, stalled_s: float = STALLED_S) -> None:
        """Prepare to watch a pusher; the other arguments are as for `SiteWatch`."""
        super().__init__(pause_s, stalled_s)
        self.status: Sequence[SessionStatus] = ()
        self._client = client
        self._waiting: Mapping[str, float] = {}  # by `SESSION to NODE`
        self._waits = Waits()

    def waited(self, status: SessionStatus) -> float:
        """Return for how many seconds the session's oldest unsynced bytes have waited."""
        return self._waiting.get(_name(status), 0.0)

    def words(self, hop: str) -> str:
        """Return a sentence about a stalled session."""
        mine = [each for each in self.status if each.session == hop]
        reasons = dict.fromkeys(f"{each.node}: {each.error}" for each in mine if each.error)
        said = "; ".join(map(printable, reasons)) or "no node says why; rt status may"
        return f"published messages are not accepted (session {hop}): {said}"

    def progress(self) -> Mapping[str, HopProgress]:
        """Read the pusher's status; return how far each session has come, by name."""
        self.status, now_s = self._client.status(), time.monotonic()
        waiting: dict[str, float] = {}
        by_session: dict[str, list[SessionStatus]] = {}
        for each in self.status:
            by_session.setdefault(each.session, []).append(each)
            reached = max(each.durable, each.position if not each.connected else Position(0))
            waiting[_name(each)] = self._waits.update(
                _name(each), reached=reached, end=_end(each), now_s=now_s
            )
        self._waits.keep(waiting.keys())
        self._waiting = waiting
        return {name: _reached(status) for name, status in by_session.items()}


def _reached(status: Sequence[SessionStatus]) -> HopProgress:
    """Return how far a session has come, and whether a majority still lacks part of it."""
    replicated = max(each.replicated for each in status)
    places = tuple(each.durable for each in status)
    return HopProgress((replicated, places), replicated < max(map(_end, status)))


def _end(status: SessionStatus) -> int:
    """Return where a session ends; 0 if its file has no frames that a node could confirm."""
    end = Position(status.position + status.lag_bytes)
    return end if end.offset else 0


def _name(status: SessionStatus) -> str:
    return f"{status.session} to {status.node}"
