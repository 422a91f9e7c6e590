"""What archives on a simulated node: the real archiver and sweeper, on its clocks and its disk."""

import errno
from typing import TYPE_CHECKING

from rt.appender import Appender
from rt.errors import DiskFailed
from rt.node_archive import Machine, NodeArchiver
from rt.node_settings import NodeSettings
from rt.node_sweeper import NodeSweeper
from rt.position import Position
from sequencer.ledger import decode_ledger

from .stream import BEGIN_NS

if TYPE_CHECKING:
    from .merge_node import MergeNode

DISK_BYTES = 20_000


class SimSweeper(NodeSweeper):
    """Sweeps when it is told to, and not by a thread."""

    def __init__(self, node: "MergeNode") -> None:
        super().__init__(node.disk, node.inboxes, fold_s=0, now_ns=lambda: paced_ns(node))
        self._node = node
        self._failed = False

    @property
    def has_work(self) -> bool:
        """Whether its thread would be awake."""
        return self._work is not None and not self._failed

    def sweep(self) -> None:
        """Do once what the thread does."""
        work, self._work = self._work, None
        if work is None or self._failed:
            return
        try:
            self._sweep(*work)
        except DiskFailed:
            self._failed = True
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOSPC):
                raise

    def saved(self, data: bytes) -> None:
        """A snapshot was saved or found: what it names has to be durable."""
        self._node.world.stream.saves(self._node.name, self._node.disk, decode_ledger(data))
        super().saved(data)

    def _archive_input(self, log: Appender, merged_to: Position) -> None:
        self._node.world.stream.gives_up(self._node.name, log.identity.name, merged_to)
        super()._archive_input(log, merged_to)


def make_archiver(node: "MergeNode", sweeper: SimSweeper) -> NodeArchiver:
    """Return the real archiver of a node; its time runs faster, since a run is short."""
    world = node.world
    machine = Machine(
        now_ns=lambda: paced_ns(node),
        steady_ns=lambda: steady_ns(node),
        disk_of=lambda _path: _disk_of(node),
    )
    settings = NodeSettings(name=node.name, file_age_s=world.file_age_s)
    return NodeArchiver(settings, node.member, sweeper, node.guard, machine)


def paced_ns(node: "MergeNode") -> int:
    """The wall clock that retention goes by."""
    return BEGIN_NS + node.offset_ns + int(steady_ns(node) * node.rate)


def steady_ns(node: "MergeNode") -> int:
    """A clock that nobody sets."""
    return node.world.clock.now_us * 1000 * node.world.pace


def _disk_of(node: "MergeNode") -> tuple[int, int, int]:
    used = DISK_BYTES * 19 // 20 if node.is_full else DISK_BYTES // 20
    return DISK_BYTES, used, DISK_BYTES - used
