"""EndQuestion: a reader's question where the stream ends, until its copy has come that far."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from rt.position import Position

Node = TypeVar("Node", bound=Hashable)
NODES_MAX: Final = 32  # configured and learnt


def covers(asked_s: float, since_s: float) -> bool:
    """Whether the answer to a question that was asked at one time counts for another one's asker.

    Only if it was asked after the other had begun: what was merged in between may not be in it.
    """
    return asked_s >= since_s


class EndQuestion(Generic[Node]):
    """Asks one node after another, and compares a copy with the answer.

    An answer counts only if the node asked a majority after this object was made: whatever was
    merged, and confirmed to anyone, before that is then before the end that it names. So the copy
    is complete as of the question once it has come to that end, wherever it is copied from, and
    says nothing about what was merged later.

    Pure: `replicator.pull.end_wait` asks in a thread, and the simulation in its turns.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        """Begin to ask; nodes that are named twice are asked once a round."""
        self.end: Position | None = None  # of the stream, as of some time since the question
        self._nodes = list(dict.fromkeys(nodes))
        self._next = 0
        self._left = len(self._nodes)  # to be asked in this round
        self._reasons: dict[Node, str] = {}
        self._unable: set[Node] = set()  # those that will never answer

    @property
    def node(self) -> Node:
        """Whom to ask next."""
        return self._nodes[self._next]

    @property
    def is_round_over(self) -> bool:
        """Whether all were asked in vain: the next is asked after a pause."""
        return self.end is None and self._left <= 0

    @property
    def is_hopeless(self) -> bool:
        """Whether every node has said that it cannot answer, now or later."""
        return len(self._unable) == len(self._nodes)

    def answered(self, end: Position) -> None:
        """Take the end that a node has named after it had asked a majority."""
        self.end = end

    def failed(self, why: str, members: Sequence[Node] = (), *, for_good: bool = False) -> None:
        """Go on to the next node.

        Args:
            why: the one that was asked has not answered.
            members: of the cluster, as that node knows them: they are asked too.
            for_good: whether it is useless to ask it again.
        """
        if self.is_round_over:
            self._left = len(self._nodes)
        self._reasons[self.node] = why
        if for_good:
            self._unable.add(self.node)
        fresh = [each for each in dict.fromkeys(members) if each not in self._nodes]
        fresh = fresh[: max(0, NODES_MAX - len(self._nodes))]
        self._nodes += fresh
        self._left += len(fresh) - 1
        self._next = (self._next + 1) % len(self._nodes)

    def is_reached(self, place: Position) -> bool:
        """Whether a copy that continues at `place` has all that was merged at the question."""
        return self.end is not None and place >= self.end

    def why_not(self, place: Position) -> str:
        """Say what is left of a copy that continues at `place`, or why that is not known."""
        if self.end is not None:
            return f"the copy has come to {place}, and the stream to {self.end}"
        reasons = "; ".join(dict.fromkeys(self._reasons.values())) or "no node has answered yet"
        return f"no node says where the stream ends: {reasons}"
