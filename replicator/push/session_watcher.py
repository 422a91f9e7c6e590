"""SessionWatcher: notices changes of the sessions of a stream, for the connections to all nodes."""

import logging
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from replicator.push.connection import PushConnection
from replicator.push.headers_news import HeadersNews
from replicator.push.session_book import SessionBook
from replicator.source.gather_window import GatherWindow
from replicator.source.gathered_frames import GatheredFrames
from replicator.wire.backoff import Complaint
from rt.errors import spoken
from rt.log.notify import confirmations, shipping
from rt.log.notify.in_process_notify import News, NewsPlace, in_process_notify
from rt.log.notify.watch import Watch
from rt.net.loop.event_loop import EventLoop

_log: Final = logging.getLogger(__name__)
_SWEEP_S: Final = 1.0  # how often to look for new sessions, and to begin a check of all sessions
_SWEEP_ONLY_S: Final = 0.05  # the same, where the file system reports no changes


class SessionWatcher:
    """Announces each change of a session to all connections, as soon as the change is on disk.

    A publisher in this process announces its own writes; the files of other sessions are watched.

    Threads: only the loop uses this, with two exceptions. The owner calls `start` and `stop`.
    Threads that publish call `_heard`, which reads `_announcing` and adds to `_due`; the loop
    removes from `_due`.
    """

    is_urgent = False

    def __init__(
        self,
        book: SessionBook,
        connections: Sequence[PushConnection],
        gather: GatherWindow,
        headers: HeadersNews,
        mode: str = "auto",
    ) -> None:
        """Prepare; `start` begins to watch. `mode` is as for `rt.log.notify.watch.Watch`."""
        self._mode = mode
        self._book = book
        self._connections = connections
        self._gather, self._headers = gather, headers
        self._loop: EventLoop | None = None
        self._stopping = False
        self._stream = os.path.realpath(book.directory)
        self._watch: Watch | None = None
        self._is_lacking = False  # some change may have been missed
        self._sweep_at_s = 0.0
        self._watched: set[str] = set()
        self._announcing: set[str] = set()  # sessions that are written in this process
        self._due: set[str] = set()  # sessions that grew and were not announced yet
        self._gathered = GatheredFrames()  # the frames by which the sessions in `_due` grew
        self._announced_s = 0.0  # when a change was last announced
        self._complaint = Complaint(_log, f"looking for sessions in {book.directory}")

    def start(self, loop: EventLoop) -> None:
        """Begin to watch the sessions."""
        self._loop = loop
        in_process_notify.listen(self._stream, self._heard)
        loop.rouse(self)

    def stop(self) -> None:
        """Stop watching; nothing is announced any more."""
        self._stopping = True
        in_process_notify.ignore(self._stream, self._heard)
        if self._loop is not None:
            self._loop.call(partial(self._end, self._loop))

    def check_soon(self) -> None:
        """Check soon which sessions exist, because they have changed; only the loop calls this."""
        self._sweep_at_s = 0.0
        if self._loop is not None:
            self._loop.mark(self)

    def forget(self, session: str) -> None:
        """Stop watching a session; only the loop calls this."""
        if self._watch is not None:
            self._watch_no_more(self._watch, session)
        self._announcing.discard(session)
        self._due.discard(session)
        self._gathered.pop(session)

    def _heard(self, name: str, news: News, /) -> None:
        """Keep a session's new frame in memory; let the loop announce that the session grew."""
        if self._stopping or self._loop is None:
            return
        if name in self._due or name in self._announcing or self._book.ships(name):
            self._gathered.add(name, news.frame)  # first, as the loop may take both at any moment
            if name not in self._due:
                self._due.add(name)
                self._loop.rouse(self)

    def ready(self) -> None:
        """Announce sessions that have grown; when it is time, begin a check of all sessions."""
        if self._stopping or self._loop is None:
            return
        try:
            self._take_turn(self._loop)
        except OSError as error:
            self._complaint.say(spoken(error))
            self._begin_again(self._loop)

    def failed(self, error: Exception) -> bool:
        """After an internal error, begin to watch all sessions again in a second; return True."""
        _log.error("internal error while sessions were watched", exc_info=error)
        if self._loop is not None:
            self._begin_again(self._loop)
        return True

    def _take_turn(self, loop: EventLoop) -> None:
        now_s = time.monotonic()
        if now_s >= self._sweep_at_s:
            self._sweep(loop, now_s)
        gap_s = self._announced_s + self._gather.gap_s - now_s if self._due else 0.0
        if gap_s > 0:
            # updates that arrive meanwhile are sent together with these
            loop.deadlines.set(self, min(self._sweep_at_s, now_s + gap_s))
            return
        # The leader comes first: the other nodes wait for its messages, not for these.
        leader = self._gather.leader
        connections = sorted(self._connections, key=lambda each: each.name != leader)
        due = self._due.copy()
        self._due -= due  # before the frames are taken, so that later news is announced next time
        for name in due:
            if self._watch is not None:  # a publisher in this process may have opened or closed it
                self._watch_one(self._watch, name)
            frame, self._announced_s = self._gathered.pop(name), time.monotonic()
            for connection in connections:
                connection.offer(name, frame)
        loop.deadlines.set(self, self._sweep_at_s)

    def _sweep(self, loop: EventLoop, now_s: float) -> None:
        watch = self._watch or self._open(loop)
        has_events = watch.fileno() >= 0
        with suppress(OSError):  # the next sweep tries again
            self._headers.save()
        for name in self._book.names():  # before the connections check, so that nothing is missed
            self._watch_one(watch, name)
        is_urgent, self._is_lacking = self._is_lacking or not has_events, False
        for connection in self._connections:
            connection.check_soon(urgent=is_urgent)
        self._sweep_at_s = now_s + (_SWEEP_S if has_events else _SWEEP_ONLY_S)

    def _open(self, loop: EventLoop) -> Watch:
        # our own notes of what the nodes confirm and refuse are in the sessions' directories
        ignored = (confirmations.FILE_NAME, shipping.FILE_NAME, shipping.DRAFT_NAME)
        watch = self._watch = Watch(self._mode, ignored)
        watch.add(self._book.directory)
        self._watched.clear()
        self._is_lacking = True
        if watch.fileno() >= 0:
            loop.watch(watch.fileno(), _Events(self))
        return watch

    def _begin_again(self, loop: EventLoop) -> None:
        self._end(loop)
        self._sweep_at_s = time.monotonic() + _SWEEP_S
        loop.deadlines.set(self, self._sweep_at_s)

    def _end(self, loop: EventLoop) -> None:
        loop.forget(self)
        watch, self._watch = self._watch, None
        if watch is not None:
            if watch.fileno() >= 0:
                loop.ignore(watch.fileno())
            watch.close()

    def changed(self) -> None:
        """Handle the file system's events."""
        if self._watch is not None:
            changes = self._watch.changes()
            if changes.rescan:
                self._due.clear()
                self._gathered.forget()
                self._is_lacking, self._sweep_at_s = True, 0.0
            else:
                grown = changes.directories - {self._book.directory}
                self._due |= {os.path.basename(each) for each in grown}
                self._due |= self._made(self._watch, changes.made)
        self.ready()

    def _watch_one(self, watch: Watch, name: str) -> None:
        """Watch a session, unless a publisher in this process announces it."""
        if in_process_notify.is_written(NewsPlace(self._stream, name)):
            self._announcing.add(name)
            if name in self._watched:
                self._watch_no_more(watch, name)
        elif name not in self._watched:
            watch.add(self._book.path(name))
            self._watched.add(name)
            self._announcing.discard(name)

    def _watch_no_more(self, watch: Watch, name: str) -> None:
        if name in self._watched:
            watch.remove(self._book.path(name))
            self._watched.discard(name)

    def _made(self, watch: Watch, paths: Iterable[str]) -> set[str]:
        """Watch sessions whose directories were just created; return the names to announce."""
        made = {os.path.split(each) for each in paths}
        new = {name for place, name in made if place == self._book.directory}
        new = {name for name in new if self._book.ships(name)}
        for name in new:
            self._watch_no_more(watch, name)  # another directory may have had this name before
            self._watch_one(watch, name)
        return new


class _Events:
    """The party that the loop calls when the file system has events."""

    is_urgent = False

    def __init__(self, watcher: SessionWatcher) -> None:
        self._watcher = watcher

    def ready(self) -> None:
        """Let the watcher read the events."""
        self._watcher.changed()

    def failed(self, error: Exception) -> bool:
        """Handle an error as the watcher does."""
        return self._watcher.failed(error)
