"""PullClient: keeps a copy of a merged log, from whichever node will give it."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Final

from replicator.backoff import Backoff, Complaint
from replicator.greeting import greet
from replicator.host import Bell
from replicator.link import Link, pause, shut
from replicator.sink_connection import SinkConnection
from replicator.wire import PULL, CaughtUpNotice
from rt.errors import Misuse, PeerError, Refused, RtError, spoken
from rt.format.manifest import Archived, LogIdentity
from rt.log.appender import Appender
from rt.log.archived import finish_archiving
from rt.log.confirmations import Confirmations
from rt.log.disk import Disk, OsDisk
from rt.log.lock import take_lock
from rt.log.watch import Wake
from rt.names import stream_directory
from rt.net.tls import Contexts, connect
from rt.position import START, Position
from rt.subscriber import MERGED_NAME

Address = tuple[str, int]
_log: Final = logging.getLogger(__name__)
_SYNC_S: Final = 1.0  # a copy can be fetched again: what a power cut takes is fetched again
_STOP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class PullStatus:
    """How a copy stands.

    Attributes:
        node: it is copied from; "" while there is no connection.
        position: up to where it is copied.
        next_place: where it goes on: `position`, or in the next file.
        durable: up to where it is durable.
        caught_up: whether it has all that the node had when it was last asked.
        is_ahead: whether the node that was asked last had less than the copy.
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

    def __init__(self, appender: Appender, keep: Callable[[Archived], bool]) -> None:
        self.appender = appender
        self.durable: Position = appender.sync()
        self._keep = keep
        self._bell: Bell | None = None

    def claim(self, bell: Bell) -> "PulledLog":
        """Ring this bell from now on."""
        self._bell = bell
        return self

    is_wanted = False  # what is pulled has no publisher

    def written(self) -> None:
        """There is nothing to do: it is synced about once a second."""

    def confirmed(self) -> Confirmations:
        """Return what is durable here."""
        return Confirmations(received=self.durable)

    def keeps(self, entry: Archived) -> bool:
        """Ask the policy."""
        return self._keep(entry)

    def needs(self, _end: Position) -> bool:
        """Nothing is made of a copy."""
        return False

    def doubted(self) -> None:
        """It is kept as it is, and refused as `diverged`."""

    def release(self) -> None:
        """The connection has ended."""
        self._bell = None

    def sync(self) -> None:
        """Make durable what came; `OSError` if that failed, which is final."""
        durable = self.appender.sync()
        if durable != self.durable:
            self.durable, bell = durable, self._bell
            if bell is not None:
                bell.set()


class PullClient:
    """Copies the merged log of a stream into `root/<stream>/out`, until stopped."""

    def __init__(
        self,
        root: str,
        stream: str,
        nodes: Sequence[Address],
        contexts: Contexts,
        keep: Callable[[Archived], bool] = lambda _entry: False,
        *,
        sweep: Callable[[Appender], object] = lambda _log: None,
        disk: Disk | None = None,
    ) -> None:
        """Stand ready; nothing is dialled before `start`.

        Args:
            root: directory under which streams live.
            stream: name of the stream.
            nodes: host and port of each node; one is used at a time.
            contexts: of `rt.net.tls.client_context`.
            keep: whether to keep the bytes of a file that the cluster has archived.
            sweep: is given the copy about once a second, to archive what else is to go.
            disk: where the copy is; the operating system's unless given.

        Raises:
            Misuse: a name is none, there is no node, or the directory has another puller.
        """
        if not nodes:
            raise Misuse("nothing can be pulled: name at least one node, such as localhost:7700")
        self.directory = os.path.join(stream_directory(root, stream), MERGED_NAME)
        self._stream = stream
        self._nodes = list(dict.fromkeys(nodes))
        self._contexts = contexts
        self._keep = keep
        self._sweep = sweep
        self._disk = disk or OsDisk()
        self._disk.make_directory(self.directory)
        self._lock_fd = take_lock(
            self.directory,
            f"{self.directory} is being pulled into already; stop that, or use another",
        )
        self._wake = Wake()
        self._stopping = threading.Event()
        self._caught_up = threading.Event()
        self._copy: PulledLog | None = None
        self._node, self._error = "", "not connected yet"
        self._failure = ""  # of the disk; no connection that comes or goes takes its place
        self._is_ahead = False
        self._sock: socket.socket | None = None
        self._threads = [
            threading.Thread(target=work, name=f"{verb} {stream}", daemon=True)
            for verb, work in (("pull", self._run), ("sync", self._sync_loop))
        ]

    def start(self) -> None:
        """Begin to copy."""
        for thread in self._threads:
            thread.start()

    def wait_caught_up(self, timeout_s: float | None = None) -> bool:
        """Wait until the copy has all that the node had when it was last asked."""
        return self._caught_up.wait(timeout_s)

    def stop(self, wait_s: float = _STOP_S) -> bool:
        """End the connection, sync the copy, and release the directory.

        Args:
            wait_s: how long to wait for what is being dialled, or written.

        Returns:
            Whether it has ended. If not the directory is still taken: call again.
        """
        self._stopping.set()
        self._wake.set()
        if (sock := self._sock) is not None:
            shut(sock)  # it may be waiting for a peer that takes nothing
        deadline = time.monotonic() + wait_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._lock_fd < 0:
            return True
        copy = self._copy
        if copy is not None:
            copy.sync()
        if any(thread.is_alive() for thread in self._threads):
            return False
        try:
            if copy is not None:
                copy.appender.close()
        finally:
            os.close(self._lock_fd)
            self._lock_fd = -1
            self._wake.close()
        return True

    @property
    def running(self) -> bool:
        """Whether it goes on copying; not after `stop`, nor after the disk has failed."""
        return not self._stopping.is_set()

    def status(self) -> PullStatus:
        """Return how the copy stands."""
        copy = self._copy
        last = self._caught_up.is_set(), self._is_ahead, self._failure or self._error
        if copy is None:
            return PullStatus(self._node, START, START, START, *last)
        end, goes_on = copy.appender.end, copy.appender.next_place
        return PullStatus(self._node, end, goes_on, copy.durable, *last)

    def _run(self) -> None:
        backoff, tried = Backoff(Random()), 0
        complaints = {node: Complaint(_log, f"pull from {_name(node)}") for node in self._nodes}
        while not self._stopping.is_set():
            node = self._nodes[tried % len(self._nodes)]
            try:
                self._pull(node, backoff, complaints[node])
            except (RtError, OSError) as error:
                self._error = spoken(error)
                self._is_ahead = isinstance(error, Refused) and error.code == "behind"
                if not self._stopping.is_set():
                    complaints[node].say(self._error)
            self._node, self._sock = "", None
            self._caught_up.clear()
            tried += 1
            if tried % len(self._nodes) == 0:
                pause(self._wake, backoff.next_s())

    def _pull(self, node: Address, backoff: Backoff, complaint: Complaint) -> None:
        sock, _ = connect(node, self._contexts.current())
        name = _name(node)
        with ExitStack() as undo:
            link = Link(sock, self._wake, name)
            undo.callback(link.close)
            greet(link, PULL, self._stream)
            refused: list[Refused] = []
            side = SinkConnection(
                link, self._wake, self._claim,
                caught_up=self._take_caught_up, refused=refused.append,
            )  # fmt: skip
            undo.callback(side.close)
            self._node, self._error, self._sock = name, "", sock
            _log.info("pull from %s: connected", name)
            while not self._stopping.is_set():
                side.turn()
                if refused:
                    raise refused[0]
                if self._caught_up.is_set():
                    backoff.reset()
                    complaint.reset()
                link.wait(side.pause_s)

    def _claim(self, identity: LogIdentity, bell: Bell) -> PulledLog:
        if not identity.merged or identity.stream != self._stream:
            raise PeerError(f"it offers a {identity.kind} log of another stream")
        if self._copy is None:
            self._copy = self._opened(identity)
        ours = self._copy.appender.identity
        if ours.id != identity.id:
            words = (
                f"{self.directory} is a copy of the log {ours.id}, the node's is {identity.id}; "
                "move the copy away to begin another"
            )
            raise Refused("other-log", words)
        return self._copy.claim(bell)

    def _opened(self, identity: LogIdentity) -> PulledLog:
        appender = Appender(self._disk, self.directory, identity)
        try:
            appender.recover()
            finish_archiving(self._disk, self.directory, appender.manifest)
            return PulledLog(appender, self._keep)
        except BaseException:
            appender.close()
            raise

    def _take_caught_up(self, _message: CaughtUpNotice) -> None:
        self._is_ahead = False
        self._caught_up.set()

    def _sync_loop(self) -> None:
        while not self._stopping.wait(_SYNC_S):
            try:
                if self._copy is not None:
                    self._copy.sync()
                    self._sweep(self._copy.appender)
            except (OSError, RtError) as error:
                self._failure = f"{self.directory}: {spoken(error)}; this copy has ended"
                _log.critical("%s", self._failure)
                self._stopping.set()
                self._wake.set()


def _name(node: Address) -> str:
    return f"{node[0]}:{node[1]}"
