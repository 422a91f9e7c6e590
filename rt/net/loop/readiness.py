"""Readiness: which parties have something to do, in which order, and how many a turn serves."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Name = TypeVar("Name")


class Readiness(Generic[Name]):
    """The names that have something to do, each once: urgent ones first, the others in turn.

    Messages from other nodes are urgent: a heartbeat that waits for 64 pullers would end a leader's
    term. Of the others, a turn serves at least one, and as many as its time allows; the next turn
    continues with the rest. So no name that is always busy keeps another waiting for ever.

    Example:
        >>> ready = Readiness[str]()
        >>> for name in ("push", "pull", "push"):
        ...     ready.mark(name)
        >>> ready.mark("node", is_urgent=True)
        >>> list(ready.turn(1.0, iter([2.0]).__next__)), bool(ready)
        (['node', 'push'], True)
    """

    def __init__(self) -> None:
        self._urgent: dict[Name, None] = {}
        self._others: dict[Name, None] = {}

    def __bool__(self) -> bool:
        return bool(self._urgent or self._others)

    def mark(self, name: Name, *, is_urgent: bool = False) -> None:
        """Record that `name` has something to do; idempotent."""
        if is_urgent:
            self._others.pop(name, None)
            self._urgent[name] = None
        elif name not in self._urgent:
            self._others[name] = None

    def drop(self, name: Name) -> None:
        """Forget `name`."""
        self._urgent.pop(name, None)
        self._others.pop(name, None)

    def turn(self, last_s: float, clock: Callable[[], float]) -> Iterator[Name]:
        """Yield the names that one turn serves; names marked meanwhile wait, unless urgent.

        Args:
            last_s: the time after which only urgent names are served; at least one other
                name is served even after that.
            clock: returns the time; called before each name that is not urgent, except the first.
        """
        left = len(self._others)
        while True:
            for name in list(self._urgent):
                if name in self._urgent:  # it may have been dropped by one before it
                    del self._urgent[name]
                    yield name
            if not left or not self._others:
                return
            name = next(iter(self._others))
            del self._others[name]
            yield name
            left -= 1
            if left and clock() > last_s:
                left = 0  # serve only names that are urgent by now
