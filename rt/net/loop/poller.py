"""Poller: waits for descriptors, and for a bell that any thread can ring."""

import os
import select
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rt.log.notify.event_file import EventFile

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT


class Poller(Protocol):
    """Poller: epoll with a bell; level-triggered, and errors and hang-ups are always reported."""

    bell: int  # among the descriptors that `poll` returns

    @property
    def poll(self) -> Callable[[float], Sequence[tuple[int, int]]]:
        """Wait for so many seconds at most; return descriptors with their events."""

    @property
    def register(self) -> Callable[[int, int], None]:
        """Watch a descriptor that is not watched yet, for these events."""

    @property
    def modify(self) -> Callable[[int, int], None]:
        """Watch a descriptor that is watched already, for these events instead."""

    @property
    def unregister(self) -> Callable[[int], None]:
        """Stop watching a descriptor, which must still be open."""

    def ring(self) -> None:
        """End the wait of `poll`, or the next one. Any thread may call this at any time."""

    def hear(self) -> None:
        """Acknowledge that the bell was rung; only a later ring ends a wait."""

    def close(self) -> None:
        """Release the descriptors; the bell is silent from now on."""


class EpollPoller:
    """EpollPoller: the poller of the operating system.

    Threads: any may call `ring`; the bell's descriptor is closed when the last call has ended, so
    that no call writes to another file that was given the same number.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._bell: EventFile | None = EventFile()
        self.bell = self._bell.fd
        # called in every turn, and so without a function between
        self.poll: Callable[[float], Sequence[tuple[int, int]]] = self._epoll.poll
        self.register: Callable[[int, int], None] = self._epoll.register
        self.modify: Callable[[int, int], None] = self._epoll.modify
        self.unregister: Callable[[int], None] = self._epoll.unregister
        self.register(self.bell, READABLE)

    def ring(self) -> None:
        """End the wait of `poll`, or the next one."""
        bell = self._bell
        if bell is not None:
            os.eventfd_write(bell.fd, 1)

    def hear(self) -> None:
        """Acknowledge that the bell was rung."""
        os.eventfd_read(self.bell)

    def close(self) -> None:
        """Release the descriptors."""
        self._epoll.close()
        self._bell = None
