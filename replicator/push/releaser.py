"""Releaser: archives the rolled files of sessions whose publishers have ended."""

import logging
import os
import time
from contextlib import closing
from typing import Final

from replicator.push.progress import Release
from replicator.push.session_book import SessionBook
from rt.errors import RtError
from rt.log.files.archived import finish_archiving, released_files
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.files.lock import take_lock
from rt.log.write.appender import Appender
from rt.log.write.dropping import finish_dropping
from rt.position import START, Position

_log: Final = logging.getLogger(__name__)


class Releaser:
    """Archives files that sessions no longer need, where no running publisher does so.

    A running publisher archives its files itself, as far as its session's `confirmed` file allows.

    Threads: one thread at a time calls a method for a session.
    """

    def __init__(self, book: SessionBook, release: Release) -> None:
        """Archive files of the book's sessions; `release` says when a file may be archived."""
        self._book = book
        self._release = release
        self._disk = OsDisk()
        self._done: dict[str, Position] = {}  # by session, the released end at the last archiving
        self._seen: dict[str, Position] = {}  # by session, the released end at the last look

    def look_at(self, session: str, *, last: bool = False) -> None:
        """Archive the session's released files; an error is logged.

        If the released end has moved within one file since the last look, nothing is done. That
        file is probably not released to its end yet; if it is, the next look archives it. With
        `last`, no look follows, so the files are archived now.
        """
        if self._release is Release.NEVER:
            return
        if last:
            self._seen.pop(session, None)
        try:
            self._look_at(session)
        except (RtError, OSError) as error:
            _log.warning("session %s is not archived: %s", session, error)

    def forget(self, session: str) -> None:
        """Forget a session that is no longer shipped."""
        self._done.pop(session, None)
        self._seen.pop(session, None)

    def _look_at(self, session: str) -> None:
        released = self._book.progress(session).released
        if released == START or self._done.get(session) == released:
            return
        before = self._seen.get(session, START)
        self._seen[session] = released
        if before and before != released and before.file == released.file:
            return  # probably in the middle of a file; if not, the next look archives it
        path = self._book.path(session)
        try:
            lock = take_lock(path, f"session {session!r} has a live writer")
        except ValueError:
            return
        try:
            self._archive(path, released)
            self._done[session] = released
        finally:
            os.close(lock)

    def _archive(self, path: str, released: Position) -> None:
        with closing(LogDirectory(path, self._disk)) as log:
            log.refresh()
            identity = log.manifest.identity
        if identity is None:
            return
        with closing(Appender(self._disk, path, identity)) as appender:
            finish_archiving(self._disk, path, appender.manifest)
            finish_dropping(appender)
            if gone := released_files(appender.manifest, released, time.time_ns()):
                appender.archive_all(gone)
