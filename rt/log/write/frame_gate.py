"""FrameGate: asks a publisher's limits before a frame begins."""

import threading
from collections.abc import Callable

from rt.log.write.disk_room import DiskRoom
from rt.log.write.pending import COLUMN_BYTES, PendingFrame

Room = tuple[int, int]  # messages and bytes; making a class instance costs as much as a message


class FrameGate:
    """Asks a publisher's limits once for each frame, so that most messages cost nothing.

    The frame is then closed before it exceeds what was allowed.

    Threads:
        Any may call `begin` and `admit`; both limits are set while there is only one thread. What
        changes is in the pending frame, guarded by the publisher's lock.
    """

    def __init__(
        self, pending: PendingFrame, lock: threading.Lock, is_closed: Callable[[], bool]
    ) -> None:
        """Create a gate without limits; `is_closed` ends a wait early, and is checked again."""
        self.disk: DiskRoom | None = None
        # waits until this many messages and bytes fit
        self.flight: Callable[[int, int], Room] | None = None
        self._pending = pending
        self._lock = lock
        self._is_closed = is_closed

    def limit_flight(self, admit: Callable[[int, int], Room]) -> None:
        """Ask `admit` as well, which may wait; close an unadmitted frame after one message."""
        self.flight = admit
        with self._lock:
            self._pending.limit()

    def begin(self, size: int) -> None:
        """Wait until a message of this size may begin a frame; raises the errors of both limits."""
        room = self.admit(1, size)
        if room is not None:
            with self._lock:
                self._pending.allow(*room)

    def admit(self, messages: int, size: int) -> Room | None:
        """Wait until this much may be published; return the remaining room, None if unlimited."""
        if self.disk is not None:
            self.disk.admit(size + COLUMN_BYTES * messages, self._is_closed)
        return None if self.flight is None else self.flight(messages, size)
