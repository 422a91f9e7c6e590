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
    read = LatestRead(reads, view())
    try:
        ask(read.ask)
        wait(lambda: read.is_over(view()))
        read.demand_answered(view())
    finally:
        read.forget()


class LatestRead:
    """One read of the latest: asked of a majority, and answered once its place is executed.

    Pure: `await_latest` waits for it in a thread, and the simulation in its turns.
    """

    def __init__(self, reads: LatestReads, view: NodeView) -> None:
        """Begin, if the node leads.

        Args:
            reads: of the node.
            view: of it, now.

        Raises:
            Refused: it does not lead.
        """
        self._term = _led(view).engine.term
        self._reads = reads
        self._ticket = reads.open()

    def ask(self) -> None:
        """Have a majority confirm that the node leads; between two steps of the node."""
        self._reads.ask(self._ticket)

    def is_over(self, view: NodeView) -> bool:
        """Whether it is answered, or never will be."""
        is_led = view.leads and view.engine.term == self._term
        return not is_led or self._reads.is_answered(self._ticket, view.executed)

    def demand_answered(self, view: NodeView) -> None:
        """Raise `Refused` unless the node may answer from this view, or a later one."""
        if not self._reads.is_answered(self._ticket, view.executed):
            raise _not_leader(view)

    def forget(self) -> None:
        """Drop what comes of it later."""
        self._reads.forget(self._ticket)


def _led(view: NodeView) -> NodeView:
    if not view.leads:
        raise _not_leader(view)
    return view


def _not_leader(view: NodeView) -> Refused:
    return Refused("not-leader", leader_words(view.engine.leader))
