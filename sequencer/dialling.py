"""Dialling: how many connections to one address may be in the making at once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rt.errors import PeerError

# The streams of a process dial the same nodes. A handshake takes some 3 ms of processor time on
# either side: a hundred at once all take longer than they are waited for, again and again.
AT_ONCE: Final = 4


class Turns:
    """Lets a few threads at a time dial an address.

    Threads: any thread may call `at`. `_lock` guards `_slots`, whose values have their own locks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, int], threading.BoundedSemaphore] = {}

    @contextmanager
    def at(self, address: tuple[str, int], wait_s: float) -> Iterator[None]:
        """Hold a turn at an address; `PeerError` if none is free for so long."""
        with self._lock:
            slots = self._slots.setdefault(address, threading.BoundedSemaphore(AT_ONCE))
        if not slots.acquire(timeout=wait_s):
            host, port = address
            raise PeerError(f"other streams are connecting to {host}:{port} first")
        try:
            yield
        finally:
            slots.release()
