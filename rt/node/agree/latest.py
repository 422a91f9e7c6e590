"""Latest: answers that include everything any node has confirmed."""

from collections.abc import Callable
from typing import Final

from rt.errors import Misuse, Refused
from rt.net.exchange import Fields
from rt.node.agree.sequencer import demand_leading, not_leader
from rt.node.agree.steps import DECIDED_S, Ask, Order, Steps, Until
from rt.node.agree.view import NodeView
from sequencer.ledger.instruction import Instruction, Note
from sequencer.reading import LatestReads

_FOLLOWED_S: Final = 3.0  # a request to the leader may be lost; the client asks another node
# Refusals that do not depend on the stream's state, so that asking again helps.
_PASSING: Final = ("not-leader", "undecided", "busy", "stopping")


def latest(
    view: Callable[[], NodeView], reads: LatestReads, *, may_follow: bool = False
) -> Steps[None]:
    """Wait until this node has executed everything that any node may have confirmed by now.

    Args:
        view: returns the node's latest view.
        reads: the node's reads.
        may_follow: whether another node may lead; this node then asks the leader.

    Raises:
        Refused: this node does not lead (with `may_follow`: no node does), or no majority confirmed
            the leader in time.
    """
    read = LatestRead(reads, view(), may_follow=may_follow)
    try:
        yield Ask(read.ask)
        patience_s = DECIDED_S if view().leads else _FOLLOWED_S
        yield Until(lambda: read.is_over(view()), patience_s)
        read.demand_answered(view())
    finally:
        read.forget()


class LatestRead:
    """LatestRead: a read to answer once the node has executed everything decided before the read.

    A majority first confirms which instruction was decided last. This class is pure and does not
    wait itself: in a node, `perform` waits in a thread, and a simulation waits in its turns.
    """

    def __init__(self, reads: LatestReads, view: NodeView, *, may_follow: bool = False) -> None:
        """Begin, if the node leads, or if it follows a leader and `may_follow` is set.

        Args:
            reads: the node's reads.
            view: the node's current view.
            may_follow: whether another node may lead.

        Raises:
            Refused: the node does not lead, and may not follow or knows no leader.
        """
        self._may_follow = may_follow
        self._leader = self._leader_of(view)
        if not self._leader:
            raise not_leader(view.engine.leader)
        self._term = view.engine.term
        self._reads = reads
        self._ticket = reads.open()

    def ask(self) -> None:
        """Let a majority confirm the leader; call this between two steps of the node."""
        self._reads.ask(self._ticket)

    def is_over(self, view: NodeView) -> bool:
        """Whether the read is answered, or can no longer be answered."""
        is_led = self._leader_of(view) == self._leader and view.engine.term == self._term
        return not is_led or self._reads.is_answered(self._ticket, view.executed)

    def demand_answered(self, view: NodeView) -> None:
        """Raise `Refused` unless the node may answer the read from this view or a later one."""
        if not self._reads.is_answered(self._ticket, view.executed):
            raise not_leader(view.engine.leader)
        if self._may_follow and view.waiting.fork is not None:
            raise Refused("undecided", "the log of this node is forked; ask another")

    def forget(self) -> None:
        """Forget the read; a later answer is ignored."""
        self._reads.forget(self._ticket)

    def _leader_of(self, view: NodeView) -> str:
        if self._may_follow:
            return view.engine.leader
        return "this node" if view.leads else ""


def decided(
    view: Callable[[], NodeView],
    barrier: Callable[[], Steps[None]],
    instruction: Instruction,
    is_done: Callable[[], bool],
    *,
    may_repeat: bool = False,
) -> Steps[None]:
    """Propose an instruction, and wait until the view shows its outcome.

    The log may already contain an older instruction that makes the same change, and another one
    that undoes the change. A leader that has yet to execute both could see the outcome of the older
    instruction and take it for the outcome of the new one. So the leader first executes everything
    that was decided before. That is not needed if the new instruction is a compare-and-set and not
    done yet.

    Args:
        view: returns the node's latest view.
        barrier: waits as `latest` does.
        instruction: the instruction to propose.
        is_done: returns whether the instruction was executed, or has become pointless.
        may_repeat: whether the caller may repeat the request to another leader. If so, this node
            refuses with `not-leader` as soon as it stops leading; if not, it waits for the outcome.

    Raises:
        Refused: this node does not lead, or no majority decided the instruction in time.
    """
    is_compared = isinstance(instruction, Note) and bool(instruction.expected)
    if is_done() or not is_compared:
        yield from barrier()
    if not may_repeat:
        yield Order(instruction)
        yield Until(is_done)
        return
    begun = view()
    demand_leading(begun)
    yield Order(instruction)

    def is_over() -> bool:
        now = view()
        return is_done() or not now.leads or now.engine.term != begun.engine.term

    yield Until(is_over)
    if not is_done():
        raise not_leader(view().engine.leader)


def confirmed(
    do: Callable[[], Fields | Steps[Fields]],
    view: Callable[[], NodeView],
    barrier: Callable[[], Steps[None]],
    request: Fields,
) -> Steps[Fields]:
    """Answer a request; refuse it only on the latest state.

    A leader that is cut off, or has not executed its log yet, may lack the latest cursors, groups
    and changes, and refuse a request wrongly. So before it refuses, it lets a majority confirm that
    it leads, executes everything that was decided before, and tries again.

    Args:
        do: returns the answer, or the steps that lead to it; may be called twice.
        view: returns the node's latest view.
        barrier: waits as `latest` does.
        request: the request. With `latest` it is always answered from the latest state. With
            `asks_again` the client promises to ask again with `latest` before it acts on a final
            refusal.
    """
    if request.get("latest") is True:
        yield from barrier()
        return (yield from _answer(do))
    try:
        return (yield from _answer(do))
    except Refused as error:
        if error.code in _PASSING or is_provisional(request):
            raise
    except Misuse:
        if not view().leads:
            raise
    yield from barrier()
    return (yield from _answer(do))


def is_provisional(request: Fields) -> bool:
    """Whether the client will ask again with `latest` before it acts on a refusal."""
    return request.get("asks_again") is True


def _answer(do: Callable[[], Fields | Steps[Fields]]) -> Steps[Fields]:
    answer = do()
    return answer if isinstance(answer, dict) else (yield from answer)
