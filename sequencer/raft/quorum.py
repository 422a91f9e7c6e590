"""Quorums: which copies of which members count, and what a majority of them has reached."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rt.errors import Misuse
from sequencer.raft.consensus import FOUNDER, INCARNATION_END, MEMBERS_ALLOWED

# In a roster, this plus an incarnation: that copy is lost, and no other counts yet. Up to version
# 0.1 every suspension was 2**62 - 1, which is that of an incarnation that is never drawn.
_SUSPENDED: Final = INCARNATION_END

Incarnations = Mapping[str, int]


def suspended(incarnation: int) -> int:
    """What a roster holds for a member while its copy `incarnation` is suspended."""
    return _SUSPENDED + incarnation


def is_suspended(incarnation: int) -> bool:
    """Whether no copy of a member counts, by what the roster holds for it.

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


class Roster:
    """The configuration: the incarnation of each member, that is, which copy of its state counts.

    The names are fixed for the life of a cluster. A node that lost its state returns under its
    name with a new incarnation; the log then suspends the old one and admits the new one, one
    entry at a time. The size of a majority does not change while a member is suspended, so any two
    quorums share a member before, during and after.

    A configuration takes effect when its entry is appended, committed or not, and ends when that
    entry is truncated.
    """

    __slots__ = ("_history",)

    def __init__(self, index: int, incarnations: Incarnations) -> None:
        self._history: list[tuple[int, Incarnations]] = [(index, dict(incarnations))]

    @classmethod
    def founding(cls, members: Iterable[str]) -> "Roster":
        """The roster of a new cluster."""
        return cls(0, dict.fromkeys(members, FOUNDER))

    @property
    def now(self) -> Incarnations:
        """The incarnations that count as of the last entry of the log."""
        return self._history[-1][1]

    @property
    def changed_at(self) -> int:
        """The index of the entry that made this the roster."""
        return self._history[-1][0]

    def has_suspended(self, name: str, incarnation: int) -> bool:
        """Whether a copy of a member is, or was, suspended, as far back as the log reaches."""
        return any(roster[name] == suspended(incarnation) for _, roster in self._history)

    def at(self, index: int) -> tuple[tuple[str, int], ...]:
        """The roster as of the entry `index`, for a snapshot."""
        before = [roster for start, roster in self._history if start <= index]
        return tuple(sorted(before[-1].items()))

    def change(self, index: int, name: str, incarnation: int) -> None:
        """Apply the change that the entry `index` makes."""
        self._history.append((index, {**self.now, name: incarnation}))

    def truncate(self, index: int) -> None:
        """Undo the changes of the entries from `index` on."""
        while self._history[-1][0] >= index and len(self._history) > 1:
            self._history.pop()

    def compact(self, index: int) -> None:
        """Forget the rosters that were replaced before the entry `index`."""
        while len(self._history) > 1 and self._history[1][0] <= index:
            del self._history[0]
