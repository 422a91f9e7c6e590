"""The log in memory: the entries after a snapshot, and which of them are durable."""

from sequencer.raft.consensus import Entry
from sequencer.raft.entries import ENTRIES_MAX


class Log:
    """Consecutive entries after a base index whose term is known.

    Attributes:
        base: the index before the first entry held.
        base_term: the term of that index.
        last: the index of the last entry.
        durable: the last entry on stable storage here.
    """

    __slots__ = ("_entries", "base", "base_term", "durable", "last")

    def __init__(self, base: int, base_term: int) -> None:
        self.base, self.base_term = base, base_term
        self._entries: list[Entry] = []
        self.last = self.durable = base

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self._entries[-1].term if self._entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None if the log does not hold it."""
        offset = index - self.base - 1
        if 0 <= offset < len(self._entries):
            return self._entries[offset].term
        return self.base_term if index == self.base else None

    def contradicts(self, index: int, term: int) -> bool:
        """Whether this log proves that the entry `index` is not of this term.

        Terms never decrease along a log, so entries before the base cannot have a later term than
        it.
        """
        if index < self.base:
            return term > self.base_term
        return self.term_at(index) not in {None, term}

    def append(self, entry: Entry) -> None:
        """Add an entry to the end."""
        self._entries.append(entry)
        self.last += 1

    def truncate(self, index: int) -> None:
        """Drop the entries from `index` on; none of them counts as durable any more."""
        del self._entries[index - self.base - 1 :]
        self.last = self.base + len(self._entries)
        self.durable = min(self.durable, index - 1)

    def between(self, start: int, end: int) -> tuple[Entry, ...]:
        """The entries from `start` to `end`, both included."""
        return tuple(self._entries[max(0, start - self.base - 1) : end - self.base])

    def batch(self, start: int, bytes_max: int, last: int) -> tuple[Entry, ...]:
        """The entries from `start` to `last` that fit into a message; at least one."""
        end = min(start - 1 + ENTRIES_MAX, last)
        entries = self._entries[start - self.base - 1 : end - self.base]
        if len(entries) == 1:
            return tuple(entries)
        taken = 0
        for count, entry in enumerate(entries):
            taken += len(entry.command)
            if taken > bytes_max:
                return tuple(entries[: max(1, count)])
        return tuple(entries)

    def last_possible_match(self, index: int, term: int) -> tuple[int, int]:
        """The last index, with its term, at which a log with `term` at `index` may match this one.

        Skips a whole conflicting term per exchange instead of one entry.
        """
        index = min(index, self.last)
        while index > self.base and (self.term_at(index) or 0) > term:
            index -= 1
        return index, self.term_at(index) or 0

    def compact(self, index: int) -> None:
        """Drop the entries up to `index`, which a snapshot covers."""
        term = self.term_at(index)
        if term is None or index <= self.base:
            return
        del self._entries[: index - self.base]
        self.base, self.base_term = index, term

    def reset(self, index: int, term: int) -> None:
        """Replace everything with a snapshot that is not durable yet."""
        self._entries.clear()
        self.base, self.base_term, self.durable, self.last = index, term, 0, index
