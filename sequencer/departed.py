"""Departed: the nodes that this one knows to have been removed from its cluster."""

from collections.abc import Callable, Iterable, Sequence

from sequencer.raft.consensus import LastChange


class Departed:
    """Names that the log has listed once, and lists no more; kept across restarts.

    The log forgets its older entries, and the configuration file of a node is never changed, so
    neither says that a name which it does not list, or still does, was removed.
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
            names: of the nodes.
            save: makes the names durable; an `OSError` ends the node.
            founders: the members with which the log of this node begins; none of a node that
                joined, whose configuration file says only who the members were then.
        """
        self.names = frozenset(names)
        self._save = save
        self._listed = set(founders)  # by decided configurations of the log

    def follow(self, change: LastChange) -> None:
        """Take note of a configuration, once it is decided; a name in it has not departed.

        Args:
            change: of the log; of index 0 before that says anything.
        """
        if not change.index or change.before:
            return
        self._listed |= change.listed | change.now.keys()
        names = (self.names | self._listed) - change.now.keys()
        if names != self.names:
            self._save(sorted(names))
            self.names = names
