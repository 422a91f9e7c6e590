"""Departed: the nodes that this one knows to have been removed from its cluster."""

from collections.abc import Callable, Iterable, Sequence


class Departed:
    """Names that the log has listed once, and lists no more; kept across restarts.

    The log forgets its older entries, and the configuration file of a node is never changed, so
    neither says that a name which it does not list, or still does, was removed.
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        save: Callable[[Sequence[str]], None] = lambda _names: None,
    ) -> None:
        """Start with the names that were saved last.

        Args:
            names: of the nodes.
            save: makes the names durable; an `OSError` ends the node.
        """
        self.names = frozenset(names)
        self._save = save

    def follow(self, listed: Iterable[str], now: Iterable[str]) -> None:
        """Take note of a decided configuration; a name that returned in it has not departed.

        Args:
            listed: names that the log has listed.
            now: names that it lists.
        """
        names = self.names.union(listed).difference(now)
        if names != self.names:
            self._save(sorted(names))
            self.names = names
