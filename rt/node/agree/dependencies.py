"""Dependencies: the interfaces that `Duties` uses."""

from collections.abc import Callable
from dataclasses import dataclass

from rt.errors import Refused
from rt.node.agree.idle_policy import IdleHeartbeat
from rt.node.agree.keep_up import CopyLog
from rt.node.ingest.inboxes import Inboxes
from rt.node.retain.retention import Retention
from rt.node.retain.snapshots import NodeSnapshots
from rt.node.sessions.watch import SessionWatch
from rt.position import Position


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Dependencies: the interfaces that `Duties` uses.

    Attributes:
        sessions: the copies of sessions.
        snapshots: saves snapshots of the state.
        retention: reports disks and archives files.
        watch: opens, closes and expires sessions as their publishers come and go.
        copy_log: starts copying the merged log from other nodes, from a given position.
        pass_on: called as `pass_on(node, session)`; pushes this node's copy of a session to a node.
        serve: sets the position up to which pullers may read the merged log.
        refuse: turns all pullers away permanently, with this reason.
        idle_heartbeat: sends and receives idle heartbeats.
        is_full: returns whether the disk has too little room to accept anything new.
        turn_away: turns away all pullers except nodes, with this reason; with None, admits them
            again.
    """

    sessions: Inboxes
    snapshots: NodeSnapshots
    retention: Retention
    watch: SessionWatch
    copy_log: CopyLog
    pass_on: Callable[[str, str], None]
    serve: Callable[[Position], None]
    refuse: Callable[[Refused], None]
    idle_heartbeat: IdleHeartbeat
    is_full: Callable[[], bool]
    turn_away: Callable[[Refused | None], None] = lambda _why: None
