"""Served: a connection that pulls a log from this node."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from replicator.host import Bell, Feed
from replicator.link import Link
from replicator.source_channel import SourceChannel
from replicator.source_connection import SourceConnection
from rt.errors import CorruptLog, Refused
from rt.log.directory import LogDirectory
from rt.log.watch import Wake

_log: Final = logging.getLogger(__name__)
_POLL_S: Final = 1.0  # a look at the log even if the host never rang


class PullConnection:
    """Sends a log as it grows. The connection's thread and whoever rings the bell take turns.

    Who rings sends what is new where that is little and the peer takes it at once, so that a
    message alone need not wait for the connection's thread to wake up.
    """

    def __init__(self, link: Link, wake: Wake, feed: Callable[[Bell], Feed]) -> None:
        """Serve what `feed` gives to whoever is at the other end of `link`, which waits for `wake`.

        Raises:
            Refused: the host does not serve now.
        """
        self._link = link
        self._wake = wake
        self._turn = threading.Lock()
        self._refused: list[Refused] = []
        self._side = SourceConnection(link, refused=lambda _outlet, why: self._refused.append(why))
        self._outlet: SourceChannel | None = None
        self._feed = feed(self)
        self._log = LogDirectory(self._feed.directory)

    def set(self) -> None:
        """There is more (`replicator.host.Bell`)."""
        if not self._send_now():
            self._wake.set()

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Serve until the channel has ended, or `is_stopping`.

        Raises:
            PeerError: the peer broke the protocol, or has gone.
            Refused: the log is damaged.
        """
        try:
            while not is_stopping() and not self._refused:
                with self._turn:
                    self._look()
                    self._side.turn()
                    pause_s = 0.0 if self._side.busy else _POLL_S
                self._link.wait(pause_s)
            for why in self._refused:
                _log.warning("%s: %s", self._link.name, why)
        finally:
            self._feed.release()
            with self._turn:
                self._outlet = None
                self._side.close()
                self._log.close()

    def _look(self) -> None:
        """Let the side look at the log; open it when it is there."""
        if self._outlet is not None:
            self._side.mark(self._outlet)
        elif _is_there(self._log):
            self._outlet = self._side.open(self._log, self._feed.end)

    def _send_now(self) -> bool:
        if not self._turn.acquire(blocking=False):
            return False
        try:
            return self._outlet is not None and self._side.send_now(self._outlet)
        finally:
            self._turn.release()


def _is_there(log: LogDirectory) -> bool:
    try:
        log.refresh()
    except CorruptLog as error:
        raise Refused("corrupt", str(error)) from error
    return log.is_there
