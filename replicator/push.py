"""PushClient: ships the sessions of a stream to each of its nodes."""

import os
import time
from collections.abc import Sequence
from typing import Final

from replicator.gather import GatherWindow
from replicator.progress import SessionProgress, SessionStatus
from replicator.push_connection import Address, PushConnection
from replicator.releaser import Release, Releaser
from replicator.watcher import SessionWatcher
from rt.errors import Misuse
from rt.format.manifest import FILE_NAME
from rt.log.watch import directories_in
from rt.names import (
    NameGlob,
    glob_matches,
    parse_glob,
    parse_session,
    session_directory,
    stream_directory,
)
from rt.net.tls import Contexts

_DRAIN_POLL_S: Final = 0.01
_STOP_S: Final = 2.0


class SessionBook:
    """The sessions of a stream that are to be shipped, as the directory shows them."""

    def __init__(self, root: str, stream: str, globs: Sequence[NameGlob]) -> None:
        self.directory = stream_directory(root, stream)
        self.stream = stream
        self._root = root
        self._globs = globs
        self._progress: dict[str, SessionProgress] = {}

    def names(self) -> list[str]:
        """Return the sessions there are now."""
        return [name for name in directories_in(self.directory) if self._is_ours(name)]

    def path(self, session: str) -> str:
        """Return the directory of a session."""
        return session_directory(self._root, self.stream, session)

    def has_log(self, session: str) -> bool:
        """Whether there is anything to ship; who died while it made a session left a directory."""
        try:
            return os.stat(os.path.join(self.path(session), FILE_NAME)).st_size > 0
        except FileNotFoundError:
            return False

    def progress(self, session: str) -> SessionProgress:
        """Return what is known of a session; the same for all nodes."""
        known = self._progress.get(session)
        if known is None:
            known = self._progress.setdefault(session, SessionProgress(self.path(session)))
        return known

    def _is_ours(self, name: str) -> bool:
        try:
            session = parse_session(name)
        except Misuse:
            return False  # `in`, `out`, `state`, or somebody else's
        return any(glob_matches(glob, session) for glob in self._globs)


class PushClient:
    """Ships sessions to nodes, a connection each, until stopped; reconnects by itself.

    What the nodes confirm goes into a file in each session's directory, where its publisher reads
    it. So this may run in the publisher's process or in one of its own.
    """

    def __init__(
        self,
        root: str,
        stream: str,
        nodes: Sequence[Address],
        contexts: Contexts,
        sessions: Sequence[str] = ("*",),
        *,
        release: Release = Release.MERGED,
    ) -> None:
        """Stand ready; nothing is dialled before `start`.

        Args:
            root: directory under which streams live; it need not be there yet.
            stream: name of the stream.
            nodes: host and port of each node.
            contexts: of `rt.net.tls.client_context`.
            sessions: names or globs of the sessions to ship; those that appear later too.
            release: when the sessions' own rolled files may be archived.

        Raises:
            Misuse: a name is none, or there is no node.
        """
        if not nodes:
            raise Misuse("nothing can be pushed: name at least one node, such as localhost:7700")
        self._book = SessionBook(root, stream, [parse_glob(each) for each in sessions])
        nodes = list(dict.fromkeys(nodes))
        pace = GatherWindow(len(nodes))
        self._pushers = [PushConnection(node, contexts, self._book, pace) for node in nodes]
        self._lookout = SessionWatcher(self._book, self._pushers, pace)
        self._releaser = Releaser(self._book, release, len(self._pushers))

    def start(self) -> None:
        """Begin to ship."""
        for pusher in self._pushers:
            pusher.start()
        self._lookout.start()
        self._releaser.start()

    def wake(self, session: str | None = None) -> None:
        """Say that a session was written to, or any; saves a publisher in this process a wait."""
        for pusher in self._pushers:
            if session is None:
                pusher.look()
            else:
                pusher.offer(session)

    def stop(self, drain_s: float = 0.0) -> bool:
        """End all connections.

        Args:
            drain_s: how long to go on until a majority of the nodes have synced what there is.

        Returns:
            Whether they have.
        """
        deadline = time.monotonic() + drain_s
        while not (drained := self.drained()) and time.monotonic() < deadline:
            time.sleep(_DRAIN_POLL_S)
        for pusher in self._pushers:
            pusher.stop()
        self._lookout.stop()
        deadline = time.monotonic() + _STOP_S
        for pusher in self._pushers:
            pusher.join(max(0.0, deadline - time.monotonic()))
        self._releaser.stop()
        return drained

    def drained(self, *, merged: bool = False) -> bool:
        """Whether a majority of the nodes have synced, or merged, all that is in the sessions."""
        majority = len(self._pushers) // 2 + 1
        return all(
            sum(pusher.has_settled(name, merged=merged) for pusher in self._pushers) >= majority
            for name in self._book.names()
            if self._book.has_log(name)
        )

    def status(self) -> list[SessionStatus]:
        """Return how each session stands with each node."""
        names = sorted(self._book.names())
        return [pusher.status(name) for name in names for pusher in self._pushers]
