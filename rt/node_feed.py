"""NodeFeed: the merged log as a pulling connection sees it."""

from collections.abc import Callable

from replicator.host import Bell
from rt.position import Position


class NodeFeed:
    """One connection's (`replicator.host.Feed`)."""

    def __init__(
        self,
        directory: str,
        wake: Bell,
        end: Callable[[], Position],
        forget: Callable[["NodeFeed"], None],
    ) -> None:
        self.directory = directory
        self.wake = wake
        self._end = end
        self._forget = forget

    def end(self) -> Position:
        """Serve no byte behind this: it may yet be cut and written again after a crash."""
        return self._end()

    def release(self) -> None:
        """The connection has ended."""
        self._forget(self)
