"""Leadership hand-over: a leader that is about to stop lets another node lead first."""

import time
from contextlib import suppress
from typing import Final

from rt.errors import Refused
from rt.node.agree.sequencer import NodeSequencer
from sequencer.raft.consensus import Consensus

_HEARD_TICKS: Final = 10  # two heartbeats: a node that was silent for longer may be down
_PATIENCE_S: Final = 1.0  # an election takes a few round trips and syncs
_LOOK_S: Final = 0.01


def hand_over(sequencer: NodeSequencer, engine: Consensus) -> bool:
    """If this node leads, let another lead; return whether one does now.

    Without this, nothing is merged until the other nodes have waited an election timeout.

    Args:
        sequencer: this node's sequencer, which runs.
        engine: used between two steps only.
    """
    with suppress(Refused):  # already stopping, or handing over
        if sequencer.view.leads and sequencer.ask(lambda: _transfer(engine)):
            end_s = time.monotonic() + _PATIENCE_S
            while sequencer.view.leads and time.monotonic() < end_s:
                time.sleep(_LOOK_S)
            return not sequencer.view.leads
    return False


def _transfer(engine: Consensus) -> bool:
    """Hand over to the live member that lags least; False if there is none."""
    peers = engine.status().peers if engine.leads else ()
    live = [peer for peer in peers if peer.counts and peer.silent_ticks <= _HEARD_TICKS]
    if not live:
        return False
    engine.transfer(min(live, key=lambda peer: peer.lag).name)
    return True
