"""Departed: which nodes are known to have been removed, and whether this node is one of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from sequencer.journal.starts import Listed
from sequencer.raft.consensus import Configuration, LastChange
from sequencer.raft.engine import Raft


class RemovalVerdicts:
    """RemovalVerdicts: the members that refuse this node because it was removed.

    If a node was away while it was removed, its own log still lists it, and no other node accepts
    its connections. The node learns of the removal only from the reason that the others give when
    they refuse it. The node believes this reason once a majority of the voters in its log, proven
    by their certificates, have given it. So a single hostile member cannot stop a healthy node:
    with three voters or more, it takes two. Honest members do not stop a healthy node by mistake
    either: each gives the reason only after it has seen a decided configuration without the node,
    and a member that accepts the node again withdraws its verdict.

    Two cases are not detected: the node was removed after most of the voters in its log had been
    replaced, or the node does not vote by its own log (it is a learner, or has yet to be added).
    """

    def __init__(self) -> None:
        self._members: set[str] = set()

    def convict(self, verdicts: Mapping[str, bool], engine: Raft, name: str) -> bool:
        """Record verdicts; return whether this node has to believe that it was removed.

        Verdicts are ignored while this node does not vote by its own log: if it was a member in the
        past and is about to be added again, the others still call it removed.

        Args:
            verdicts: for each member dialled since the last call, whether it refuses this node.
            engine: this node's engine, with its log.
            name: this node's name.
        """
        if not engine.core.is_voter:
            return False
        for member, is_removed in verdicts.items():
            self.record(member, is_removed=is_removed)
        return any(verdicts.values()) and self.are_decisive(engine.last_change, name)

    def record(self, member: str, *, is_removed: bool) -> None:
        """Record that a member refused this node as removed, or accepted it."""
        if is_removed:
            self._members.add(member)
        else:
            self._members.discard(member)

    def are_decisive(self, change: LastChange, name: str) -> bool:
        """Whether this node votes, and a majority of the voters refuse it as removed.

        While a change of the members is undecided, both configurations, before and after the
        change, must list this node, and a majority of the voters of each must refuse it.

        >>> from sequencer.raft.consensus import FOUNDER, Seat
        >>> seats = {each: Seat(FOUNDER) for each in ("n1", "n2", "n3")}
        >>> verdicts, change = RemovalVerdicts(), LastChange(0, 0, seats, {})
        >>> for member in ("n1", "n2"):
        ...     verdicts.record(member, is_removed=True)
        ...     verdicts.are_decisive(change, "n3")
        False
        True

        Args:
            change: the last change of the members in this node's log.
            name: this node's name.
        """
        lists = [each for each in (change.now, change.before) if each]
        votes = any(name in each and each[name].votes for each in lists)
        return votes and all(self._is_majority(each, name) for each in lists)

    def _is_majority(self, seats: Configuration, name: str) -> bool:
        """Whether the node is listed, and the others refusing it are a majority of all voters."""
        voters = {each for each, seat in seats.items() if seat.votes}
        return name in seats and len(self._members & (voters - {name})) > len(voters) // 2


class Departed:
    """Departed: nodes that an earlier configuration listed, but the present one does not list.

    These names and those in the last decided configuration are kept across restarts, because
    nothing else shows that a node was removed: the log forgets its older entries, a snapshot
    replaces any number of entries, and a node's configuration file never changes.
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        save: Callable[[Sequence[str], Listed], None] = lambda _names, _members: None,
        *,
        founders: Iterable[str] = (),
        members: Listed = Listed(),  # noqa: B008 - a constant
    ) -> None:
        """Start with what was saved last.

        Args:
            names: the removed nodes.
            save: makes the removed nodes and the members durable; an `OSError` ends the node.
            founders: the members at the beginning of this node's log; empty if the node does not
                know them, for example because it joined later.
            members: the members in the last decided configuration. They are used once this node's
                log has reached that configuration's entry again: a restart may have lost the entry,
                if it was not durable yet.
        """
        self.names = frozenset(names)
        self._save, self._saved = save, members
        self._listed = set(founders)  # names in any decided configuration

    def follow(self, change: LastChange) -> None:
        """Record the members of a decided configuration; earlier members not in it have departed.

        Args:
            change: the log's last change. It is ignored while it is undecided, or if its index is
                0, which means that the log has no change.
        """
        if not change.index or change.before:
            return
        self._listed |= change.listed | change.now.keys()
        members = self._saved
        if change.index >= members.entry:
            self._listed.update(members.names)
            members = Listed(change.index, sorted(change.now))
        names = (self.names | self._listed) - change.now.keys()
        if names != self.names or members.names != self._saved.names:
            self._save(sorted(names), members)
            self.names, self._saved = names, members
