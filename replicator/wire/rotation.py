"""Rotation: decides which node is dialled next, and when to pause."""

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)


class Rotation(Generic[Node]):
    """Goes through the nodes in turn, those to be avoided last; after each round comes a pause.

    A node that is to be avoided is dialled only if the others of the round gave nothing. Pure.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Begin with the first node."""
        self._nodes = list(nodes)
        self._begin()

    def next(self, avoids: Callable[[Node], bool]) -> Node | None:
        """Return whom to dial now; None at the end of a round."""
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
        """Take note that a node of this round gave something."""
        self._has_progressed = True

    def _begin(self) -> None:
        self._left, self._put_off = list(self._nodes), list[Node]()
        self._has_progressed = False
