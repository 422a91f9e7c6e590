"""CatchUp: copies the merged log from another node, as a subscriber would."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from replicator.pull.client import PullClient, PullStatus
from replicator.wire.messages import RESERVE
from rt.errors import CorruptLog, DiskFailed, Refused
from rt.log.files.disk import OsDisk, OsFile
from rt.log.write.appender import Appender
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import Contexts
from rt.node.resources.disk_guard import DiskGuard
from rt.node.resources.peer_addresses import PeerAddresses
from rt.node.settings.node import NodeSettings
from rt.position import Position, file_position

_STOP_S: Final = 2.0
_FULL_S: Final = 15.0  # between two connections while there is no room; see `_has_room`


class CatchUp:
    """CatchUp: copies the merged log from another node; meanwhile, only the copy has it open."""

    def __init__(
        self,
        settings: NodeSettings,
        places: PeerAddresses,
        begin: Position,
        guard: DiskGuard,
        contexts: Contexts,
        *,
        suspect: Callable[[CorruptLog], None] = lambda _damage: None,
        loop: EventLoop | None = None,
    ) -> None:
        """Start copying.

        Args:
            settings: this node's settings.
            places: addresses of all other members. The members are tried in turn, each at its first
                address.
            begin: where this node's merged log ends. The copy is useful only once it is longer.
            guard: guard of the disk; while there is no room, the copy waits.
            contexts: TLS contexts made when the node started, so certificate files that become
                faulty later do no harm.
            suspect: called with damage found in a rolled file. The file must then be replaced:
                while the copy ends in a damaged file, every node mistakes it for a copy of another
                log and refuses to continue it.
            loop: the node's event loop, which serves the connection; with None, the copy runs its
                own.
        """
        others = [addresses[0] for addresses in places.now.values()]
        self._guard = guard
        self._disk = GuardedDisk(guard)
        self._rests = False  # whether there is no connection because the disk has no room
        self._pull = PullClient(
            settings.root, settings.stream, others, contexts, disk=self._disk,
            is_wanted=self._is_wanted, loop=loop,
        )  # fmt: skip
        self._begin = begin
        self._pull.on_damage(suspect)
        self._pull.start()

    @property
    def log(self) -> Appender | None:
        """The log being written; None until another node has identified it."""
        return self._pull.log

    @property
    def position(self) -> Position:
        """The position up to which the log is copied."""
        return self._pull.status().position

    @property
    def waits_for(self) -> str:
        """What the copy waits for, for use in messages; "" if it is not waiting."""
        return f"{self._guard.kept} of free disk" if self._guard.is_closed else ""

    def _is_wanted(self) -> bool:
        """Whether to connect; after False, the pull client rests until `is_done` wakes it."""
        is_wanted = self._has_room()
        self._rests = not is_wanted
        return is_wanted

    def _has_room(self) -> bool:
        """Whether to connect: the disk has room, or no write was refused in the last 15 s.

        A connection may help even without room: the other node first names the files that it has
        archived, and archiving them here makes room.
        """
        is_late = time.monotonic() - self._disk.refused_s >= _FULL_S
        return is_late or not self._guard.is_closed

    def is_done(self, ledger_end: Position) -> bool:
        """Whether merging can resume: the copy has the ledger's end and everything its source had.

        A copy that has more than its source does not wait for the source, which may itself be
        waiting for this node.

        Raises:
            DiskFailed: the copy has stopped and will not continue.
        """
        if self._rests and self._has_room():
            self._pull.wake()
        status = self._pull.status()
        if not self._pull.running:
            raise DiskFailed(status.error)
        return is_whole(status, self._begin, ledger_end)

    def end(self) -> bool:
        """Request the end of the copy without waiting; True once it has released the log."""
        return self._pull.stop(0.0)

    def stop(self) -> bool:
        """End the copy and release the log; False if it is still running after 2 s."""
        return self._pull.stop(_STOP_S)


class GuardedDisk(OsDisk):
    """GuardedDisk: a disk on which log files cannot grow while there is too little room.

    Manifest lines and indexes are still written: before a source sends more data, it sends the
    lines that name archived files, and recording these makes room.
    """

    def __init__(self, guard: DiskGuard) -> None:
        self._guard = guard
        self.refused_s = float("-inf")  # the last time without room, by `time.monotonic`

    def open(self, path: str, *, create: bool = False) -> OsFile:
        """Open a file for reading and appending; a log file grows only while there is room."""
        file = super().open(path, create=create)
        if file_position(os.path.basename(path)) is None:
            return file
        try:
            return _GuardedFile(os.dup(file.fileno()), self)
        finally:
            file.close()

    def demand_room(self) -> None:
        """Raise `Refused` while there is no room."""
        try:
            self._guard.demand_room()
        except Refused:
            self.refused_s = time.monotonic()
            kept = self._guard.kept
            raise Refused(RESERVE, f"the copy waits for {kept} of free disk") from None


class _GuardedFile(OsFile):
    __slots__ = ("_disk",)

    def __init__(self, fd: int, disk: GuardedDisk) -> None:
        super().__init__(fd)
        self._disk = disk

    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        self._disk.demand_room()
        return super().append(parts)


def is_whole(status: PullStatus, begin: Position, ledger_end: Position) -> bool:
    """Whether a copy is past `begin` and the ledger's end, and has everything its source had.

    Args:
        status: the status of the copy.
        begin: where the log ended when the copy began.
        ledger_end: the end of the merged log by the node's ledger.
    """
    has_all = status.has_all or status.is_ahead
    return has_all and max(ledger_end, begin + 1) <= status.next_place
