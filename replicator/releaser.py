"""Releaser: tells publishers which of their own files may go, and archives for those that ended."""

import logging
import os
import threading
from enum import Enum
from typing import Final, Protocol

from replicator.progress import SessionProgress
from rt.errors import RtError
from rt.log.appender import Appender
from rt.log.directory import LogDirectory
from rt.log.disk import OsDisk
from rt.log.lock import take_lock
from rt.log.released import archive_released, finish_released, read_released, write_released
from rt.position import START, Position

_log: Final = logging.getLogger(__name__)
_LOOK_S: Final = 1.0


class Release(Enum):
    """When the rolled files of a publisher's session are archived where it published them."""

    MERGED = "merged"  # when they are merged: then a majority of the nodes has them durably
    ALL = "all"  # when every node has merged them
    NEVER = "never"


class Book(Protocol):
    """Which sessions there are."""

    def names(self) -> list[str]:
        """The sessions there are now."""

    def path(self, session: str) -> str:
        """The directory of a session."""

    def progress(self, session: str) -> SessionProgress:
        """What is known of a session."""


class Releaser:
    """Looks once a second; a live publisher archives its own files, by what it is told."""

    def __init__(self, book: Book, release: Release, nodes: int) -> None:
        """Stand ready.

        Args:
            book: the sessions.
            release: when.
            nodes: how many nodes there are.
        """
        self._book = book
        self._release = release
        self._nodes = nodes
        self._disk = OsDisk()
        self._told: dict[str, Position] = {}
        self._done: dict[str, Position] = {}  # where nobody lives: up to where it was archived
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="release", daemon=True)

    def start(self) -> None:
        """Begin."""
        if self._release is not Release.NEVER:
            self._thread.start()

    def stop(self) -> None:
        """Look a last time, and end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self.look()
        self.look()

    def look(self) -> None:
        """Tell what may go, of every session."""
        try:
            sessions = self._book.names()
        except OSError as error:
            _log.warning("no session is archived: %s", error)
            return
        for session in sessions:
            try:
                self._look_at(session)
            except (RtError, OSError) as error:
                _log.warning("session %s is not archived: %s", session, error)

    def _look_at(self, session: str) -> None:
        path = self._book.path(session)
        released = self._book.progress(session).released(
            self._nodes if self._release is Release.ALL else 1
        )
        told = self._told.get(session)
        if told is None:
            told = read_released(path)
        if released > told:
            write_released(path, released)
        self._told[session] = max(told, released)
        if released > START:
            self._archive(session, path, released)

    def _archive(self, session: str, path: str, released: Position) -> None:
        """Archive for a publisher that has ended; a live one does it itself."""
        if self._done.get(session) == released:
            return
        try:
            lock = take_lock(path, f"session {session!r} has a live writer")
        except ValueError:
            return
        try:
            self._archive_locked(path, released)
            self._done[session] = released
        finally:
            os.close(lock)

    def _archive_locked(self, path: str, released: Position) -> None:
        log = LogDirectory(path, self._disk)
        try:
            log.refresh()
            identity = log.manifest.identity
        finally:
            log.close()
        if identity is None:
            return
        appender = Appender(self._disk, path, identity)
        try:
            finish_released(self._disk, appender)
            archive_released(appender, released)
        finally:
            appender.close()
