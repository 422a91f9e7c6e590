"""Leadership hand-over: a leader that is about to stop lets another node lead first."""

from contextlib import suppress
from typing import Final

from rt.errors import Refused
from rt.node.agree.sequencer import NodeSequencer
from rt.node.agree.steps import Until, wait_until
from sequencer.raft.engine import Raft

_HEARD_TICKS: Final = 10  # two heartbeats: a node that was silent for longer may be down
_PATIENCE_S: Final = 1.0  # an election takes a few round trips and syncs


def hand_over(sequencer: NodeSequencer, engine: Raft) -> bool:
    """Hand leadership over if this node leads; return whether that succeeded within 1 s.

    If a leader stops without this, nothing is merged until an election timeout has passed.

    Args:
        sequencer: this node's sequencer, which must be running.
        engine: this node's consensus engine; used between two steps only.
    """
    with suppress(Refused):  # already stopping or handing over, or no other node leads in time
        if sequencer.view.leads and sequencer.ask(lambda: _transfer(engine)):
            wait_until(Until(lambda: not sequencer.view.leads, _PATIENCE_S))
            return True
    return False


def _transfer(engine: Raft) -> bool:
    """Hand over to the live member that lags least; return False if there is none."""
    peers = engine.status().peers if engine.leads else ()
    live = [peer for peer in peers if peer.counts and peer.silent_ticks <= _HEARD_TICKS]
    if not live:
        return False
    engine.transfer(min(live, key=lambda peer: peer.lag).name)
    return True
