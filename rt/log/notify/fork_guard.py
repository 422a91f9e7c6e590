"""ForkGuard: disables the copy of an open object that `fork` leaves in a child process."""

import os
from collections.abc import Callable
from typing import Final
from weakref import WeakMethod, WeakSet

from rt.errors import Misuse


class ForkGuard:
    """Knows whether its owner was opened by this process or copied into it by `fork`.

    A child inherits its parent's descriptors and buffers, but not its threads. If both wrote to one
    log, each would overwrite the other's frames. So the child's copy is abandoned as soon as the
    child starts, before any other code runs in it, and refuses every call from then on.

    Examples:
        >>> class Owner:
        ...     def __init__(self):
        ...         self.guard = ForkGuard("a Publisher", self.abandon)
        ...     def abandon(self):
        ...         pass  # close the descriptors, write nothing, replace locks that may be held
        >>> Owner().guard.is_copy
        False
    """

    __slots__ = ("__weakref__", "_abandon", "_noun", "is_copy")

    def __init__(self, noun: str, abandon: Callable[[], None]) -> None:
        """Guard an owner for as long as it lives. The guard holds only a weak reference to it.

        Args:
            noun: what the child should open instead, with an article: `a Publisher`.
            abandon: a bound method of the owner, called in a new child. It must not write, block or
                take a lock, because the thread that held the lock does not exist in the child.
        """
        self.is_copy = False
        self._noun = noun
        self._abandon = WeakMethod(abandon)
        _guards.add(self)

    def misuse(self) -> Misuse:
        """Return the error that calls on a copy raise."""
        return Misuse(
            f"this process was forked with its parent's open files; open {self._noun} in the child"
        )

    def demand_owner(self) -> None:
        """Raise `Misuse` in a forked child."""
        if self.is_copy:
            raise self.misuse()

    def _mark(self) -> None:
        self.is_copy = True
        abandon = self._abandon()
        if abandon is not None:
            abandon()


_guards: Final[WeakSet[ForkGuard]] = WeakSet()


def _in_child() -> None:
    for guard in list(_guards):
        guard._mark()


os.register_at_fork(after_in_child=_in_child)
