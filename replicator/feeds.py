"""LogFeeds: the merged log as the pulling connections see it, and how they learn of more."""

import threading

from replicator.host import Bell
from rt.position import START, Position


class LogFeed:
    """The merged log as one connection sees it (`replicator.host.Feed`)."""

    def __init__(self, feeds: "LogFeeds", wake: Bell) -> None:
        self.directory = feeds.directory
        self.wake = wake
        self._feeds = feeds

    def end(self) -> Position:
        """Serve no byte past this: it may yet be cut and written again after a crash."""
        return self._feeds.end

    def release(self) -> None:
        """Forget the connection, which has ended."""
        self._feeds.forget(self)


class LogFeeds:
    """The feeds of all pulling connections of a node or mirror.

    Threads:
        `open` and `forget` are called by connections and replace `_feeds` under `_lock`; `grown` is
        called by the one thread that appends, and reads whichever set is there, without the lock.
        `end` is written by that thread alone, and only grows.
    """

    def __init__(self, directory: str) -> None:
        """Serve the merged log in `directory`."""
        self.directory = directory
        self.end: Position = START
        self._feeds: frozenset[LogFeed] = frozenset()
        self._lock = threading.Lock()

    def open(self, wake: Bell) -> LogFeed:
        """Return the feed of a new connection."""
        feed = LogFeed(self, wake)
        with self._lock:
            self._feeds |= {feed}
        return feed

    def forget(self, feed: LogFeed) -> None:
        """Drop a connection that has ended."""
        with self._lock:
            self._feeds -= {feed}

    def grown(self, end: Position) -> None:
        """Let all connections know at once that there is more, or that something was rolled."""
        self.end = end
        for feed in self._feeds:
            feed.wake.set()
