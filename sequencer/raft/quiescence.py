"""Quiescence: detects that a node has nothing left to agree on, so its group may fall silent."""

from collections.abc import Set

from sequencer.raft.consensus import Quiescence
from sequencer.raft.core import Core
from sequencer.raft.leader import Leader
from sequencer.raft.progress import ProgressState


def quiescent_place(core: Core, leader: Leader | None) -> Quiescence | None:
    """Return the end of the log if this node has nothing left to do, so that heartbeats may stop.

    Call this only while the node neither campaigns nor awaits a sync.

    While the group is silent, no heartbeat repairs anything. So the result is None unless this node
    votes, knows the leader, and has its whole log durable and committed. A leader also needs that
    no read or transfer is under way, and that a majority answered within an election timeout. Each
    member that answered within that time must vote, have the same log, and have been sent the
    commit index. Other members do not matter, since heartbeats do not reach them.
    """
    end = core.log.last
    if not core.leader or not core.is_voter or not core.commit == core.log.durable == end:
        return None
    if leader is not None and not _is_done(core, leader):
        return None
    return Quiescence(core.term, end)


def members_away(leader: Leader) -> frozenset[str]:
    """Return the members that have not answered the leader for an election timeout."""
    names = [peer.name for peer in leader.peers()]
    return frozenset(name for name in names if not _is_there(leader, name))


def vouch(leader: Leader, members: Set[str]) -> None:
    """Have the leader count these members as heard from now."""
    for name in members:
        if (peer := leader.peer(name)) is not None:
            peer.silent_ticks = 0


def _is_done(core: Core, leader: Leader) -> bool:
    """Whether a leader has nothing left to do; `quiescent_place` says when."""
    others = core.roster.now.keys() - {core.name}
    return (
        leader.reads.is_idle
        and not leader.is_transferring
        and len(leader.heard_voters()) >= core.roster.majority
        and {peer.name for peer in leader.peers()} == others
        and all(_has_all(core, leader, each) for each in others if _is_there(leader, each))
    )


def _is_there(leader: Leader, name: str) -> bool:
    """Whether the leader has heard from a member within an election timeout."""
    peer = leader.peer(name)
    return peer is not None and leader.is_live(peer)


def _has_all(core: Core, leader: Leader, name: str) -> bool:
    """Whether a member votes, is known to have the whole log, and was sent the commit index."""
    peer = leader.peer(name)
    return (
        peer is not None
        and leader.counts(peer)
        and not peer.suspicion
        and peer.match == core.log.last
        and peer.state is ProgressState.REPLICATE
        and peer.sent == (core.commit, leader.reads.round)
    )
