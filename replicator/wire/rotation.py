"""Rotation: decides which node is dialled next, and when to pause."""

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)


class Rotation(Generic[Node]):
    """Rotation: goes through the nodes in rounds, with a pause after each round. Pure.

    A node for which `avoids` returns True is dialled only if no other node of the round was useful.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Begin with the first node."""
        self._nodes = list(nodes)
        self._begin()

    def next(self, avoids: Callable[[Node], bool]) -> Node | None:
        """Return the node to dial now; None at the end of a round."""
        while self._left:
            node = self._left.pop(0)
            if not avoids(node):
                return node
            self._put_off.append(node)
        if self._put_off and not self._has_progressed:
            return self._put_off.pop(0)
        self._begin()
        return None

    def progressed(self) -> None:
        """Record that a node of this round was useful."""
        self._has_progressed = True

    def _begin(self) -> None:
        self._left, self._put_off = list(self._nodes), list[Node]()
        self._has_progressed = False
