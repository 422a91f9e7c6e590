"""Lookout: watches the sessions of a stream, by one thread for the pushers to all nodes."""

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
from replicator.push_connection import PushConnection, ShippedSessions
from rt.errors import spoken
from rt.log import confirmations
from rt.log.watch import Wake, Watch

_log: Final = logging.getLogger(__name__)
_SWEEP_S: Final = 1.0  # a look at every session, for what no event told of
_SWEEP_ONLY_S: Final = 0.05  # where there are no events


class SessionWatcher:
    """Tells all pushers of a change as soon as it is there."""

    def __init__(
        self, book: ShippedSessions, pushers: Sequence[PushConnection], pace: GatherWindow
    ) -> None:
        """Stand ready; nothing is watched before `start`."""
        self._book = book
        self._pushers = pushers
        self._pace = pace
        self._wake = Wake()
        self._stopping = False
        self._watched: set[str] = set()
        self._told_s = 0.0  # when the pushers were last told of a session
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End; the pushers are told nothing any more."""
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
        # what each node confirms is noted beside the session's files
        with Watch(ignored=(confirmations.FILE_NAME,)) as watch:
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
        """Watch what is new, and only then let the pushers look: so no change is missed."""
        for name in set(self._book.names()) - self._watched:
            watch.add(self._book.path(name))
            self._watched.add(name)
        for pusher in self._pushers:
            pusher.look()

    def _follow(self, watch: Watch, poller: select.poll, sweep_s: float) -> None:
        """Tell of what changes, until something is new or it is time to look at all."""
        began_s = time.monotonic()
        while (left_s := began_s + sweep_s - time.monotonic()) > 0:
            if not poller.poll(left_s * 1000) or self._stopping:
                return
            changes = watch.changes()
            if changes.rescan or self._book.directory in changes.directories:
                return
            if changes.directories:
                gap_s = self._told_s + self._pace.gap_s - time.monotonic()
                if gap_s > 0:
                    time.sleep(gap_s)  # what comes meanwhile goes with it
                self._told_s = time.monotonic()
            for directory in changes.directories:
                for pusher in self._pushers:
                    pusher.offer(os.path.basename(directory))
