"""Mirror: serves a copy of a merged log to others, as a node serves its own."""

import logging
from collections.abc import Callable
from typing import Final, Self

from replicator.admission import ServerLimits
from replicator.feeds import LogFeed, LogFeeds
from replicator.host import Bell, Inbox
from replicator.quotas import NO_QUOTA, Quota
from replicator.server import Server
from replicator.streams import only
from rt.errors import CorruptLog, Refused
from rt.format.manifest import LogIdentity
from rt.log.damaged_files import DamagedFiles
from rt.names import PeerName
from rt.net.tls import Contexts
from rt.position import Position

_log: Final = logging.getLogger(__name__)


class Mirror:
    """The host of a server that only lets subscribers pull (`replicator.host.Host`).

    Its certificate says `mirror`: publishers refuse it, and it can push, vote and operate nowhere.

    Threads: connections call the host's methods; `grown` is called by the thread that fills the
    copy. `_feeds` has rules of its own; `suspect` and `is_whole` are set before `start`, and the
    other fields never change.
    """

    is_first = False  # nothing is merged here

    def __init__(
        self,
        address: tuple[str, int],
        contexts: Contexts,
        stream: str,
        directory: str,
        limits: ServerLimits | None = None,
    ) -> None:
        """Listen; nothing is served before `start`.

        Args:
            address: host and port to listen on; port 0 takes a free one, see `address`.
            contexts: of `rt.net.tls.server_context`, with a mirror's certificate.
            stream: the one that is served.
            directory: of the copy, which another object fills.
            limits: how much strangers, and the holders of one certificate, may take.

        Raises:
            OSError: the address is not available.
        """
        self.stream = stream
        self.suspect: Callable[[CorruptLog], None] = lambda _damage: None  # has it repaired
        self.is_whole: Callable[[], bool] = lambda: True  # whether the copy has all its source has
        self._feeds = LogFeeds(directory, is_whole=self._has_all)
        self._server = Server(address, contexts, only(self), limits)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._server.address

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()

    def stop(self) -> None:
        """End all connections."""
        self._server.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def grown(self, end: Position) -> None:
        """Serve up to this position, and let all connections know."""
        self._feeds.grown(end)

    def is_member(self, name: str) -> bool:  # noqa: ARG002 - the host's
        """Return False: a mirror knows no cluster, so no node may have anything of it."""
        return False

    def quota(self, publisher: PeerName) -> Quota:  # noqa: ARG002 - the host's
        """Return no limit: nothing is pushed here."""
        return NO_QUOTA

    def claim(self, identity: LogIdentity, peer: str, wake: Bell, *, relays: bool) -> Inbox:  # noqa: ARG002 - the host's
        """Refuse: nothing is pushed to a copy."""
        raise Refused("role", "this is a mirror, which takes no sessions; push to a node")

    def settle(self) -> None:
        """Do nothing: nothing is pushed here."""

    def feed(self, wake: Bell, *, relays: bool) -> LogFeed:
        """Give a pulling connection the copy."""
        return self._feeds.open(wake, relays=relays)

    def _has_all(self) -> bool:
        return self.is_whole()

    def damaged(self, error: CorruptLog, growing: bool) -> None:
        """Log it, and have a rolled file fetched from the nodes again."""
        _log.error("%s; nothing after it is served from here; run `rt verify`", error)
        if not growing:
            self.suspect(error)

    @property
    def barred(self) -> DamagedFiles:
        """The files that are not served; the scrubber of the copy adds to them."""
        return self._feeds.damaged
