"""DiskGuard: refuses new data before the disk is too full to finish anything."""

import logging
import os
import time
from typing import Final

from replicator.wire.messages import RESERVE
from rt.amounts import size_text
from rt.errors import Refused
from rt.limits import MIB

_log: Final = logging.getLogger("rt.node")
_LOOK_S: Final = 0.05
# Bytes that may be received and merged between two measurements, at 1 GB/s each. With less room
# than this above the reserve, every check measures.
_COMING: Final = 100 * MIB
REOPENS: Final = 1.25  # times the reserve must be free; else it would open and close for each file


class DiskGuard:
    """DiskGuard: knows whether there is room for new data.

    The reserve is for finishing what was acknowledged: merging it, deciding on it, archiving it.

    Threads:
        Any thread may ask, measure, or set `reserve`, the bytes to keep free. Each measurement
        replaces `available`, `is_closed` and `_looked_s`, so an answer may be one measurement old.
        Two threads that measure at once may both log a change. The rest never changes.
    """

    def __init__(self, node: str, path: str, reserve: int) -> None:
        """Measure the file system of `path`.

        Args:
            node: the name of the node, for messages.
            path: a directory on that file system.
            reserve: bytes to keep free; 0 keeps none.
        """
        self.is_closed = False
        self.available = 0
        self._node = node
        self._path = path
        self.reserve = reserve
        self._looked_s = float("-inf")

    def demand_room(self) -> None:
        """Raise `Refused` while there is no room.

        The disk is measured at most every 50 ms, but at every call while room is short.
        """
        is_near = self.available < self.reserve + _COMING
        if is_near or time.monotonic() - self._looked_s > _LOOK_S:
            self.measure()
        if self.is_closed:
            free = size_text(self.available)
            raise Refused(
                RESERVE,
                f"node {self._node} has {free} of disk left and keeps {self.kept} free; it "
                "takes data again when there is room, and what is published waits at its publisher",
            )

    @property
    def kept(self) -> str:
        """The size of the reserve, as text."""
        return size_text(self.reserve)

    def measure(self) -> None:
        """Measure the room now."""
        self._looked_s = time.monotonic()
        facts = os.statvfs(self._path)
        self.available = available = facts.f_bavail * facts.f_frsize
        was_closed = self.is_closed
        self.is_closed = closed = available < self.reserve * (REOPENS if was_closed else 1)
        if closed != was_closed:
            word = "refuses" if closed else "takes"
            _log.log(
                logging.ERROR if closed else logging.WARNING,
                "node %s %s new data: %s are free, and it keeps %s",
                self._node, word, size_text(available), self.kept,
            )  # fmt: skip
