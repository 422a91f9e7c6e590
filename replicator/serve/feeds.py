"""LogFeeds: serves a merged log to pulling connections, and notifies them when it grows."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from replicator.host import Bell
from rt.errors import Refused
from rt.log.files.damaged_files import DamagedFiles
from rt.log.write.recent_frames import Appended, RecentFrames
from rt.position import START, Position

# The merging thread sends to so many peers, in 0.1 ms each, before the publisher gets its Ack.
_AT_ONCE: Final = 4


class LogFeed:
    """LogFeed: the merged log as one connection sees it (`replicator.host.Feed`)."""

    def __init__(self, feeds: "LogFeeds", wake: Bell, *, relays: bool) -> None:
        self.directory = feeds.directory
        self.damaged = feeds.damaged
        self.wake = wake
        self._feeds = feeds
        self._relays = relays

    def end(self) -> Position:
        """Return the end up to which the log is served; a crash may still change later bytes.

        Raises:
            Refused: this node no longer serves anything.
        """
        feeds = self._feeds
        if feeds.refusal is not None or feeds.moved is not None:
            feeds.demand_open(relays=self._relays)
        return feeds.end

    def recent(self, first: Position, end: Position) -> Appended | None:
        """Return frames from `first` on, up to `end` at most, if they are in memory."""
        recent = self._feeds.recent()
        return None if recent is None else recent.between(first, end)

    def is_whole(self) -> bool:
        """Whether a copy up to `end` has all that was merged; False while this node lags.

        For a connection of another node, True even while this node lags. The other node must not
        wait for this one, since this one may be waiting for bytes from the other.
        """
        return self._relays or self._feeds.is_whole()

    def release(self) -> None:
        """Forget the connection, which has ended."""
        self._feeds.forget(self)


class LogFeeds:
    """LogFeeds: the feeds of all pulling connections of a node or mirror.

    Threads:
        Connections call `open` and `forget`, which change one entry of `_feeds`. The one thread
        that appends calls `grown`, `begin`, `go_on`, `turn_away` and `refuse`, which copy `_feeds`.
        Only that thread writes `end`, `_left`, `moved` and `refusal`. `end` grows, unless a file at
        the log's end was set aside. `damaged` has rules of its own; the functions given at the
        start are never replaced.
    """

    def __init__(
        self,
        directory: str,
        closed: Callable[[], Refused | None] = lambda: None,
        is_whole: Callable[[], bool] = lambda: True,
        recent: Callable[[], RecentFrames | None] = lambda: None,
    ) -> None:
        """Prepare to serve the merged log in a directory; any thread may call the functions given.

        `closed` returns why new connections are refused now, or None. `is_whole` returns whether
        the log has all that was merged. `recent` returns the frames merged last, if they are in
        memory.
        """
        self.directory = directory
        self.is_whole = is_whole
        self.recent = recent
        self._closed = closed
        self.moved: Refused | None = None  # why all but nodes are turned away
        self.damaged = DamagedFiles()
        self.end: Position = START
        self.refusal: Refused | None = None
        self._feeds: dict[LogFeed, None] = {}
        self._left: Iterable[LogFeed] = ()  # feeds not yet notified of the growth

    @property
    def has_readers(self) -> bool:
        """Whether any connection pulls the log now."""
        return bool(self._feeds)

    def open(self, wake: Bell, *, relays: bool = False) -> LogFeed:
        """Return the feed of a new connection.

        Args:
            wake: woken when there may be something to send.
            relays: whether the peer is another node.

        Raises:
            Refused: the log is not served now, or will never be served again. Another node is
                refused only in the second case.
        """
        self.demand_open(relays=relays)
        if not relays and (why := self._closed()) is not None:
            raise why
        feed = LogFeed(self, wake, relays=relays)
        self._feeds[feed] = None
        return feed

    def forget(self, feed: LogFeed) -> None:
        """Drop a connection that has ended."""
        self._feeds.pop(feed, None)

    def demand_open(self, *, relays: bool) -> None:
        """Raise `Refused` if the log is not served to a peer; `relays` is True for a node."""
        if self.refusal is not None:
            raise self.refusal
        if self.moved is not None and not relays:
            raise self.moved

    def turn_away(self, why: Refused | None) -> None:
        """Refuse all peers except nodes, for the reason `why`; None serves all peers again."""
        self.moved, self._left = why, self._feeds.copy()
        self.go_on()

    def refuse(self, why: Refused) -> None:
        """Refuse all peers, nodes too, from now on."""
        self.refusal, self._left = why, self._feeds.copy()
        self.go_on()

    def grown(self, end: Position) -> None:
        """Notify all connections that the log has grown, or that a file was rolled."""
        self.begin(end)
        self.go_on()

    def begin(self, end: Position) -> None:
        """Notify the first few connections that the log has grown; call `go_on` soon after."""
        if end < self.end:  # a file at the end was set aside, and pullers may have it open
            self.damaged.reopen()
        self.end = end
        self._left = iter(self._feeds.copy())
        for feed in islice(self._left, _AT_ONCE):
            feed.wake.set()

    def go_on(self) -> None:
        """Notify the connections that `begin` has not notified."""
        left, self._left = self._left, ()
        for feed in left:
            feed.wake.set()
