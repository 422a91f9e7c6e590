"""FrameGate: checks a publisher's limits before a frame begins."""

import threading
from collections.abc import Callable
from typing import Final

from rt.log.write.disk_room import DiskRoom
from rt.log.write.pending import COLUMN_BYTES, PendingFrame

_NO_LIMIT: Final = 1 << 62
Room = tuple[int, int]  # messages and bytes; making a class instance costs as much as a message


class FrameGate:
    """Checks a publisher's limits once for each frame, so that most messages cost nothing.

    The frame is closed before it exceeds the room that was granted.

    Threads: any thread may call `begin` and `admit`; both limits are set while there is only one
    thread. Only the pending frame changes, guarded by the publisher's lock.
    """

    def __init__(
        self, pending: PendingFrame, lock: threading.Lock, is_closed: Callable[[], bool]
    ) -> None:
        """Create a gate without limits; a wait ends early when `is_closed` returns True."""
        self.disk: DiskRoom | None = None
        # waits until this many messages and bytes fit
        self.flight: Callable[[int, int], Room] | None = None
        self._pending = pending
        self._lock = lock
        self._is_closed = is_closed

    def limit_flight(self, admit: Callable[[int, int], Room]) -> None:
        """From now on, wait for `admit` as well as for room on the disk before each frame.

        `admit` gets the number of messages and of bytes that begin the frame, waits for room for
        them, and returns all the room that there is. A frame that begins without admission is
        closed after one message.
        """
        self.flight = admit
        with self._lock:
            self._pending.limit()

    def begin(self, size: int) -> None:
        """Wait until a message of `size` bytes may begin a frame; raises both limits' errors."""
        room = self.admit(1, size)
        if room is not None:
            with self._lock:
                self._pending.allow(*room)

    def admit(self, messages: int, size: int) -> Room | None:
        """Wait until this much may be published; return the remaining room, None if unlimited."""
        room = None
        if self.disk is not None:
            left = self.disk.admit(size + COLUMN_BYTES * messages, messages, self._is_closed)
            room = None if left is None else (left, _NO_LIMIT)
        if self.flight is None:
            return room
        admitted = self.flight(messages, size)
        return admitted if room is None else (min(room[0], admitted[0]), admitted[1])
