"""EndQuestion: asks where a stream ends, and whether a reader's copy has reached that end."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from rt.position import Position

Node = TypeVar("Node", bound=Hashable)
NODES_MAX: Final = 32  # configured nodes, and nodes learned from answers


def covers(asked_s: float, since_s: float) -> bool:
    """Whether the answer to a question asked at `asked_s` covers all that was merged by `since_s`.

    If the question was asked before `since_s`, messages may have been merged in between.
    """
    return asked_s >= since_s


class EndQuestion(Generic[Node]):
    """EndQuestion: asks one node after another, and compares a copy with the answer.

    An answer counts only if the node asked a majority after this object was made. Then the end in
    the answer follows everything that was confirmed as merged before this object was made. So a
    copy that has reached this end has all of that, whichever node the copy was pulled from. The
    answer says nothing about what was merged later.

    Pure: `replicator.pull.end_wait` asks in a thread, and the simulation asks in its turns.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        """Start asking; nodes named twice are asked once per round."""
        self.end: Position | None = None  # the stream's end, at some time since this was made
        self._nodes = list(dict.fromkeys(nodes))
        self._next = 0
        self._left = len(self._nodes)  # how many to ask in this round
        self._reasons: dict[Node, str] = {}
        self._unable: set[Node] = set()  # nodes that will never answer

    @property
    def node(self) -> Node:
        """The node to ask next."""
        return self._nodes[self._next]

    @property
    def is_round_over(self) -> bool:
        """Whether all nodes were asked in vain, so that a pause is due before the next question."""
        return self.end is None and self._left <= 0

    @property
    def is_hopeless(self) -> bool:
        """Whether every node has answered that it can never tell the end."""
        return len(self._unable) == len(self._nodes)

    def answered(self, end: Position) -> None:
        """Record the end that a node returned after asking a majority."""
        self.end = end

    def failed(self, why: str, members: Sequence[Node] = (), *, for_good: bool = False) -> None:
        """Record that the asked node did not tell the end, and continue with the next node.

        Args:
            why: the reason, as text.
            members: members of the cluster, as the asked node knows them; they are asked too.
            for_good: whether it is useless to ask the node again.
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
        """Whether a copy that continues at `place` has all that was merged before the question."""
        return self.end is not None and place >= self.end

    def why_not(self, place: Position) -> str:
        """Return how far a copy that continues at `place` lags, or why that is unknown, as text."""
        if self.end is not None:
            return f"the copy has come to {place}, and the stream to {self.end}"
        reasons = "; ".join(dict.fromkeys(self._reasons.values())) or "no node has answered yet"
        return f"no node says where the stream ends: {reasons}"
