"""SessionWatcher: notices changes of the sessions of a stream, for the connections to all nodes."""

import logging
import os
import select
import threading
import time
from collections.abc import Sequence
from typing import Final

from replicator.backoff import Complaint
from replicator.gather import GatherWindow
from replicator.link import pause
from replicator.push_connection import PushConnection
from replicator.sessions import SessionBook
from rt.errors import spoken
from rt.log import confirmations, shipping
from rt.log.watch import Wake, Watch

_log: Final = logging.getLogger(__name__)
_SWEEP_S: Final = 1.0  # how often to look at every session, for a lost notification
_SWEEP_ONLY_S: Final = 0.05  # the same where the file system sends none


class SessionWatcher:
    """Announces each change to all connections as soon as it is on disk.

    Threads: the watcher's thread runs `_run` and alone touches `_watched` and `_announced_s`; the
    owner calls `stop`. They share `_stopping` and `_wake`.
    """

    def __init__(
        self, book: SessionBook, connections: Sequence[PushConnection], gather: GatherWindow
    ) -> None:
        """Watch nothing before `start`."""
        self._book = book
        self._connections = connections
        self._gather = gather
        self._wake = Wake()
        self._stopping = False
        self._watched: set[str] = set()
        self._announced_s = 0.0  # when a change was last announced
        self._thread = threading.Thread(target=self._run, name="watch sessions", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End; nothing is announced any more."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._wake.close()

    def _run(self) -> None:
        complaint = Complaint(_log, f"looking for sessions in {self._book.directory}")
        while not self._stopping:
            try:
                self._watch()
            except OSError as error:
                complaint.say(spoken(error))
                pause(self._wake, _SWEEP_S)

    def _watch(self) -> None:
        # our own notes of what the nodes confirm and refuse lie beside the session's files
        ignored = (confirmations.FILE_NAME, shipping.FILE_NAME, shipping.DRAFT_NAME)
        with Watch(ignored=ignored) as watch:
            watch.add(self._book.directory)
            poller = select.poll()
            poller.register(self._wake.fileno(), select.POLLIN)
            self._watched.clear()
            has_events = watch.fileno() >= 0
            if has_events:
                poller.register(watch.fileno(), select.POLLIN)
            while not self._stopping:
                self._look_at_all(watch)
                self._follow(watch, poller, _SWEEP_S if has_events else _SWEEP_ONLY_S)

    def _look_at_all(self, watch: Watch) -> None:
        """Watch what is new before the connections look at it, so that no change is missed."""
        for name in set(self._book.names()) - self._watched:
            watch.add(self._book.path(name))
            self._watched.add(name)
        for connection in self._connections:
            connection.look()

    def _follow(self, watch: Watch, poller: select.poll, sweep_s: float) -> None:
        """Announce changes until a session is new or it is time to look at all."""
        began_s = time.monotonic()
        while (left_s := began_s + sweep_s - time.monotonic()) > 0:
            if not poller.poll(left_s * 1000) or self._stopping:
                return
            changes = watch.changes()
            if changes.rescan or self._book.directory in changes.directories:
                return
            if changes.directories:
                gap_s = self._announced_s + self._gather.gap_s - time.monotonic()
                if gap_s > 0:
                    time.sleep(gap_s)  # what arrives meanwhile is sent with it
                self._announced_s = time.monotonic()
            for directory in changes.directories:
                for connection in self._connections:
                    connection.offer(os.path.basename(directory))
