"""SessionWatcher: notices changes of the sessions of a stream, for the connections to all nodes."""

import logging
import os
import select
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final

from replicator.push.connection import PushConnection
from replicator.push.session_book import SessionBook
from replicator.source.gather_window import GatherWindow
from replicator.source.gathered_frames import GatheredFrames
from replicator.wire.backoff import Complaint
from replicator.wire.link import pause
from rt.errors import spoken
from rt.log.notify import confirmations, shipping
from rt.log.notify.in_process_notify import News, NewsPlace, WrittenFrame, local_news
from rt.log.notify.watch import Wake, Watch

_log: Final = logging.getLogger(__name__)
_SWEEP_S: Final = 1.0  # how often to look for new sessions, and begin a look at all
_SWEEP_ONLY_S: Final = 0.05  # the same where the file system sends none


class SessionWatcher:
    """Announces each change to all connections as soon as it is on disk.

    A publisher in this process announces its own writes, and the thread that publishes a lone
    message sends it; other sessions are watched.

    Threads: the watcher's thread runs `_run` and alone changes `_watched` and `_announcing`, whose
    membership any thread may test. `_heard` is called by threads that publish: they add to `_due`,
    which the watcher's thread empties, and set `_announced_s`; a lost update costs one early send.
    The owner calls `start` and `stop`. All share `_stopping` and `_wake`. The rest is set once.
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
        self._stream = os.path.realpath(book.directory)
        self._watched: set[str] = set()
        self._announcing: set[str] = set()  # sessions that are written in this process
        self._due: set[str] = set()  # sessions that grew and were not announced yet
        self._gathered = GatheredFrames()  # by which they grew
        self._announced_s = 0.0  # when a change was last announced
        self._thread = threading.Thread(target=self._run, name="watch sessions", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        local_news.listen(self._stream, self._heard)
        self._thread.start()

    def stop(self) -> None:
        """End; nothing is announced any more."""
        self._stopping = True
        local_news.ignore(self._stream, self._heard)
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._wake.close()

    def _heard(self, name: str, news: News, /) -> None:
        """Announce a lone update at once while the nodes keep up; leave the rest to `_run`.

        When they do not, the watcher's thread sends several updates as one.
        """
        if self._stopping:
            return
        if name in self._due:
            self._gathered.add(name, news.frame)
            return
        is_known = name in self._announcing
        if is_known and news.alone and self._gather.keeps_up:
            self._announce(name, news.frame)
        elif is_known or self._book.ships(name):
            self._gathered.add(name, news.frame)
            self._due.add(name)
            self._wake.set()

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
            is_urgent = True
            while not self._stopping:
                self._look_at_all(watch, urgent=is_urgent)
                is_told = self._follow(watch, poller, _SWEEP_S if has_events else _SWEEP_ONLY_S)
                is_urgent = not (has_events and is_told)

    def _look_at_all(self, watch: Watch, *, urgent: bool) -> None:
        """Watch new sessions before the connections check them, so that no change is missed."""
        for name in self._book.names():
            self._watch_one(watch, name)
        for connection in self._connections:
            connection.look(urgent=urgent)

    def _watch_one(self, watch: Watch, name: str) -> None:
        """Watch a session, unless a publisher in this process announces it."""
        if self._is_announced(name):
            self._announcing.add(name)
            self._watch_no_more(watch, name)
        elif name not in self._watched:
            watch.add(self._book.path(name))
            self._watched.add(name)
            self._announcing.discard(name)

    def _watch_no_more(self, watch: Watch, name: str) -> None:
        if name in self._watched:
            watch.remove(self._book.path(name))
            self._watched.discard(name)

    def _is_announced(self, name: str) -> bool:
        return local_news.is_written(NewsPlace(self._stream, name))

    def _follow(self, watch: Watch, poller: select.poll, sweep_s: float) -> bool:
        """Announce changes until all sessions are due to be checked; False if they are at once."""
        began_s = time.monotonic()
        while (left_s := began_s + sweep_s - time.monotonic()) > 0:
            ready = dict(poller.poll(left_s * 1000))
            if not ready or self._stopping:
                return True
            if self._wake.fileno() in ready:
                self._wake.clear()
            changed = self._changed(watch, has_events=watch.fileno() in ready)
            if changed is None:
                return False
            if changed:
                if (gap_s := self._gap_s()) > 0:
                    time.sleep(gap_s)  # what arrives meanwhile is sent with it
                self._due -= changed
                for name in changed:
                    self._announce(name, self._gathered.take(name))
        return True

    def _changed(self, watch: Watch, *, has_events: bool) -> set[str] | None:
        """Return the sessions that grew; None if all must be checked."""
        due = self._due.copy()
        for name in due:
            self._watch_one(watch, name)  # a publisher may have been opened or closed here
        if has_events:
            changes = watch.changes()
            if changes.rescan:
                self._due.clear()
                self._gathered.forget()
                return None
            due |= {os.path.basename(each) for each in changes.directories - {self._book.directory}}
            due |= self._made(watch, changes.made)
        return due

    def _made(self, watch: Watch, paths: Iterable[str]) -> set[str]:
        """Watch the sessions whose directories were made, before they are announced."""
        made = {os.path.split(each) for each in paths}
        new = {name for place, name in made if place == self._book.directory}
        new = {name for name in new if self._book.ships(name)}
        for name in new:
            self._watch_no_more(watch, name)  # it may have been another directory
            self._watch_one(watch, name)
        return new

    def _gap_s(self) -> float:
        """How long to gather before the next announcement."""
        return self._announced_s + self._gather.gap_s - time.monotonic()

    def _announce(self, name: str, frame: WrittenFrame | None) -> None:
        self._announced_s = time.monotonic()
        for connection in self._connections:
            connection.offer(name, frame)
