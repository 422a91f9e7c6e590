"""Calm: when a node has nothing left to agree on, so that its group may fall silent."""

from collections.abc import Set

from sequencer.raft.consensus import Calm
from sequencer.raft.core import Core
from sequencer.raft.leader import Leader
from sequencer.raft.progress import ProgressState


def calm_place(core: Core, leader: Leader | None) -> Calm | None:
    """Where a node is calm, or None; it must not be campaigning, nor be owed a sync.

    Silence may hide nothing that a heartbeat would have repaired. So the log of a follower ends in
    what it knows to be committed, and a leader knows that every member votes and has all of it.
    """
    end = core.log.last
    if not core.leader or not core.is_voter or not core.commit == core.log.durable == end:
        return None
    if leader is not None and not _is_done(core, leader):
        return None
    return Calm(core.term, end)


def vouch(leader: Leader, members: Set[str]) -> None:
    """Count these members as heard by the leader now."""
    for name in members:
        if (peer := leader.peer(name)) is not None:
            peer.silent_ticks = 0


def _is_done(core: Core, leader: Leader) -> bool:
    """Whether every member votes, lives, and is known to have all that is committed."""
    others = core.roster.now.keys() - {core.name}
    return (
        leader.reads.is_idle
        and not leader.is_transferring
        and {peer.name for peer in leader.peers()} == others
        and all(_has_all(core, leader, name) for name in others)
    )


def _has_all(core: Core, leader: Leader, name: str) -> bool:
    """Whether there is nothing to send to a member, and nothing to hear from it."""
    peer = leader.peer(name)
    return (
        peer is not None
        and leader.counts(peer)
        and leader.is_live(peer)
        and not peer.suspicion
        and peer.match == core.log.last
        and peer.state is ProgressState.REPLICATE
        and peer.sent == (core.commit, leader.reads.round)
    )
