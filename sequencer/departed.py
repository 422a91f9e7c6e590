"""Departed: the nodes known to have been removed from the cluster."""

from collections.abc import Callable, Iterable, Sequence

from sequencer.raft.consensus import LastChange


class Departed:
    """Departed: nodes that a decided configuration once listed and no longer does.

    The names are kept across restarts. The log forgets its older entries, and a node's
    configuration file never changes, so neither can show that a node was removed.
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        save: Callable[[Sequence[str]], None] = lambda _names: None,
        *,
        founders: Iterable[str] = (),
    ) -> None:
        """Start with the names that were saved last.

        Args:
            names: the removed nodes.
            save: makes the names durable; an `OSError` ends the node.
            founders: the members at the beginning of this node's log; empty if the node joined
                later, since its configuration file only says who the members were then.
        """
        self.names = frozenset(names)
        self._save = save
        self._listed = set(founders)  # in decided configurations of the log

    def follow(self, change: LastChange) -> None:
        """Record a decided configuration; its nodes have not departed.

        Args:
            change: the log's last change; of index 0 if there was none.
        """
        if not change.index or change.before:
            return
        self._listed |= change.listed | change.now.keys()
        names = (self.names | self._listed) - change.now.keys()
        if names != self.names:
            self._save(sorted(names))
            self.names = names
