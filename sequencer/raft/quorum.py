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

# A seat with this plus an incarnation: that copy is lost, and no other counts yet. Up to version
# 0.1 every suspension was 2**62 - 1, which no drawn incarnation gives.
_SUSPENDED: Final = INCARNATION_END


def suspended(incarnation: int) -> int:
    """Return the number in a member's seat that marks its copy `incarnation` as suspended."""
    return _SUSPENDED + incarnation


def is_suspended(incarnation: int) -> bool:
    """Whether a seat's incarnation says that no copy of the member counts.

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
    """The smallest quorum of `count` members: any two of that size share a member."""
    return count // 2 + 1


def reached(values: Sequence[int], majority: int) -> int:
    """The largest value that at least `majority` of the values reach; 0 if there are too few.

    >>> reached([7, 5, 9], 2)
    7
    """
    if len(values) < majority:
        return 0
    return sorted(values, reverse=True)[majority - 1]


# The incarnation of a learner, of which no copy counts yet; never drawn.
LEARNING: Final = 2 * INCARNATION_END - 1


class Roster:
    """Roster: the configuration of a cluster, and earlier ones that truncation may restore.

    A configuration takes effect when its entry is appended, committed or not, and ends when that
    entry is truncated. Each differs from the one before it by a single member, and the next one is
    made only after it is committed, so a quorum of one meets every quorum of the other.

    A node that lost its state returns under its name with a new incarnation; the log then suspends
    the old one and admits the new one, one entry at a time. The size of a majority does not change
    while a member is suspended.

    Attributes:
        now: the configuration as of the last entry of the log.
        voters: the members that vote, including suspended ones.
        majority: how many voters a quorum needs.
        suspended: name and seat number of each copy that is, or was, suspended.
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
        """The previous configuration; the present one if the previous one is forgotten."""
        return self._history[max(0, len(self._history) - 2)][1]

    def counts(self, name: str, incarnation: int) -> bool:
        """Whether this copy of a node's state is a voter now."""
        seat = self.now.get(name)
        return seat is not None and seat.votes and seat.incarnation == incarnation

    def has_counted(self, name: str, incarnation: int) -> bool:
        """Whether a copy counts, or has counted in a configuration that this log still has."""
        seats = [seats.get(name) for _, seats in self._history]
        return any(seat and seat.votes and seat.incarnation == incarnation for seat in seats)

    def at(self, index: int) -> tuple[tuple[str, Seat], ...]:
        """The configuration as of the entry `index`, for a snapshot."""
        before = [seats for start, seats in self._history if start <= index]
        return tuple(sorted(before[-1].items()))

    def listed(self, index: int) -> frozenset[str]:
        """The names in configurations made by entries up to `index`, not those from a file."""
        lists = [seats for start, seats in self._history if 0 < start <= index]
        return frozenset().union(*lists)

    def is_known(self, index: int, name: str, incarnation: int) -> bool:
        """Whether this node's log, not only its configuration file, shows that a copy is a member.

        A copy that did not found the cluster starts with that file, which lists it as a founder;
        its log says later that it joined, or that the copy before it is suspended.
        """
        seat = dict(self.at(index)).get(name)
        return incarnation == FOUNDER or seat is None or seat.incarnation != FOUNDER

    def admit(self, index: int, name: str, incarnation: int) -> None:
        """Apply an entry that suspends or admits a copy of a member's state."""
        seat = self.now.get(name)
        if seat is not None:  # None: the entry's configuration is not in this log
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
