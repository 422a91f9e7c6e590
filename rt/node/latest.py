"""await_latest: wait until an answer holds all that any node has confirmed."""

from collections.abc import Callable
from typing import Any

from rt.errors import Refused
from rt.node.sequencer import leader_words
from rt.node.view import NodeView
from sequencer.reading import LatestReads


def await_latest(
    view: Callable[[], NodeView],
    ask: Callable[[Callable[[], None]], Any],
    reads: LatestReads,
    wait: Callable[[Callable[[], bool]], None],
) -> None:
    """Wait until this node has executed all that any node may have confirmed by now.

    Args:
        view: returns the node's latest view.
        ask: has something done between two steps of the node.
        reads: of the node.
        wait: returns once a condition holds; refuses if that takes too long.

    Raises:
        Refused: this node does not lead, or no majority has confirmed in time that it does.
    """

    def is_over() -> bool:
        now = view()
        is_led = now.leads and now.engine.term == term
        return not is_led or reads.is_answered(ticket, now.executed)

    term = _led(view()).engine.term
    ticket = reads.open()
    try:
        ask(lambda: reads.ask(ticket))
        wait(is_over)
        if not reads.is_answered(ticket, view().executed):
            raise _not_leader(view())
    finally:
        reads.forget(ticket)


def _led(view: NodeView) -> NodeView:
    if not view.leads:
        raise _not_leader(view)
    return view


def _not_leader(view: NodeView) -> Refused:
    return Refused("not-leader", leader_words(view.engine.leader))
