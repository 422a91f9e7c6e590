"""NodeSample: everything that may be shown of a node, as it was at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from replicator.repair.scrub import ScrubState
from replicator.serve.client_record import ClientView
from rt.latencies import LatencyCounts
from rt.node.agree.view import NodeView
from rt.position import OFFSET_END, Position
from rt.traffic import Traffic


class SessionView(NamedTuple):
    """A node's copy of one session; a tuple, since a thousand are made each second.

    Attributes:
        session: its name.
        pushed_by: the peer that fills it now; "" without one.
        received: up to where it was received.
        durable: up to where it is synced.
        merged: up to where the session is merged.
        traffic: what was received since the node started.
        bytes_per_s: received lately.
        connected_ns: since when its peer is connected; 0 without one.
        last_ns: when bytes last came; 0 if none came since the node started.
        waiting_s: how long its oldest bytes that are not merged have waited; 0 if there are none.
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
        """The durable bytes that are not merged; at least so many where a file ends between."""
        return bytes_between(self.merged, self.durable)


@dataclass(frozen=True, slots=True)
class DiskView:
    """The file system of a node.

    Attributes:
        available: bytes that are free.
        reserve: below this it refuses new data.
        takes_data: whether it takes any now.
    """

    available: int
    reserve: int
    takes_data: bool


@dataclass(frozen=True, slots=True)
class Hop:
    """What has passed one hop since the node started, and how much of that each second lately."""

    total: Traffic
    bytes_per_s: float = 0.0
    messages_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Flow:
    """The three hops of a node: from publishers, into the merged log, to subscribers."""

    received: Hop
    merged: Hop
    sent: Hop


@dataclass(frozen=True, slots=True)
class ChangesView:
    """What has changed since a node started.

    Attributes:
        leaders: changes of the leader that it knows.
        elections: terms that began.
        leaderless_s: for how long it has known no leader; 0 while it knows one.
        refused: refusals by reason.
    """

    leaders: int
    elections: int
    leaderless_s: float
    refused: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PoisonView:
    """Sessions with frames that no reader could decode, or that were not looked into.

    Attributes:
        poisoned: sessions that proved to be poisoned after a frame was taken, and are refused.
        unchecked: copies with compressed frames that there was no budget to look into yet.
    """

    poisoned: int = 0
    unchecked: int = 0


@dataclass(frozen=True, slots=True)
class SampleTimes:
    """When a node was looked at.

    Attributes:
        at_ns: when, by the wall clock.
        at_s: when, by a clock that only goes forward.
        began_ns: when the node started.
        stepped_s: when it last did its duties, by the same clock as `at_s`.
    """

    at_ns: int
    at_s: float
    began_ns: int
    stepped_s: float


@dataclass(frozen=True, slots=True)
class NodeSample:
    """A node at one moment; never changed once made.

    Attributes:
        times: when.
        view: its sequencing.
        sessions: its copies, by name.
        clients: those that are connected, and those that have left within a day.
        unreachable: other nodes that it cannot reach, and why.
        disk: its file system.
        flow: how much passes it.
        latencies: of `agreement`, and of syncs of files of each kind.
        changes: of leaders and refusals.
        stalled: what waits and does not move, with the seconds: by `hop name`.
        scrub: what reading the rolled files has come to.
        poison: what looking into frames after they were taken has come to.
    """

    times: SampleTimes
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
    def at_s(self) -> float:
        """When it was taken, by a clock that only goes forward."""
        return self.times.at_s

    @property
    def members(self) -> list[str]:
        """The nodes of the cluster, as this one knows them now."""
        return sorted(self.view.engine.members)

    @property
    def voters(self) -> list[str]:
        """Those that vote."""
        return sorted(name for name, seat in self.view.engine.members.items() if seat.votes)

    def here(self, kind: str) -> list[ClientView]:
        """Return the clients of a kind that are connected."""
        return [each for each in self.clients if each.kind == kind and each.ended_ns is None]

    @property
    def unmerged(self) -> int:
        """The bytes that are durable here and not merged."""
        return sum(each.unmerged for each in self.sessions)

    @property
    def waiting_s(self) -> float:
        """How long the oldest bytes that are not merged have waited."""
        return max((each.waiting_s for each in self.sessions), default=0.0)


def bytes_between(begin: Position, end: Position) -> int:
    """Return the bytes from one position to another; at least so many if a file ends between.

    >>> from rt.position import Position as P
    >>> bytes_between(P(8), P(24)), bytes_between(P(24), P(8))
    (16, 0)
    """
    if end <= begin:
        return 0
    is_same_file = begin ^ end < OFFSET_END  # `file` would make two objects for each session
    return end - begin if is_same_file else end.offset
