"""PullClient: keeps a copy of a merged log, from whichever node will give it."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

from replicator.ack_schedule import AckSchedule
from replicator.dialer import Address, Destination, Dialer
from replicator.host import Bell
from replicator.link import Link
from replicator.messages import PULL, CaughtUpNotice
from replicator.sink_connection import SinkConnection
from rt.errors import Misuse, PeerError, Refused, RtError, spoken
from rt.format.manifest import Archived, LogIdentity
from rt.log.appender import Appender
from rt.log.archived import finish_archiving
from rt.log.confirmations import Confirmations
from rt.log.directory import LogDirectory
from rt.log.disk import Disk, OsDisk
from rt.log.forked import ForkGuard
from rt.log.local_news import Announcer
from rt.log.lock import take_lock
from rt.log.start import Start, start_text
from rt.names import stream_directory
from rt.net.contexts import Contexts
from rt.position import START, Position
from rt.subscriber import MERGED_NAME
from rt.traffic import Traffic

_log: Final = logging.getLogger(__name__)
_SYNC_S: Final = 1.0  # what a power cut takes from a copy is fetched again
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


class PulledLog:
    """The subscriber's copy as its connection sees it (`replicator.host.Inbox`)."""

    def __init__(
        self,
        appender: Appender,
        keep: Callable[[Archived], bool],
        grown: Callable[[Position], object],
    ) -> None:
        self.appender = appender
        self._grown = grown
        self.traffic = Traffic()
        self.durable: Position = appender.sync()
        self.news = Announcer(appender.directory)
        self._keep = keep
        self._bell: Bell | None = None

    def claim(self, bell: Bell) -> "PulledLog":
        """Ring this bell from now on."""
        self._bell = bell
        self.written()
        return self

    leave = None  # no other connection fills a copy

    def written(self) -> None:
        """Report the new end, to subscribers here too; the copy is synced about once a second."""
        self._grown(self.appender.end)
        self.news.grown()

    def confirmed(self) -> Confirmations:
        """Return what is durable here."""
        return Confirmations(received=self.durable)

    def keeps(self, entry: Archived) -> bool:
        """Ask the policy."""
        return self._keep(entry)

    def needs(self, _end: Position) -> bool:
        """Nothing is merged from a copy."""
        return False

    def doubted(self) -> None:
        """Keep the copy as it is; the refusal says `diverged`."""

    def release(self) -> None:
        """Record that the connection has ended."""
        self._bell = None

    def sync(self) -> None:
        """Make durable what has arrived; `OSError` if that failed, which is final."""
        durable = self.appender.sync()
        if durable != self.durable:
            self.durable, bell = durable, self._bell
            if bell is not None:
                bell.set()


class LocalCopy:
    """The directory of a copy, locked, and the thread that syncs it.

    Threads: the owner calls `open` before there is another thread, and `start`, `stop` and `close`;
    the connection's thread calls `claim` and appends to `log`; the sync thread syncs and sweeps it.
    `log` is set once, when it is whole; `failure` by the sync thread only.
    """

    def __init__(
        self,
        directory: str,
        keep: Callable[[Archived], bool],
        sweep: Callable[[Appender], object],
        disk: Disk,
        failed: Callable[[], None],
        *,
        grown: Callable[[Position], object] | None = None,
    ) -> None:
        """Lock the directory, creating it if need be.

        Args:
            directory: of the copy.
            keep: whether to keep the bytes of a file that the cluster has archived.
            sweep: is called about once a second to give up what is not to be kept.
            disk: where.
            failed: is called when the copy has ended by itself.
            grown: is called with the end of the copy whenever it has moved.

        Raises:
            Misuse: another process pulls into it.
        """
        self.directory = directory
        self.log: PulledLog | None = None  # once a node has said which log it is
        self.failure = ""  # why the copy has ended by itself
        self._keep = keep
        self._sweep = sweep
        self._disk = disk
        self._failed = failed
        self._grown = grown
        disk.make_directory(directory)
        self._lock_fd = take_lock(
            directory, f"{directory} is being pulled into already; stop that, or use another"
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sync copy", daemon=True)

    def open(self) -> None:
        """Open a copy that is also served, as nodes may be away; before a connection claims it."""
        if self._grown is not None and self.log is None:
            with closing(LogDirectory(self.directory, self._disk)) as log:
                log.refresh()
                identity = log.manifest.identity
            if identity is not None:
                self.log = self._open(identity)
                self.log.written()

    def start(self) -> None:
        """Begin to sync."""
        self._thread.start()

    def claim(self, identity: LogIdentity, bell: Bell) -> PulledLog:
        """Return the copy for a connection to fill.

        Raises:
            Refused: it is a copy of another log.
        """
        if self.log is None:
            self.log = self._open(identity)
        ours = self.log.appender.identity
        if ours.id != identity.id:
            words = (
                f"{self.directory} is a copy of the log {ours.id}, the node's is {identity.id}; "
                "move the copy away to begin another"
            )
            raise Refused("other-log", words)
        return self.log.claim(bell)

    def stop(self, wait_s: float) -> bool:
        """End the sync thread; return whether it has ended within `wait_s`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def sync(self) -> None:
        """Make durable what has arrived, unless that has failed before."""
        if self._lock_fd >= 0 and self.log is not None and not self.failure:
            self.log.sync()

    def close(self) -> None:
        """Release the files and the directory, when no thread uses them any more; idempotent."""
        if self._lock_fd < 0:
            return
        try:
            if self.log is not None:
                self.log.news.close()
                self.log.appender.close()
        finally:
            fd, self._lock_fd = self._lock_fd, -1  # then a child forked here closes no other file
            os.close(fd)

    def abandon(self) -> None:
        """In a forked child: release the files and the lock, which the parent still uses."""
        fd, self._lock_fd = self._lock_fd, -1
        if self.log is not None:
            self.log.appender.abandon()
        if fd >= 0:
            with suppress(OSError):  # the parent may have been closing it
                os.close(fd)

    def _open(self, identity: LogIdentity) -> PulledLog:
        appender = Appender(self._disk, self.directory, identity)
        try:
            appender.recover()
            finish_archiving(self._disk, self.directory, appender.manifest)
            return PulledLog(appender, self._keep, self._grown or (lambda _end: None))
        except BaseException:
            appender.close()
            raise

    def _run(self) -> None:
        while not self._stopping.wait(_SYNC_S):
            try:
                self.sync()
                if self.log is not None:
                    self._sweep(self.log.appender)
            except (OSError, RtError) as error:
                self.failure = f"{self.directory}: {spoken(error)}; this copy has ended"
                _log.critical("%s", self.failure)
                self._failed()
                return


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
        self._stream = stream
        self._start_at = "" if start == "earliest" else start_text(start)
        self._caught_up = threading.Event()
        self._is_ahead = False
        directory = os.path.join(stream_directory(root, stream), MERGED_NAME)
        destination = Destination(list(dict.fromkeys(nodes)), contexts, PULL, stream)
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
    def running(self) -> bool:
        """Whether it is still copying; not after `stop`, nor after the disk has failed."""
        return not self._dialer.stopping

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
                side.turn()
                if refused:
                    self._is_ahead = refused[0].code == "behind"
                    raise refused[0]
                if self._caught_up.is_set() or self.status().position > began:
                    self._dialer.progressed()
                link.wait(side.pause_s)
        finally:
            side.close()
            self._caught_up.clear()

    def _claim(self, identity: LogIdentity, bell: Bell) -> PulledLog:
        if not identity.merged or identity.stream != self._stream:
            raise PeerError(f"it offers a {identity.kind} log of another stream")
        return self._copy.claim(identity, bell)

    def _take_caught_up(self, _message: CaughtUpNotice) -> None:
        self._is_ahead = False
        self._caught_up.set()
