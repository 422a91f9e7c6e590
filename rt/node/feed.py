"""NodeFeeds: the merged log as the pulling connections see it, and how they learn of more."""

import threading

from replicator.host import Bell
from rt.position import START, Position


class NodeFeed:
    """One connection's (`replicator.host.Feed`)."""

    def __init__(self, feeds: "NodeFeeds", wake: Bell) -> None:
        self.directory = feeds.directory
        self.wake = wake
        self._feeds = feeds

    def end(self) -> Position:
        """Serve no byte behind this: it may yet be cut and written again after a crash."""
        return self._feeds.end

    def release(self) -> None:
        """The connection has ended."""
        self._feeds.forget(self)


class NodeFeeds:
    """All of a node's."""

    def __init__(self, directory: str) -> None:
        """Serve the merged log in `directory`."""
        self.directory = directory
        self.end: Position = START
        self._feeds: frozenset[NodeFeed] = frozenset()
        self._lock = threading.Lock()

    def open(self, wake: Bell) -> NodeFeed:
        """Return what a new connection is fed from."""
        feed = NodeFeed(self, wake)
        with self._lock:
            self._feeds |= {feed}
        return feed

    def forget(self, feed: NodeFeed) -> None:
        """A connection has ended."""
        with self._lock:
            self._feeds -= {feed}

    def grown(self, end: Position) -> None:
        """Let all connections know at once that there is more, or that something was rolled."""
        self.end = end
        for feed in self._feeds:
            feed.wake.set()
