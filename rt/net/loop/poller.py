"""Poller: waits for descriptors, and for a bell that any thread can ring."""

import os
import select
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rt.log.notify.event_file import EventFile

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT


class Poller(Protocol):
    """Poller: waits for events of descriptors and for a bell, for an event loop.

    Events are level-triggered; errors and hang-ups are always reported.
    """

    bell: int  # descriptor that `poll` returns if the bell was rung

    @property
    def poll(self) -> Callable[[float], Sequence[tuple[int, int]]]:
        """A function that waits at most the given seconds; it returns descriptors and events."""

    @property
    def register(self) -> Callable[[int, int], None]:
        """A function that begins to watch a descriptor for the given events."""

    @property
    def modify(self) -> Callable[[int, int], None]:
        """A function that replaces the events for which a descriptor is watched."""

    @property
    def unregister(self) -> Callable[[int], None]:
        """A function that stops watching a descriptor, which must still be open."""

    def ring(self) -> None:
        """End the current wait of `poll`, or the next one. Any thread may call this at any time."""

    def hear(self) -> None:
        """Reset the bell after it was rung, so that only a later ring ends a wait."""

    def close(self) -> None:
        """Release the descriptors; `ring` then does nothing."""


class EpollPoller:
    """EpollPoller: a poller that uses `epoll`, and an `eventfd` as its bell.

    Threads: any may call `ring`; the bell's descriptor is closed when the last call has ended, so
    that no call writes to another file that was given the same number.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._bell: EventFile | None = EventFile()
        self.bell = self._bell.fd
        # called in every turn, and so without a wrapper
        self.poll: Callable[[float], Sequence[tuple[int, int]]] = self._epoll.poll
        self.register: Callable[[int, int], None] = self._epoll.register
        self.modify: Callable[[int, int], None] = self._epoll.modify
        self.unregister: Callable[[int], None] = self._epoll.unregister
        self.register(self.bell, READABLE)

    def ring(self) -> None:
        """End the current wait of `poll`, or the next one."""
        bell = self._bell
        if bell is not None:
            os.eventfd_write(bell.fd, 1)

    def hear(self) -> None:
        """Reset the bell after it was rung."""
        os.eventfd_read(self.bell)

    def close(self) -> None:
        """Release the descriptors."""
        self._epoll.close()
        self._bell = None
