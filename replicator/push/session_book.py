"""SessionBook: the sessions of a stream that a publisher's machine ships."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final

from replicator.push.progress import Release, SessionProgress
from replicator.source.change_detector import LogReplaced
from replicator.wire.messages import PASSING, Ack
from rt.errors import NO_HEADERS, Misuse, Refused
from rt.format.manifest import FILE_NAME
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.notify.subdirectories import Subdirectories
from rt.names import NameGlob, glob_matches, parse_session, session_directory, stream_directory
from rt.position import Position, file_position

_log: Final = logging.getLogger(__name__)
_BUSY_RETRY_S: Final = 0.5  # the node may still hold the connection that we have lost
REFUSED_RETRY_S: Final = 30.0
_SOON: Final = frozenset({"busy"}) | PASSING
_HEADERS_RETRY_S: Final = 5.0  # updated nodes agree within this time to allow headers


class SessionBook:
    """The sessions of a stream that are shipped: those found in its directory, or chosen ones.

    Threads: any thread may call any method, except `choose` and `leave`, which the loop calls;
    `_progress` grows by atomic `setdefault`, `_chosen` is replaced as a whole, and each entry of
    `_holders` is replaced by one thread.
    """

    look_s: float | None = None  # the watcher says when to look

    def __init__(
        self,
        root: str,
        stream: str,
        globs: Sequence[NameGlob] | None,
        nodes: int = 1,
        release: Release = Release.MERGED,
        *,
        keep_s: float = 0.0,
        standby: Callable[[], Position] | None = None,
        refused_retry_s: float = REFUSED_RETRY_S,
    ) -> None:
        """Begin an empty book; arguments as for `PushClient`, but `nodes` is the number of nodes.

        Without `globs`, only chosen sessions are shipped.
        """
        self.directory = stream_directory(root, stream)
        self.stream = stream
        self._root = root
        self._globs = None if globs is None else tuple(globs)
        self._chosen: Mapping[str, Callable[[], None]] = {}  # with what to call on confirmations
        self._found = Subdirectories(self.directory, self.ships)
        self._nodes = nodes
        self._followed: frozenset[str] | None = None  # nodes whose confirmations count; None: all
        self._release, self._keep_s, self._standby = release, keep_s, standby
        self._refused_retry_s = refused_retry_s
        self._progress: dict[str, SessionProgress] = {}
        self._holders: dict[str, str] = {}  # by node, the name in the last certificate there
        self._has_ended = False  # whether a log of the nodes is known to have ended
        self._serial: int | None = None  # how many logs had ended when a connection last began

    def follow(self, nodes: Sequence[str]) -> None:
        """Ship to these nodes (`host:port`) from now on; only the loop calls this."""
        self._nodes, self._followed = len(nodes), frozenset(nodes)
        for each in self._progress.copy().values():
            each.follow(nodes, self._release)
        for node in self._holders.keys() - set(nodes):
            del self._holders[node]

    def begun(self, serial: int) -> None:
        """Record a new connection; forget confirmations if a log has ended since the last one.

        Another cluster continues the ended log, and its nodes confirm everything again.

        Args:
            serial: how many logs were known to have ended when this connection began.
        """
        if serial > (self._serial or 0):
            self._has_ended = True
            for each in self._progress.copy().values():
                each.begin_epoch()
        self._serial = serial if self._serial is None else max(serial, self._serial)

    def is_wanted(self) -> bool:
        """Whether to keep connections, so that a new session's first message is sent immediately.

        False only if sessions are chosen one by one, and none is chosen now.
        """
        return self._globs is not None or bool(self._chosen)

    def names(self) -> Sequence[str]:
        """Return the sessions to ship now."""
        return self._found.names() if self._globs is not None else tuple(self._chosen)

    def ships(self, name: str) -> bool:
        """Whether this is the name of a session to ship."""
        return name in self._chosen if self._globs is None else _is_shipped(name, self._globs)

    def choose(self, session: str, heard: Callable[[], None]) -> None:
        """Begin to ship a session; call `heard` whenever new confirmations of it were saved."""
        self._chosen = {**self._chosen, session: heard}

    def is_chosen(self, session: str, heard: Callable[[], None]) -> bool:
        """Whether a session is shipped for the publisher that gave `heard`."""
        return self._chosen.get(session) == heard

    def leave(self, session: str) -> None:
        """Stop shipping this session."""
        self._chosen = {each: heard for each, heard in self._chosen.items() if each != session}

    def forget(self, session: str) -> None:
        """Forget the progress of a session that was left; its confirmations stay on disk."""
        self.rest(session)
        self._progress.pop(session, None)

    def path(self, session: str) -> str:
        """Return the directory of a session."""
        return session_directory(self._root, self.stream, session)

    def open(self, session: str) -> tuple[LogDirectory, Callable[[], Position] | None] | None:
        """Open a session's log for sending.

        Returns:
            A pair: the log, and None, which means that all of the log may be sent. Instead of the
            pair, None if the session must not be shipped.
        """
        if not self.ships(session):
            return None
        return LogDirectory(self.path(session)), None

    def has_log(self, session: str) -> bool:
        """Whether a session has a log to ship; a crash may leave a directory without one."""
        try:
            return os.stat(os.path.join(self.path(session), FILE_NAME)).st_size > 0
        except FileNotFoundError:
            return False

    def bytes_after(self, session: str, position: Position) -> int:
        """Return how many bytes a session's last file has after a position.

        If the position is in an earlier file, this is the size of the last file. This reads the
        directory, since the log of a session that no connection ships is not open.
        """
        path = self.path(session)
        files = (file_position(name) for name in OsDisk().names(path))
        last = max((each for each in files if each is not None), default=None)
        if last is None or last < position.file:
            return 0
        with suppress(FileNotFoundError):  # it was archived meanwhile
            size = os.stat(os.path.join(path, last.file_name)).st_size
            return max(0, size - position.offset) if last == position.file else size
        return 0

    def answered(self, node: str, holder: str) -> None:
        """Record the name in the certificate of the node at an address.

        If several addresses lead to one name, they have one vote together; log a warning.
        """
        before, self._holders[node] = self._holders.get(node, holder), holder
        if before != holder:
            for each in self._progress.copy().values():
                each.replaced(node)
        others = [each for each, who in self._holders.copy().items() if who == holder]
        if len(others) > 1:
            words = "%s is one node, and counts as one: name each node once"
            _log.warning(words, " and ".join(sorted(others)))

    def holder(self, node: str) -> str:
        """Return the name in a node's certificate, or its address if it has not answered."""
        return self._holders.get(node, node)

    def acked(self, session: str, node: str, ack: Ack, log: str) -> bool:
        """Record a node's acknowledgement of a log; return whether it says anything new."""
        if self._followed is not None and node not in self._followed:
            return False  # the node was removed meanwhile
        return self.progress(session).record(node, ack, log, self.holder(node))

    def save(self, session: str, *, whole: bool) -> None:
        """Save a session's confirmations for its publisher, unless they have not changed.

        Raises:
            OSError: they could not be saved.
        """
        self.progress(session).save(whole=whole)
        if not whole and (heard := self._chosen.get(session)) is not None:
            heard()

    def rest(self, session: str) -> None:
        """Close the files of an idle session."""
        known = self._progress.get(session)
        if known is not None:
            known.rest()

    def refused(self, session: str, why: Refused) -> float:
        """Return after how many seconds to offer a refused session again.

        If the session's log was replaced, this forgets the confirmations of the old one.
        """
        if isinstance(why, LogReplaced):
            self.progress(session).forget()
        if why.code == NO_HEADERS:
            return _HEADERS_RETRY_S
        return _BUSY_RETRY_S if why.code in _SOON else self._refused_retry_s

    def progress(self, session: str) -> SessionProgress:
        """Return a session's progress, which is shared by all nodes."""
        known = self._progress.get(session)
        if known is None:
            made = SessionProgress(
                self.path(session), self._nodes, self._release, keep_s=self._keep_s,
                standby=self._standby,
            )  # fmt: skip
            if self._has_ended:
                made.begin_epoch()
            known = self._progress.setdefault(session, made)
        return known


@lru_cache(1 << 16)
def _is_shipped(name: str, globs: tuple[NameGlob, ...]) -> bool:
    try:
        session = parse_session(name)
    except Misuse:
        return False  # `in`, `out`, `state`, or a directory of another program
    return any(glob_matches(glob, session) for glob in globs)
