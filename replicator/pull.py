"""PullClient: keeps a copy of a merged log, from whichever node will give it."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from replicator.ack_schedule import AckSchedule
from replicator.dialer import Address, Destination, Dialer
from replicator.host import Bell
from replicator.link import HungUp, Link
from replicator.local_copy import LocalCopy, PulledLog
from replicator.messages import BEHIND, NO_SUCH_STREAM, PULL, CaughtUpNotice
from replicator.sink_connection import SinkConnection
from rt.errors import CorruptLog, Misuse, PeerError, Refused
from rt.format.manifest import Archived, LogIdentity
from rt.log.appender import Appender
from rt.log.disk import Disk, OsDisk
from rt.log.forked import ForkGuard
from rt.log.start import Start, start_text
from rt.names import MERGED_NAME, stream_directory
from rt.net.contexts import Contexts
from rt.position import START, Position
from rt.traffic import Traffic

_log: Final = logging.getLogger(__name__)
_STOP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class PullStatus:
    """The status of a copy.

    Attributes:
        node: where it is copied from; "" while there is no connection.
        position: up to where it is copied.
        next_place: where it continues: `position`, or the next file.
        durable: up to where it is durable.
        caught_up: whether it has all that the node had when it was last asked.
        is_ahead: whether the node that answered last had less than the copy.
        error: why there is no connection, or why the copy has ended by itself.
    """

    node: str
    position: Position
    next_place: Position
    durable: Position
    caught_up: bool
    is_ahead: bool
    error: str


class PullClient:
    """Copies the merged log of a stream into `root/<stream>/out`, until stopped.

    Threads: the dialer's thread runs `_serve` and alone sets `_is_ahead`; the others belong to
    `_copy`. The public methods may be called from any thread, `stop` from one at a time.
    """

    def __init__(
        self,
        root: str,
        stream: str,
        nodes: Sequence[Address],
        contexts: Contexts,
        keep: Callable[[Archived], bool] = lambda _entry: False,
        *,
        sweep: Callable[[Appender], object] = lambda _log: None,
        start: Start = "earliest",
        grown: Callable[[Position], object] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Dial nothing before `start` is called.

        Args:
            root: directory under which streams live.
            stream: name of the stream.
            nodes: host and port of each node; one is used at a time.
            contexts: of `rt.net.tls.client_context`.
            keep: whether to keep the bytes of a file that the cluster has archived.
            sweep: is called about once a second to give up what is not to be kept.
            start: where a new copy begins: at the file that holds this place. One that holds
                anything goes on where it ends.
            grown: is called with the end of the copy whenever it has moved, for one that is served.
            disk: where; the real one if not given.

        Raises:
            Misuse: a name is invalid, there is no node, or another pulls into the directory.
        """
        if not nodes:
            raise Misuse("nothing can be pulled: name at least one node, such as localhost:7700")
        self._stream, self._nodes = stream, list(dict.fromkeys(nodes))
        self._start_at = "" if start == "earliest" else start_text(start)
        self._caught_up = threading.Event()
        self._is_ahead = False
        directory = os.path.join(stream_directory(root, stream), MERGED_NAME)
        destination = Destination(self._nodes, contexts, PULL, stream)
        self._dialer = Dialer(destination, self._serve)
        try:
            self._copy = LocalCopy(
                directory, keep, sweep, disk or OsDisk(), self._dialer.stop, grown=grown
            )
        except BaseException:
            self._dialer.join(0)
            raise
        self._guard = ForkGuard("a PullClient", self._abandon)

    def start(self) -> None:
        """Begin to copy; `CorruptLog` if a copy that is also served is damaged."""
        self._guard.demand_owner()
        self._copy.open()
        self._dialer.start()
        self._copy.start()

    def wait_caught_up(self, timeout_s: float | None = None) -> bool:
        """Wait until the copy has all that the node had when it was last asked."""
        self._guard.demand_owner()
        return self._caught_up.wait(timeout_s)

    def stop(self, wait_s: float = _STOP_S) -> bool:
        """End the connection, sync the copy, and release the directory.

        Args:
            wait_s: how long to wait for a dial, or a write, that is under way.

        Returns:
            Whether it has ended. If not, the directory is still locked: call again.
        """
        if self._guard.is_copy:
            return True
        deadline = time.monotonic() + wait_s
        self._dialer.stop()
        has_ended = self._dialer.join(wait_s)
        has_ended &= self._copy.stop(max(0.0, deadline - time.monotonic()))
        self._copy.sync()
        if has_ended:
            self._copy.close()
        return has_ended

    @property
    def directory(self) -> str:
        """Where the copy is."""
        return self._copy.directory

    @property
    def log(self) -> Appender | None:
        """The copy's log; None before a node has said which it is."""
        return None if self._copy.log is None else self._copy.log.appender

    def on_damage(self, suspect: Callable[[CorruptLog], None]) -> None:
        """Have damage in a rolled file reported; before `start`."""
        self._copy.suspect = suspect

    @property
    def running(self) -> bool:
        """Whether it is still copying; not after `stop`, nor after the disk has failed."""
        return not self._dialer.stopping

    @property
    def is_served_nowhere(self) -> bool:
        """Whether every node has answered last that it does not serve the stream."""
        known = [self._dialer.codes.get(node) for node in self._nodes]
        return all(code == NO_SUCH_STREAM for code in known)

    @property
    def traffic(self) -> Traffic:
        """What was copied since the start."""
        log = self._copy.log
        return Traffic() if log is None else log.traffic

    def status(self) -> PullStatus:
        """Return the status of the copy."""
        self._guard.demand_owner()
        log, node = self._copy.log, self._dialer.node
        last = self._caught_up.is_set(), self._is_ahead, self._copy.failure or self._dialer.error
        if log is None:
            return PullStatus(node, START, START, START, *last)
        appender = log.appender
        return PullStatus(node, appender.end, appender.next_place, log.durable, *last)

    def _abandon(self) -> None:
        """In a forked child: release what it inherited."""
        self._dialer.abandon()
        self._copy.abandon()

    def _serve(self, link: Link) -> None:
        refused: list[Refused] = []
        side = SinkConnection(
            link, AckSchedule(self._dialer.wake), self._claim,
            caught_up=self._take_caught_up, refused=refused.append, start=self._start_at,
        )  # fmt: skip
        began = self.status().position
        try:
            while not self._dialer.stopping:
                self._turn(side, refused)
                if self._caught_up.is_set() or self.status().position > began:
                    self._dialer.progressed()
                link.wait(side.pause_s)
        finally:
            side.close()
            self._caught_up.clear()

    def _turn(self, side: SinkConnection, refused: list[Refused]) -> None:
        """Take what has come; raise the refusal rather than that the node hung up after it."""
        try:
            side.turn()
        except HungUp:
            if not refused:
                raise
        if refused:
            self._is_ahead = refused[0].code == BEHIND
            raise refused[0]

    def _claim(self, identity: LogIdentity, bell: Bell) -> PulledLog:
        if not identity.merged or identity.stream != self._stream:
            raise PeerError(f"it offers a {identity.kind} log of another stream")
        return self._copy.claim(identity, bell)

    def _take_caught_up(self, _message: CaughtUpNotice) -> None:
        self._is_ahead = False
        self._caught_up.set()
