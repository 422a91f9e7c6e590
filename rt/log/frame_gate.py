"""FrameGate: asks the limits of a publisher before a frame begins."""

import threading
from collections.abc import Callable

from rt.log.disk_room import DiskRoom
from rt.log.pending import COLUMN_BYTES, PendingFrame

Room = tuple[int, int]  # messages, and bytes; a class of its own takes as long as a message


class FrameGate:
    """Asks the limits of a publisher once for each frame, so that most messages cost nothing.

    The frame then holds no more than was allowed: it is full before it would.

    Threads:
        Any may call `begin` and `admit`; both limits are set before there is another thread. What
        changes is in the pending frame, which the publisher's lock guards.
    """

    def __init__(
        self, pending: PendingFrame, lock: threading.Lock, is_closed: Callable[[], bool]
    ) -> None:
        """Prepare, without a limit.

        Args:
            pending: the frame that is filled.
            lock: the publisher's.
            is_closed: ends a wait; the caller finds out for itself.
        """
        self.disk: DiskRoom | None = None
        self.flight: Callable[[int, int], Room] | None = None  # waits for room for so much
        self._pending = pending
        self._lock = lock
        self._is_closed = is_closed

    def limit_flight(self, admit: Callable[[int, int], Room]) -> None:
        """Ask `admit`, too, which may wait; a frame that began unasked holds one message."""
        self.flight = admit
        with self._lock:
            self._pending.limit()

    def begin(self, size: int) -> None:
        """Wait until a message of so many bytes may begin a frame; errors as of both limits."""
        room = self.admit(1, size)
        if room is not None:
            with self._lock:
                self._pending.allow(*room)

    def admit(self, messages: int, size: int) -> Room | None:
        """Wait until so much may be published; return how much more may be, None for no limit.

        Args:
            messages: how many.
            size: bytes of their payloads and keys.
        """
        if self.disk is not None:
            self.disk.admit(size + COLUMN_BYTES * messages, self._is_closed)
        return None if self.flight is None else self.flight(messages, size)
