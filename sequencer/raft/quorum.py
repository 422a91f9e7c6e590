"""Quorums: which members count, and what a majority of them has reached."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rt.errors import Misuse
from sequencer.raft.consensus import (
    FOUNDER,
    INCARNATION_END,
    MEMBERS_ALLOWED,
    Configuration,
    Seat,
)

# A member's seat holds this plus an incarnation once the copy with that incarnation is suspended:
# that copy never counts again, and no other copy of the member counts yet. Up to version 0.1, the
# seat held 2**62 - 1 whichever copy was suspended; only the largest incarnation gives that sum now.
_SUSPENDED: Final = INCARNATION_END


def suspended(incarnation: int) -> int:
    """Return what a member's seat holds once its copy `incarnation` is suspended."""
    return _SUSPENDED + incarnation


def is_suspended(incarnation: int) -> bool:
    """Whether a seat's incarnation says that no copy of the member's state counts.

    >>> is_suspended(suspended(7)), is_suspended(7)
    (True, False)
    """
    return incarnation >= _SUSPENDED


def checked_members(members: Iterable[str]) -> tuple[str, ...]:
    """Return the members sorted; `Misuse` unless they are 1, 3, 5 or 7 distinct names."""
    names = tuple(sorted(members))
    if len(names) not in MEMBERS_ALLOWED or len(set(names)) != len(names) or "" in names:
        raise Misuse(f"a cluster has 1, 3, 5 or 7 members with distinct names, not {list(names)}")
    return names


def majority_of(count: int) -> int:
    """Return the size of the smallest quorum of `count` members; any two such quorums overlap."""
    return count // 2 + 1


def reached(values: Sequence[int], majority: int) -> int:
    """Return the largest value that `majority` of the values reach; 0 if there are too few values.

    >>> reached([7, 5, 9], 2)
    7
    """
    if len(values) < majority:
        return 0
    return sorted(values, reverse=True)[majority - 1]


# What a learner's seat holds as incarnation, since no copy of a learner's state counts yet.
LEARNING: Final = 2 * INCARNATION_END - 1


class Roster:
    """Roster: the configuration of a cluster, and earlier ones that truncation may restore.

    A configuration takes effect when its entry is appended, before it is committed, and is undone
    if that entry is truncated. A leader makes the next configuration only once this one is
    committed, and changes a single member each time. So every quorum of a configuration shares a
    node with every quorum of the next.

    A node that lost its state returns under the same name with a new incarnation. One entry then
    suspends the old incarnation, and a later entry admits the new one. Meanwhile a majority is as
    large as before.

    Attributes:
        now: the configuration as of the last entry of the log.
        voters: the members that vote, including suspended ones.
        majority: how many voters a quorum needs.
        suspended: each copy that is suspended now, or was in an earlier configuration held here.
            It is a member's name and the value that `suspended` returned for the copy.
    """

    __slots__ = ("_history", "majority", "now", "suspended", "voters")

    def __init__(self, index: int, seats: Configuration) -> None:
        self._history: list[tuple[int, Configuration]] = [(index, dict(seats))]
        self._changed()

    def _changed(self) -> None:
        """Update the attributes derived from the configuration."""
        self.now = self._history[-1][1]
        self.voters = [name for name, seat in self.now.items() if seat.votes]
        self.majority = majority_of(len(self.voters))
        self.suspended = {
            (name, seat.incarnation)
            for _, seats in self._history
            for name, seat in seats.items()
            if is_suspended(seat.incarnation)
        }

    @classmethod
    def founding(cls, members: Mapping[str, str]) -> "Roster":
        """The roster of a new cluster, from its members' addresses."""
        return cls(0, {name: Seat(FOUNDER, True, members[name]) for name in sorted(members)})

    @property
    def changed_at(self) -> int:
        """The index of the entry that made the current configuration."""
        return self._history[-1][0]

    @property
    def before(self) -> Configuration:
        """The previous configuration; if that is forgotten, the present one."""
        return self._history[max(0, len(self._history) - 2)][1]

    def counts(self, name: str, incarnation: int) -> bool:
        """Whether a node votes, and this copy of its state is the one that counts."""
        seat = self.now.get(name)
        return seat is not None and seat.votes and seat.incarnation == incarnation

    def has_counted(self, name: str, incarnation: int) -> bool:
        """Whether a copy counts now, or did in an earlier configuration that is held here."""
        seats = [seats.get(name) for _, seats in self._history]
        return any(seat and seat.votes and seat.incarnation == incarnation for seat in seats)

    def at(self, index: int) -> tuple[tuple[str, Seat], ...]:
        """The configuration as of the entry `index`, for a snapshot."""
        before = [seats for start, seats in self._history if start <= index]
        return tuple(sorted(before[-1].items()))

    def listed(self, index: int) -> frozenset[str]:
        """Return the names in all configurations held here that entries up to `index` made.

        The founding configuration, which a file gives, is left out.
        """
        lists = [seats for start, seats in self._history if 0 < start <= index]
        return frozenset().union(*lists)

    def is_known(self, index: int, name: str, incarnation: int) -> bool:
        """Whether this node knows the cluster's configuration as of the entry `index`.

        A founding copy always does. Any other copy starts with its configuration file, which lists
        it as a founder. It knows better once its log says that it joined later, or that the copy
        before it is suspended.

        Args:
            index: the entry.
            name: this node.
            incarnation: the copy of its state that is running.
        """
        seat = dict(self.at(index)).get(name)
        return incarnation == FOUNDER or seat is None or seat.incarnation != FOUNDER

    def admit(self, index: int, name: str, incarnation: int) -> None:
        """Apply an entry that suspends or admits a copy of a member's state."""
        seat = self.now.get(name)
        if seat is not None:  # None: this log lacks the entry that added the member
            self.change(index, {**self.now, name: replace(seat, incarnation=incarnation)})

    def change(self, index: int, seats: Configuration) -> None:
        """Apply an entry that holds the whole configuration."""
        self._history.append((index, seats))
        self._changed()

    def truncate(self, index: int) -> None:
        """Undo the changes of the entries from `index` on."""
        while self._history[-1][0] >= index and len(self._history) > 1:
            self._history.pop()
            self._changed()

    def compact(self, index: int) -> None:
        """Forget the configurations that were replaced before the entry `index`."""
        while len(self._history) > 1 and self._history[1][0] <= index:
            del self._history[0]
            self._changed()
