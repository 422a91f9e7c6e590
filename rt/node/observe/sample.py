"""NodeSample: everything that may be shown of a node, as of one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from replicator.repair.scrub import ScrubState
from replicator.serve.client_record import PULLS, ClientView
from rt.latencies import LatencyCounts
from rt.node.agree.view import NodeView
from rt.position import OFFSET_END, Position
from rt.traffic import Traffic

_LEFT_NS: Final = 6 * 3600 * 10**9


class SessionView(NamedTuple):
    """SessionView: a node's copy of one session. It is a tuple, as a thousand are made per second.

    Attributes:
        session: the session's name.
        pushed_by: the peer that fills the copy now; "" if there is none.
        received: the end of what was received.
        durable: the end of what is synced.
        merged: the session's merged end.
        traffic: what was received since the node started.
        bytes_per_s: recent rate of receiving.
        connected_ns: when its peer connected, ns since the epoch; 0 if there is none.
        last_ns: when bytes last came, ns since the epoch; 0 if none came since the node started.
        waiting_s: how long the oldest unmerged bytes have waited; 0 if there are none.
    """

    session: str
    pushed_by: str
    received: Position
    durable: Position
    merged: Position
    traffic: Traffic
    bytes_per_s: float
    connected_ns: int
    last_ns: int
    waiting_s: float

    @property
    def unmerged(self) -> int:
        """The durable bytes not merged yet; a lower bound if a file ends among them."""
        return bytes_between(self.merged, self.durable)


@dataclass(frozen=True, slots=True)
class DiskView:
    """The file system of a node.

    Attributes:
        available: bytes that are free.
        reserve: with fewer free bytes than this, the node refuses new data.
        takes_data: whether it accepts new data now.
    """

    available: int
    reserve: int
    takes_data: bool


@dataclass(frozen=True, slots=True)
class Hop:
    """Hop: the traffic through one hop since the node started, and its recent rates."""

    total: Traffic
    bytes_per_s: float = 0.0
    messages_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Flow:
    """Flow: the three hops of a node: from publishers, into the merged log, to subscribers."""

    received: Hop
    merged: Hop
    sent: Hop


@dataclass(frozen=True, slots=True)
class ChangesView:
    """ChangesView: what has changed since a node started.

    Attributes:
        leaders: number of changes of the known leader.
        elections: number of terms that began.
        leaderless_s: how long the node has known no leader; 0 while it knows one.
        refused: refusals by reason.
    """

    leaders: int
    elections: int
    leaderless_s: float
    refused: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PoisonView:
    """PoisonView: sessions with undecodable frames, and copies not yet checked for such frames.

    Attributes:
        poisoned: sessions refused because an accepted frame proved undecodable.
        unchecked: copies with compressed frames for which there was no budget to check them yet.
    """

    poisoned: int = 0
    unchecked: int = 0


@dataclass(frozen=True, slots=True)
class NodeSample:
    """NodeSample: a node at one moment; never changed once made.

    Attributes:
        at_ns: when it was sampled, by the wall clock.
        at_s: the same by a monotonic clock.
        began_ns: when it started.
        view: its sequencing.
        sessions: its copies, by name.
        clients: connected clients, and those that left within a day.
        unreachable: other nodes that it cannot reach, and why.
        disk: its file system.
        flow: the traffic through it.
        latencies: the latencies of `agreement`, and of syncs by kind of file.
        changes: changes of leader, and refusals.
        stalled: seconds since the last progress of stalled work, by `hop name`.
        scrub: the results of scrubbing.
        poison: the results of checking accepted frames.
    """

    at_ns: int
    at_s: float
    began_ns: int
    view: NodeView
    sessions: tuple[SessionView, ...]
    clients: tuple[ClientView, ...]
    unreachable: Mapping[str, str]
    disk: DiskView
    flow: Flow
    latencies: Mapping[str, LatencyCounts]
    changes: ChangesView
    stalled: Mapping[str, float]
    scrub: ScrubState = field(default_factory=ScrubState)
    poison: PoisonView = field(default_factory=PoisonView)

    @property
    def members(self) -> list[str]:
        """The nodes of the cluster, as this node knows them now."""
        return sorted(self.view.engine.members)

    @property
    def voters(self) -> list[str]:
        """The members that vote."""
        return sorted(name for name, seat in self.view.engine.members.items() if seat.votes)

    def here(self, kind: str) -> list[ClientView]:
        """Return the clients of a kind that are connected."""
        return [each for each in self.clients if each.kind == kind and each.ended_ns is None]

    def left(self) -> list[ClientView]:
        """Return the pullers that have left within six hours and are not back, newest first."""
        here = {each.peer for each in self.here(PULLS)}
        left = {
            each.peer: each
            for each in self.clients
            if each.kind == PULLS and (each.ended_ns or 0) > self.at_ns - _LEFT_NS
            and each.peer not in here and each.peer not in self.members
        }  # fmt: skip
        return sorted(left.values(), key=lambda each: -(each.ended_ns or 0))

    @property
    def unmerged(self) -> int:
        """The durable bytes not merged yet."""
        return sum(each.unmerged for each in self.sessions)

    @property
    def waiting_s(self) -> float:
        """How long the oldest unmerged bytes have waited."""
        return max((each.waiting_s for each in self.sessions), default=0.0)


def bytes_between(begin: Position, end: Position) -> int:
    """Return the bytes from one position to another; a lower bound if a file ends among them.

    >>> from rt.position import Position as P
    >>> bytes_between(P(8), P(24)), bytes_between(P(24), P(8))
    (16, 0)
    """
    if end <= begin:
        return 0
    is_same_file = begin ^ end < OFFSET_END  # `file` would make two objects for each session
    return end - begin if is_same_file else end.offset
